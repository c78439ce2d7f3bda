"""Whether a value can be a task: what JSON and UTF-8 can carry to an agent and back."""

from __future__ import annotations

import json
from typing import Any, Final

DEEPEST: Final = 100
"""Levels of lists and objects inside each other. Copying and writing a task recurse, and Python's stack ends near 1000."""
_TOO_DEEP: Final = f"it is nested more than {DEEPEST} levels deep"


def problem_of(value: Any) -> str | None:
    """Why the value cannot be written as JSON text in UTF-8, as the end of a sentence; None when it can."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        character = f"\\u{ord(error.object[error.start]):04x}"
        return f"it holds {character}, half of a surrogate pair, which is no character"
    except RecursionError:
        return _TOO_DEEP
    except (TypeError, ValueError) as error:
        return str(error)
    return _TOO_DEEP if _is_deep(value) else None


def _is_deep(value: Any) -> bool:
    """Whether a value that has an end is nested too deeply; without recursion."""
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _items(outer)]
        if not level:
            return False
    return any(isinstance(outer, dict | list | tuple) for outer in level)


def _items(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
