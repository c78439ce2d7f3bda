"""Everything hooked into openai, attached once and counted."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

import openai

from spangrad_openai._client_patch import ClientPatch
from spangrad_openai._spans import SpanPatch
from spangrad_openai._threads import ThreadPatch


class Hooks:
    """The client patch, the threads' context and the spans, under one counter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attached = 0
        self._client = ClientPatch()
        self._threads = ThreadPatch()
        self._spans = SpanPatch()

    def attach(self) -> None:
        """Counts up; the first one hooks in."""
        with self._lock:
            if self._attached == 0:
                try:
                    self._client.apply()
                    self._threads.apply()
                    self._spans.apply()
                except BaseException:  # whatever it is passes on, but half a patch must not stay
                    self._revert()
                    raise
            self._attached += 1

    def detach(self) -> None:
        """Counts down; the last one restores."""
        with self._lock:
            self._attached -= 1
            if self._attached == 0:
                self._revert()

    def describe(self) -> Mapping[str, str]:
        """See `OpenAIIntegration.describe`."""
        with self._lock:
            return {
                "openai": openai.__version__,
                "client": "patched" if self._attached else "not attached",
                "threads": self._threads.state,
                "spans": self._spans.state,
            }

    def _revert(self) -> None:
        self._spans.revert()
        self._threads.revert()
        self._client.revert()


HOOKS: Final = Hooks()
"""The only ones in the process: openai's classes exist once, so their patch has one owner."""
