"""Wrapping a method of AutoGen's: coroutines and streams, whatever the work is.

A wrapper returns, raises and streams what the method does, and its kind (coroutine function, async generator function,
static method) is the method's. Outside a rollout, and after detaching, it only passes on.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from spangrad.capture import current_scope
from spangrad_autogen._frame import Frame, step_in, work

MARK: Final = "__spangrad__"
"""Set on each of our functions."""

Opening = Callable[[Mapping[str, Any]], Frame | None]
"""Arguments by name -> the frame of this call; one whose work has begun is that of a call further out, of which
this one is part."""
Reading = Callable[[Frame, Any], None]
"""Takes what is worth keeping from what the method returned or streamed."""


@dataclass
class Switch:
    """Whether the wrappers do anything."""

    on: bool = False


SWITCH: Final = Switch()


def recording() -> bool:
    """Whether there is anything to record: attached, and inside a rollout."""
    return SWITCH.on and current_scope() is not None


@dataclass(frozen=True, slots=True)
class Hook:
    """How one method is wrapped."""

    parameters: frozenset[str]
    """Which it must have."""
    opening: Opening
    reading: Reading = lambda _frame, _result: None
    streams: bool = False
    """Whether it is an async generator function; a coroutine function otherwise."""

    def fits(self, method: object) -> bool:
        """Whether the method, as it lies in its owner's `__dict__`, has the shape that `wrap` relies on."""
        function = bare(method)
        is_kind = inspect.isasyncgenfunction if self.streams else inspect.iscoroutinefunction
        return is_kind(function) and self.parameters <= set(inspect.signature(function).parameters)

    def wrap(self, owner: type, method: Any) -> object:
        """The wrapper of the method, to lie in its place.

        Args:
            owner: the class it lies in.
            method: as it lies there: a function, a static method, or what another instrumentor has made of one.
        """
        function = bare(method)
        make = _stream if self.streams else _coroutine
        if isinstance(method, staticmethod):
            wrapper = make(method.__get__(None, owner), self._opened(function), self.reading)
        else:
            wrapper = make(_through_instance(method), self._opened(function), self.reading)
        functools.update_wrapper(wrapper, function)
        setattr(wrapper, MARK, "spangrad-autogen")
        return staticmethod(wrapper) if isinstance(method, staticmethod) else wrapper

    def _opened(self, function: Callable[..., Any]) -> Callable[..., Frame | None]:
        signature = inspect.signature(function)

        def opened(*args: Any, **kwargs: Any) -> Frame | None:
            if not recording():
                return None
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:  # wrong arguments: the method itself says so
                return None
            bound.apply_defaults()
            return self.opening(bound.arguments)

        return opened


def _through_instance(method: Any) -> Callable[..., Any]:
    """Calls a method the way Python does, through its instance: others' wrappers tell by that what they wrap."""

    def call(instance: object, *args: Any, **kwargs: Any) -> Any:
        return method.__get__(instance, type(instance))(*args, **kwargs)

    return call


def bare(method: object) -> Any:
    """The function in a static method, or the function itself."""
    return method.__func__ if isinstance(method, staticmethod) else method


def _coroutine(
    function: Callable[..., Coroutine[Any, Any, Any]], opened: Callable[..., Frame | None], reading: Reading
) -> Callable[..., object]:
    async def method(*args: Any, **kwargs: Any) -> object:
        frame = opened(*args, **kwargs)
        if frame is None:
            return await function(*args, **kwargs)
        if frame.entered:
            try:
                return await function(*args, **kwargs)
            except BaseException as error:  # passes on; the call further out may turn it into a mere result
                frame.caught = error
                raise
        with work(frame):
            result = await function(*args, **kwargs)
            reading(frame, result)
            return result

    return method


def _stream(
    function: Callable[..., AsyncGenerator[Any, Any]], opened: Callable[..., Frame | None], reading: Reading
) -> Callable[..., object]:
    async def method(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        frame = opened(*args, **kwargs)
        steps = _Steps(function(*args, **kwargs), frame, reading)
        sent: object = None
        thrown: BaseException | None = None
        while True:
            try:
                item = await steps.next(sent, thrown)
            except StopAsyncIteration:
                return
            sent = thrown = None
            try:
                sent = yield item
            except GeneratorExit:
                await steps.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is for the stream to handle, in the next step
                thrown = error

    return method


class _Steps:
    """A stream taken step by step, its frame current during each and not in between."""

    def __init__(self, stream: AsyncGenerator[Any, Any], frame: Frame | None, reading: Reading) -> None:
        self._stream = stream
        self._frame = frame
        self._reading = reading
        self._whole = frame is not None and not frame.entered
        """Whether the stream is all of the frame's work, not a part of a call further out."""
        if frame is not None and self._whole:
            frame.enter()

    async def next(self, sent: object, thrown: BaseException | None) -> Any:
        """The stream's next item.

        Args:
            sent: what the reader sent.
            thrown: what the reader threw instead.

        Raises:
            StopAsyncIteration: there is none.
        """
        try:
            with self._inside():
                item = await (self._stream.asend(sent) if thrown is None else self._stream.athrow(thrown))
                if self._whole and self._frame is not None:
                    self._reading(self._frame, item)
                return item
        except StopAsyncIteration:
            self._over(None)
            raise
        except BaseException as error:  # whatever it is passes on
            self._over(error)
            raise

    async def close(self) -> None:
        """Ends a stream that nobody reads any further."""
        try:
            with self._inside():
                await self._stream.aclose()
        finally:
            self._over(None)

    def _inside(self) -> AbstractContextManager[None]:
        return step_in(self._frame) if self._whole else nullcontext()

    def _over(self, error: BaseException | None) -> None:
        if self._frame is None:
            return
        if self._whole:
            self._frame.end(error)
        elif error is not None:
            self._frame.caught = error
