"""The hooks in AutoGen's runtime: which agent handles a message, and on whose behalf.

A runtime handles all messages in one task, begun whenever it was started, perhaps in another rollout. So a message's envelope
is marked with the rollout and the work it was sent from, and they are made current again where it is handled.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import autogen_core._single_threaded_agent_runtime as runtime_module
from autogen_core import BaseAgent, SingleThreadedAgentRuntime

from spangrad.capture import RolloutScope, current_scope, use_scope
from spangrad.plugins import Replacements
from spangrad_autogen._frame import Frame, current_frame, inside
from spangrad_autogen._shape import changed, check
from spangrad_autogen._work import MESSAGE
from spangrad_autogen._wrappers import MARK, SWITCH, Hook, recording

_ORIGIN: Final = "__spangrad_origin__"
_METADATA: Final = "get_telemetry_envelope_metadata"


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a message was sent from."""

    scope: RolloutScope
    frame: Frame | None


class RuntimeHooks:
    """The hooks in `BaseAgent` and `SingleThreadedAgentRuntime`."""

    def __init__(self) -> None:
        self._replacements = Replacements()

    def apply(self) -> None:
        """Hooks in.

        Raises:
            PluginError: the runtime does not have the methods as expected, or another copy got there first.
        """
        self._make(BaseAgent, "on_message", MESSAGE)
        self._process("_process_send", _caller)
        self._process("_process_publish", _publisher)
        if (runtime_module, _METADATA) not in self._replacements:
            original = vars(runtime_module).get(_METADATA)
            if not inspect.isfunction(original) or inspect.signature(original).parameters:
                raise changed(runtime_module, _METADATA, "is not the function it was")
            self._replacements.make(runtime_module, _METADATA, _marking(original))

    def revert(self) -> None:
        """Takes the hooks out."""
        self._replacements.undo()

    def _make(self, owner: type, name: str, hook: Hook) -> None:
        if (owner, name) not in self._replacements:
            check(owner, name, hook)
            self._replacements.make(owner, name, hook.wrap(owner, vars(owner)[name]))

    def _process(self, name: str, above: Callable[[Frame | None, object], Frame | None]) -> None:
        owner = SingleThreadedAgentRuntime
        if (owner, name) in self._replacements:
            return
        check(owner, name, Hook(frozenset({"self", "message_envelope"}), lambda _arguments: None))
        original = vars(owner)[name]

        @functools.wraps(original)
        async def process(runtime: SingleThreadedAgentRuntime, message_envelope: Any) -> object:
            with _sent_from(message_envelope, runtime, above):
                return await original.__get__(runtime, type(runtime))(message_envelope)

        setattr(process, MARK, "spangrad-autogen")
        self._replacements.make(owner, name, process)


def _marking(original: Callable[[], Any]) -> object:
    """The function that gives each envelope its telemetry metadata, in the context of the sender."""

    @functools.wraps(original)
    def get_telemetry_envelope_metadata() -> Any:
        metadata = original()
        scope = current_scope()
        if recording() and scope is not None and hasattr(metadata, "__dict__"):
            vars(metadata)[_ORIGIN] = _Origin(scope, current_frame())
        return metadata

    setattr(get_telemetry_envelope_metadata, MARK, "spangrad-autogen")
    return get_telemetry_envelope_metadata


@contextmanager
def _sent_from(envelope: Any, runtime: object, above: Callable[[Frame | None, object], Frame | None]) -> Iterator[None]:
    """Makes current where the message was sent from."""
    origin = getattr(getattr(envelope, "metadata", None), _ORIGIN, None) if SWITCH.on else None
    if not isinstance(origin, _Origin):
        with inside(None) if recording() else nullcontext():
            yield
        return
    with (
        nullcontext() if current_scope() == origin.scope else use_scope(origin.scope),
        inside(above(origin.frame, runtime)),
    ):
        yield


def _caller(frame: Frame | None, _runtime: object) -> Frame | None:
    """Who sends a message waits for the answer: the work on it is part of the sender's."""
    return frame


def _publisher(frame: Frame | None, runtime: object) -> Frame | None:
    """Who publishes a message goes on: the work on it stands beside that of the runtime's agent that published it."""
    above = frame
    while above is not None:
        if above.runtime is runtime:
            return above.parent
        above = above.parent
    return frame
