"""A process that was started for one rollout: all its code belongs to that one, and its spans go to the gateway.

They are sent as they finish, a batch at a time, and the rest when the process ends: normally, by `sys.exit`, by an exception,
or as a child of `multiprocessing`. What ends a process at once (`os._exit`, a signal) loses the last half second of them.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from spangrad.capture._child import plugins_told
from spangrad.capture._environment import scope_from_environment
from spangrad.capture._gateway_client import GatewayClient
from spangrad.capture._scope import RolloutScope, set_process_scope
from spangrad.capture._tracing import add_sink, flush_spans
from spangrad.capture._work import end_work
from spangrad.errors import GatewayError
from spangrad.plugins import load_plugins, on_import
from spangrad.spans import Span, from_readable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_TIMEOUT: Final = 5.0
"""Seconds the gateway may keep a program waiting at its end, at each step of a request."""

_lock: Final = threading.Lock()
_attached: Final = ExitStack()
"""Holds the integrations until the process ends; nothing closes it."""
_joined: ProcessRollout | None = None


class ProcessRollout:
    """The rollout of this process, and what is still to be sent of it. Get it by `join_process`."""

    def __init__(self, scope: RolloutScope) -> None:
        self.scope = scope
        self._attaching = True
        self._start()

    def attach(self) -> None:
        """Attaches the integrations, or waits for their frameworks to be imported; the second time it does nothing.

        Two threads that get here at once both attach, which is harmless: waiting for each other in the middle of the imports
        that led them here is not.

        Raises:
            PluginError: the plug-ins cannot be loaded, or, under SPANGRAD_STRICT=1, attached.
            ConfigError: a variable that selects plug-ins is wrong.
        """
        if self._attaching:
            told = plugins_told(os.environ)
            _attached.enter_context(load_plugins(builtin=False, among=told).attached())
            self._attaching = False

    def finish(self) -> None:
        """Ends what is open and sends what is there; the program may go on and call it again."""
        end_work(self.scope)
        flush_spans()
        if (trouble := self._send()) is not None:
            with self._sending:
                self._unsent.clear()  # said once
            complain(f"the last spans of rollout {self.scope.rollout_id} are not recorded: {trouble}")

    def forked(self) -> None:
        """In a forked copy of the process: what was to be sent is the original's to send, over the original's connections."""
        self._start()

    def _start(self) -> None:
        self._sending = threading.Lock()
        self._unsent: list[Span] = []
        self._gateway: GatewayClient | None = None

    def keep(self, spans: Sequence[ReadableSpan]) -> None:
        """Takes finished spans and sends them."""
        key = (self.scope.rollout_id, self.scope.attempt)
        own = [span for span in map(from_readable, spans) if (span.rollout_id, span.attempt) == key]
        with self._sending:
            self._unsent += own
        self._send()  # what could not be sent waits for the next time, and at the end it is said

    def _send(self) -> GatewayError | None:
        with self._sending:
            if not self._unsent:
                return None
            try:
                if self._gateway is None:
                    self._gateway = GatewayClient(self.scope.gateway_url, self.scope.api_key, timeout=_TIMEOUT)
                self._gateway.send_spans(self._unsent, key=self.scope.api_key)
            except GatewayError as error:
                return error
            self._unsent = []
            return None


def join_process(scope: RolloutScope) -> None:
    """Makes `scope` the rollout of this process, with the integrations attached, until the process ends.

    A second time does nothing.

    Raises:
        PluginError: the plug-ins cannot be loaded, or, under SPANGRAD_STRICT=1, attached.
        ConfigError: a variable that selects plug-ins is wrong.
    """
    global _joined  # noqa: PLW0603 - a process has one
    with _lock:  # nothing is imported under it
        if new := _joined is None:
            _joined = ProcessRollout(scope)
        rollout = _joined
    if new:
        set_process_scope(scope)
        add_sink(rollout.keep)
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=rollout.forked)
        atexit.register(rollout.finish)
        on_import("multiprocessing.util", _finish_children)
        on_import("openai", _import_http_client)
    rollout.attach()


def join_from_environment() -> RolloutScope | None:
    """Joins the rollout this process was started for, if it was for one, and returns its scope.

    Raises:
        PluginError: see `join_process`.
        ConfigError: see `join_process`; or the variables that name the rollout are wrong.
    """
    scope = scope_from_environment(os.environ)
    if scope is not None:
        join_process(scope)
    return scope


def complain(text: str) -> None:
    """One line to the program's standard error, whatever its logging is set to."""
    if sys.stderr is not None:  # a program without a console has none
        sys.stderr.write(f"spangrad: {' '.join(text.split())}\n")
        sys.stderr.flush()


def _import_http_client() -> None:
    """Imports what spans are sent with before the program goes on: openai 3 trips over an httpx that another thread is importing."""
    importlib.import_module("httpx")


def _finish_children() -> None:
    """Has `multiprocessing` finish the rollout in its processes, which run no `atexit` functions when they were forked."""
    util: Any = sys.modules["multiprocessing.util"]
    rollout = _joined
    if rollout is None:
        return

    def finish_at_end(rollout: ProcessRollout) -> None:
        util.Finalize(None, rollout.finish, exitpriority=-100)  # after everything that has a priority of its own

    util.register_after_fork(rollout, finish_at_end)
    if sys.modules["multiprocessing.process"].parent_process() is not None:
        finish_at_end(rollout)
