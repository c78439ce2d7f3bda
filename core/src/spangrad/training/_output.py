"""What an agent returned, as reports show it."""

from __future__ import annotations

import json
from typing import Any

from spangrad.rollouts import RolloutResult, problem_of


def shown_output(result: RolloutResult) -> Any:
    """The output if JSON can carry it, else a text of it: agents may return anything."""
    output = result.output
    problem = problem_of(output)
    if problem is None:
        return output
    try:
        return json.dumps(output, default=str) if isinstance(output, str | dict | list) else str(output)
    except Exception:  # noqa: BLE001 - an object of the user's, whose own text may fail in any way
        return f"{type(output).__name__} that cannot be shown: {problem}"
