"""Keeps what happens in rollouts from being exported to OpenAI, which is the SDK's default, unless asked for."""

from __future__ import annotations

import threading
from typing import Any, Final
from urllib.parse import urlsplit

from agents.tracing.processors import BackendSpanExporter

from spangrad.capture import current_scope
from spangrad_openai_agents._work import WORK

_VENDOR: Final = "openai.com"


class VendorExport:
    """Decides about one trace or span at a time. Exporters to other hosts are the program's own and never held back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keepers = 0

    @property
    def state(self) -> str:
        """In words."""
        return "as the program has it" if self._keepers else "off inside rollouts"

    def keep(self) -> None:
        """One more attachment wants the export left as it is."""
        with self._lock:
            self._keepers += 1

    def let_go(self) -> None:
        """One attachment fewer does."""
        with self._lock:
            self._keepers -= 1

    def keeps_back(self, processor: Any, item: Any) -> bool:
        """Whether the processor must not queue the trace or span."""
        if self._keepers or not _goes_to_the_vendor(getattr(processor, "_exporter", None)):
            return False
        return current_scope() is not None or WORK.knows(item)


def _goes_to_the_vendor(exporter: Any) -> bool:
    if not isinstance(exporter, BackendSpanExporter):
        return False
    host = urlsplit(exporter.endpoint).hostname or ""
    return host == _VENDOR or host.endswith("." + _VENDOR)


VENDOR_EXPORT: Final = VendorExport()
"""The only one in the process, as the hooks are."""
