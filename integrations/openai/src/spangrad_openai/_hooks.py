"""Everything hooked into openai, and how often that has been asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import openai

from spangrad.plugins import SharedHooks
from spangrad_openai._client_patch import ClientPatch
from spangrad_openai._spans import SpanPatch
from spangrad_openai._threads import ThreadPatch


class Hooks:
    """The client patch, the threads' context and the spans, under one counter."""

    def __init__(self) -> None:
        self._shared = SharedHooks(self._apply, self._revert)
        self._client = ClientPatch()
        self._threads = ThreadPatch()
        self._spans = SpanPatch()

    def attach(self) -> Callable[[], None]:
        """See `OpenAIIntegration.attach`."""
        return self._shared.attach()

    def describe(self) -> Mapping[str, str]:
        """See `OpenAIIntegration.describe`."""
        return {
            "openai": openai.__version__,
            "client": "patched" if self._shared.attached else "not attached",
            "threads": self._threads.state,
            "spans": self._spans.state,
        }

    def _apply(self) -> None:
        self._client.apply()
        self._threads.apply()
        self._spans.apply()

    def _revert(self) -> None:
        self._spans.revert()
        self._threads.revert()
        self._client.revert()


HOOKS: Final = Hooks()
"""The only ones in the process: openai's classes exist once, so their patch has one owner."""
