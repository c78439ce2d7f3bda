"""The probe that tells core where LangChain's code is, added once for however many handlers there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spangrad.capture import add_probe
from spangrad.plugins import SharedHooks
from spangrad_langchain._work import WORK


class _Probe:
    def __init__(self) -> None:
        self._remove: Callable[[], None] = lambda: None

    def add(self) -> None:
        """Adds it."""
        self._remove = add_probe(WORK.here)

    def remove(self) -> None:
        """Takes it away."""
        self._remove()


_probe: Final = _Probe()
PROBE: Final = SharedHooks(_probe.add, _probe.remove)
