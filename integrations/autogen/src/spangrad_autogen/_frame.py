"""Which piece of AutoGen's work the running code is in.

A chain of frames in a `ContextVar` of our own. Where code is suspended between two items of a stream, the reader runs in the
same context, so a stream's frame is set for each step anew and taken away before the item is handed out. The OpenTelemetry
context, which opentelemetry-instrumentation-threading carries into threads and executors, mirrors the frame of coroutines
only: AutoGen changes that context inside its streams, and nothing may change it around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry import context as otel_context

from spangrad import semconv
from spangrad.capture import CallSite, WorkRecorder, current_scope

RECORDER: Final = WorkRecorder("spangrad.autogen")
"""The only one in the process."""

_OTEL_KEY = otel_context.create_key("spangrad-autogen-frame")
_current: ContextVar[Frame | None] = ContextVar("spangrad_autogen_frame", default=None)


@dataclass(eq=False, slots=True)
class Frame:
    """A piece of work: of an agent, a team or a tool."""

    operation: str
    name: str
    rollout: tuple[str, int]
    parent: Frame | None
    """What was under way when it came about."""
    owner: object = None
    """The agent or team whose work it is."""
    runtime: object = None
    """The runtime that handed an agent of the core API its message."""
    call_id: str | None = None
    """The model's id of a tool call."""
    lazy: bool = False
    """Gets a span only if something happens in it."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """For its span's beginning, then for its end."""
    handoffs: list[dict[str, Any]] = field(default_factory=list)
    """Attributes of the handoffs that an agent's model has called for."""
    caught: BaseException | None = None
    """The last exception that a part of it raised."""
    error: BaseException | str | None = None
    """What went wrong where the result says that something did."""
    entered: bool = False
    """Its work has begun."""
    begun: bool = False
    """It has a span."""
    ended: bool = False

    def enter(self) -> None:
        """Its work begins; so does its span, unless that waits for something to happen."""
        self.entered = True
        if not self.lazy:
            self.begin()

    def begin(self) -> None:
        """Opens its span below whatever is under way here."""
        self.begun = True
        agent = self.name if self.operation == semconv.AGENT_OPERATION else None
        attributes, self.attributes = self.attributes, {}
        RECORDER.begin(self, self.name, operation=self.operation, agent=agent, attributes=attributes)

    def end(self, raised: BaseException | None = None) -> None:
        """Its work is over, and its span, if it has one; an error is something that happened in it."""
        if raised is not None and not self.begun:
            self.begin()
        self.ended = True
        RECORDER.end(self, error=raised or self.error, attributes=self.attributes)


def new_frame(operation: str, name: str, **details: Any) -> Frame | None:
    """A frame below the current one, without a span yet; None outside a rollout."""
    scope = current_scope()
    if scope is None:
        return None
    return Frame(operation, name, (scope.rollout_id, scope.attempt), current_frame(), **details)


def current_frame() -> Frame | None:
    """The innermost frame that is under way here and belongs to the current rollout."""
    scope = current_scope()
    if scope is None:
        return None
    frame = _current.get()
    if frame is None:
        mirrored = otel_context.get_value(_OTEL_KEY)
        frame = mirrored if isinstance(mirrored, Frame) else None
    while frame is not None and (frame.ended or frame.rollout != (scope.rollout_id, scope.attempt)):
        frame = frame.parent
    return frame


def probe() -> CallSite | None:
    """See `spangrad.capture.Probe`."""
    frame = current_frame()
    while frame is not None:
        if frame.lazy and not frame.begun:
            frame.begin()
        if (site := RECORDER.site(frame)) is not None:
            return site
        frame = frame.parent
    return None


@contextmanager
def step_in(frame: Frame | None) -> Iterator[None]:
    """Makes `frame` the current one for one step of a stream."""
    token = _current.set(frame)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine thrown away is closed in another context; there is nothing to restore
            _current.reset(token)


@contextmanager
def inside(frame: Frame | None) -> Iterator[None]:
    """Makes `frame` the current one for a coroutine, and for the threads and executors it makes use of."""
    token = _current.set(frame)
    otel_token = otel_context.attach(otel_context.set_value(_OTEL_KEY, frame))
    try:
        yield
    finally:
        with suppress(ValueError):  # as above
            _current.reset(token)
            otel_context.detach(otel_token)


@contextmanager
def work(frame: Frame) -> Iterator[None]:
    """Makes a coroutine the work of `frame`, from its beginning to its end."""
    frame.enter()
    try:
        with inside(frame):
            yield
    except BaseException as error:  # also that a task is cancelled; all of it passes on
        frame.end(error)
        raise
    frame.end()
