"""LiteLLM's own way to keep calls: a callback that appends each to a file. Runs inside its proxy, which finds it beside its configuration.

LiteLLM calls it after the answer has gone out, and nothing waits until the line is on the disk: no promise as strong as spangrad's.
"""

from __future__ import annotations

import json
import os
from typing import Any

from litellm.integrations.custom_logger import CustomLogger


class Capture(CustomLogger):
    """Appends what was asked and what was answered, a line of JSON each."""

    def __init__(self) -> None:
        super().__init__()
        self._file = open(os.environ["CAPTURE_FILE"], "a", encoding="utf-8")  # noqa: SIM115, PTH123 - open as long as the proxy

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """One call."""
        call = {
            "messages": kwargs["messages"],
            "answer": response_obj.model_dump(),
            "from": start_time.timestamp(),
            "to": end_time.timestamp(),
        }
        self._file.write(json.dumps(call) + "\n")
        self._file.flush()


capture = Capture()
