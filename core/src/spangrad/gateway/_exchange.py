"""One call from its body to its record and its answer, whichever API it came by."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from starlette.types import Send

from spangrad.errors import RouteError
from spangrad.gateway._access import Entry, SamplingOverride
from spangrad.gateway._answer import Answer
from spangrad.gateway._engine import EngineError, EngineRequest
from spangrad.gateway._errors import error_body, send_json
from spangrad.gateway._identity import read_state
from spangrad.gateway._request import ChatBody, engine_request, read_chat, read_json, sampling_params
from spangrad.gateway._routes import Route
from spangrad.gateway._state import CLIENT_GONE, ROLLOUT_CLOSED, SERVER_ERROR, GatewayState, closed_error
from spangrad.gateway._wire import Dialect, Question, Wire
from spangrad.semconv import AGENT_HEADER, CALL_HEADER, REQUEST_HEADER, RETRY_HEADER
from spangrad.transitions import Call, CallStatus

_log = logging.getLogger(__name__)
_LONGEST_ID: Final = 200
_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class _Opened:
    """A request that was understood."""

    question: Question
    request: EngineRequest
    route: Route
    wire: Wire


class Exchange:
    """One HTTP attempt of one call.

    Args:
        state: the gateway's.
        dialect: the API the request came by.
        entry: the rollout's attempt; None for an orphan.
        headers: of the request.
        send: the ASGI channel to the agent.
        interrupt: done when the call must stop, with the reason.
    """

    def __init__(
        self,
        state: GatewayState,
        dialect: Dialect,
        *,
        entry: Entry | None,
        headers: Mapping[str, str],
        send: Send,
        interrupt: asyncio.Future[EngineError],
    ) -> None:
        self._state = state
        self._dialect = dialect
        self._entry = entry
        self._memory = state.orphan_responses if entry is None else entry.responses
        self._headers = headers
        self._send = send
        self._interrupt = interrupt
        self._received_at = time.time()
        self._index = entry.calls - 1 if entry is not None else 0
        self._call_id = uuid.uuid4().hex
        self._body: dict[str, Any] = {}
        self._agent_state: tuple[str | None, float | None] = (None, None)
        self._opened: _Opened | None = None
        self._answer = Answer()
        self._streaming = False
        """The response's head was sent as a stream."""

    async def run(self, data: bytes) -> None:
        """Answers the request and records it, whatever happens."""
        failure = await self._failure(data)
        try:
            await self._state.record(self._call(failure), self._entry)
        except EngineError as error:
            _log.error("%s", error)
            failure = failure or error
        self._note_ending(failure)
        if failure is None and self._opened is not None:
            self._opened.question.remember(self._call_id, self._answer, self._memory)
        self._state.end(self._entry, self._interrupt)
        await self._finish(failure)

    def _note_ending(self, failure: EngineError | None) -> None:
        """Keeps for the attempt whether the server was at fault the last time it answered; a call cut short tells nothing of it."""
        if self._entry is None or self._entry.closed or (failure is not None and failure is self._interruption()):
            return
        broken = failure is not None and failure.status >= SERVER_ERROR
        self._entry.broken = str(failure) if broken else ""

    def _interruption(self) -> EngineError | None:
        """Why the call was stopped, if it was."""
        return self._interrupt.result() if self._interrupt.done() else None

    async def _work(self, data: bytes) -> None:
        """Understands the request, samples, and streams what may be streamed."""
        opened = self._open(data)
        await self._state.gate.wait()
        async with aclosing(opened.route.engine.chat(opened.request)) as deltas:
            async for delta in deltas:
                self._answer.add(delta)
                if opened.request.stream:
                    await self._stream(opened.wire.progress(delta))
        choices = self._answer.choices
        if len(choices) < opened.request.choices or any(choice.finish_reason is None for choice in choices):
            raise EngineError(f"The engine {opened.route.engine.name} ended its answer early", status=502)

    def _open(self, data: bytes) -> _Opened:
        """Reads and checks the request.

        Raises:
            EngineError: 400 for a bad request, 404 for a model without a route, 409 for a closed rollout.
        """
        self._claim_call_id()
        self._body = read_json(data)
        self._agent_state = read_state(self._headers)
        question, chat = self._read()
        try:
            route = self._state.routes.resolve(chat.model)
        except RouteError as error:
            raise EngineError(error.what, cure=error.cure, status=404, code="model_not_found", param="model") from error
        override = self._entry.sampling if self._entry is not None else SamplingOverride()
        params, limited = sampling_params(chat, override, self._index)
        wire = question.wire(self._call_id, self._received_at, chat, params)
        request = engine_request(
            chat,
            question.body,
            params,
            limited=limited,
            call_id=self._call_id,
            branches=None if self._entry is None else self._entry.branches,
        )
        self._opened = _Opened(question, request, route, wire)
        self._refuse_if_late()
        return self._opened

    def _read(self) -> tuple[Question, ChatBody]:
        """The request, and the chat request it comes to."""
        try:
            question = self._dialect.read(self._body, self._memory)
            return question, read_chat(question.body)
        except EngineError:
            self._refuse_if_late()  # it may refer to what was forgotten when the rollout closed
            raise

    def _refuse_if_late(self) -> None:
        """Refuses calls of a closed attempt.

        Raises:
            EngineError: 409, it is closed.
        """
        if self._entry is not None and self._entry.closed:
            self._state.late.add("calls")
            raise closed_error(self._entry.access.rollout_id, self._entry.access.attempt)

    def _claim_call_id(self) -> None:
        """Takes the call id the client stamped, if it did."""
        call_id = self._headers.get(CALL_HEADER)
        if not call_id:
            return
        seen = self._state.orphan_ids if self._entry is None else self._entry.call_ids
        if call_id in seen or len(call_id) > _LONGEST_ID:
            raise EngineError(
                f"The call id {call_id[:_LONGEST_ID]!r} was used before or is longer than {_LONGEST_ID} characters",
                cure=f"Send a new {CALL_HEADER} with every HTTP request, or none",
                status=400,
                code="duplicate_call_id",
            )
        seen.add(call_id)
        self._call_id = call_id

    async def _stream(self, body: bytes) -> None:
        """Sends a piece of a stream; the head goes out with the first, so that what fails before has a proper status."""
        if not self._streaming:
            self._streaming = True
            headers = [*_STREAM_HEADERS, (b"x-request-id", self._call_id.encode("latin-1"))]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if body:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _failure(self, data: bytes) -> EngineError | None:
        """Works until the answer is whole or the call is stopped: why there is no whole answer, None if there is one."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        stopping = _Stopping(task)
        self._interrupt.add_done_callback(stopping)
        try:
            await self._work(data)
        except EngineError as error:
            return error
        except asyncio.CancelledError:
            if stopping.at_work:
                if task.cancelling():  # by the server, which gives up on the request
                    raise
                return EngineError("The engine cancelled the call", status=500)
        except Exception as error:  # noqa: BLE001 - engines are other people's code: what escapes one fails this call only
            _log.error("The engine failed", exc_info=error)
            return EngineError(f"The engine failed: {type(error).__name__}: {error}", status=500)
        finally:
            stopping.end()
        return self._interruption()

    def _call(self, failure: EngineError | None) -> Call:
        """The record."""
        opened, headers, access = self._opened, self._headers, self._entry.access if self._entry else None
        params = opened.request.params if opened else None
        retry = headers.get(RETRY_HEADER, "")
        model = self._body.get("model")
        return Call(
            call_id=self._call_id,
            rollout_id=access.rollout_id if access else None,
            attempt=access.attempt if access else 0,
            request_key=headers.get(REQUEST_HEADER) or self._call_id,
            retry=int(retry) if retry.isdecimal() else 0,
            received_at=self._received_at,
            finished_at=time.time(),
            model=model if isinstance(model, str) else "",
            policy=opened.route.policy if opened else None,
            policy_version=self._answer.policy_version,
            endpoint=opened.route.engine.name if opened else "",
            agent=unquote(headers.get(AGENT_HEADER, "")) or None,
            status=self._status(failure),
            reason=str(failure) if failure else "",
            prompt_ids=self._answer.prompt_ids,
            temperature=params.temperature if params else 1.0,
            top_p=params.top_p if params else 1.0,
            top_k=params.top_k if params else 0,
            request=self._body,
            choices=self._answer.records(),
            state=self._agent_state[0],
            score=self._agent_state[1],
            continuation=self._answer.continuation if access else None,
        )

    def _status(self, failure: EngineError | None) -> CallStatus:
        """How the call ended."""
        if failure is None:
            return CallStatus.OK
        if failure is self._interruption():
            return CallStatus.UNDELIVERED
        return CallStatus.LATE if failure.code == ROLLOUT_CLOSED else CallStatus.ERROR

    async def _finish(self, failure: EngineError | None) -> None:
        """Completes the response, if there is somebody to read it."""
        if failure is not None and failure.status == CLIENT_GONE:
            return
        if self._streaming:
            await self._send({"type": "http.response.body", "body": self._last_events(failure), "more_body": False})
        elif failure is not None:
            await send_json(self._send, error_body(failure), self._call_id, failure.status, failure.headers)
        elif self._opened is not None:
            await send_json(self._send, self._opened.wire.whole(self._answer), self._call_id)

    def _last_events(self, failure: EngineError | None) -> bytes:
        """What ends a stream."""
        if self._opened is None:
            return b""
        wire = self._opened.wire
        return wire.ending(self._answer) if failure is None else wire.failure(failure)


class _Stopping:
    """Cancels a task that is at work; once, and only then. Called when the call is to stop."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.at_work = True
        """Nothing has stopped the work, and it has not ended."""
        self._cancelled = False

    def __call__(self, _: object) -> None:
        if self.at_work:
            self.at_work = False
            self._cancelled = self._task.cancel()

    def end(self) -> None:
        """The work has ended, and with it the cancelling."""
        self.at_work = False
        if self._cancelled:
            self._task.uncancel()
