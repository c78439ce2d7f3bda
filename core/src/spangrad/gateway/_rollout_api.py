"""Rollouts over HTTP: open, look at, reward, finish; and the models there are."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from spangrad.capture import reward_value
from spangrad.errors import RewardError
from spangrad.gateway._access import RolloutTally
from spangrad.gateway._engine import EngineError
from spangrad.gateway._errors import json_response
from spangrad.gateway._identity import read_headers
from spangrad.gateway._rollout_bodies import FinishBody, OpenBody, RewardBody
from spangrad.gateway._state import GatewayState, closed_error, settle
from spangrad.store import RewardRecord, RolloutRecord, RolloutStatus

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
"""Characters of a task's id that a rollout's id made of it leaves out, so that it fits into headers and file names."""


class RolloutApi:
    """The handlers of the rollout routes.

    Args:
        state: the gateway's.
        root: gives the gateway's URL, without a path.
    """

    def __init__(self, state: GatewayState, root: Callable[[], str]) -> None:
        self._state = state
        self._root = root

    async def open(self, request: Request) -> Response:
        """Opens a rollout that some other process runs; answers its id, key and URL."""
        self._state.door.require_evaluator(read_headers(request.scope))
        body = OpenBody.read(await request.body())
        rollout_id = body.rollout_id or f"{_UNSAFE.sub('-', body.task_id)}-{uuid.uuid4().hex[:12]}"
        if self._state.book.find(rollout_id, body.attempt) is not None:
            raise EngineError(
                f"Attempt {body.attempt} of rollout {rollout_id!r} was opened before", status=409, code="rollout_exists"
            )
        access = self._state.book.add(self._root(), rollout_id, body.attempt, body.sampling.override()).access
        record = RolloutRecord(
            rollout_id=rollout_id,
            attempt=body.attempt,
            task_id=body.task_id,
            group_id=body.group_id or rollout_id,
            phase=body.phase,
            step=None,
            status=RolloutStatus.RUNNING,
            error="",
            output="",
            started_at=time.time(),
            finished_at=None,
        )
        await asyncio.to_thread(self._state.store.save_rollout, record)
        fields = ("rollout_id", "attempt", "base_url", "api_key")
        return json_response({field: getattr(access, field) for field in fields}, status=201)

    async def show(self, request: Request) -> Response:
        """Where a rollout stands."""
        rollout_id = request.path_params["rollout_id"]
        caller = self._state.door.identify(request.scope, read_headers(request.scope))
        if not caller.evaluator and caller.entry is not None and caller.entry.access.rollout_id != rollout_id:
            raise EngineError("A rollout's key shows its own rollout only", status=403, code="wrong_rollout")
        record = await self._record(rollout_id, None)
        return json_response(await asyncio.to_thread(self._describe, record))

    async def finish(self, request: Request) -> Response:
        """Closes an attempt and records how it ended; finishing again changes nothing."""
        name = self._named(request)
        body = FinishBody.read(await request.body())
        if (entry := self._state.book.find(*name)) is not None:
            drained: Future[RolloutTally] = Future()
            entry.waiting.append(drained)
            failed = RolloutStatus(body.status) is not RolloutStatus.SUCCEEDED
            self._state.close(entry, final=not entry.closed and failed)
            await asyncio.wrap_future(drained)
        record = await self._record(*name)
        if record.status is RolloutStatus.RUNNING:
            entry = self._state.door.find(*name)
            rewarded = await asyncio.to_thread(self._state.store.rewards, *name)
            record = replace(
                record,
                status=_ending(body, sampled=entry.sampled > 0, rewarded=bool(rewarded)),
                error=body.error,
                output="" if body.output is None else json.dumps(body.output),
                finished_at=time.time(),
            )
            await asyncio.to_thread(self._state.store.save_rollout, record)
        return json_response(await asyncio.to_thread(self._describe, record))

    async def reward(self, request: Request) -> Response:
        """Rewards a rollout or one of its calls, also after it came to its end by itself."""
        name = self._named(request)
        body = RewardBody.read(await request.body())
        try:
            value = reward_value(body.value)
        except RewardError as error:
            raise EngineError(error.what, cure=error.cure, status=400, code="bad_reward", param="value") from error
        entry = self._state.book.find(*name)
        if entry is None or entry.closed:
            self._state.late.add("rewards")
        if entry is None:
            await self._give_forgotten(name, body, value)
        elif entry.final:
            raise closed_error(*name)
        else:
            # Whoever closes the attempt now waits until the reward is on the disk: it came before the end.
            recorded: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
            entry.running.add(recorded)
            try:
                await self._give(await self._record(*name), body, value)
            finally:
                entry.running.discard(recorded)
                settle(entry)
        return json_response({"rollout_id": name[0], "attempt": name[1], "value": value}, status=201)

    async def _give_forgotten(self, name: tuple[str, int], body: RewardBody, value: float) -> None:
        """Records a reward of an attempt that the store alone knows of, if that came to its end by itself in a program of its own."""
        record = await self._record(*name)
        if record.step is not None or record.status not in {RolloutStatus.SUCCEEDED, RolloutStatus.NO_REWARD}:
            raise closed_error(*name)
        await self._give(record, body, value)

    async def _give(self, record: RolloutRecord, body: RewardBody, value: float) -> None:
        """Records a reward, with which an attempt that lacked one has succeeded."""
        store = self._state.store
        reward = RewardRecord(
            record.rollout_id, record.attempt, body.call_id, body.name, value, body.source, time.time()
        )
        await asyncio.to_thread(store.add_reward, reward)
        if record.status is RolloutStatus.NO_REWARD:
            await asyncio.to_thread(store.save_rollout, replace(record, status=RolloutStatus.SUCCEEDED, error=""))

    async def models(self, request: Request) -> Response:
        """The routed aliases, as OpenAI lists models."""
        self._state.door.identify(request.scope, read_headers(request.scope))
        wanted = request.path_params.get("model")
        if wanted is None:
            return json_response({"object": "list", "data": [_model(alias) for alias in self._state.routes.aliases]})
        self._state.routes.resolve(wanted)
        return json_response(_model(wanted))

    async def health(self, _request: Request) -> Response:
        """Alive, and how busy."""
        state = self._state
        return json_response({"status": "ok", "paused": not state.gate.is_set(), "in_flight": len(state.running)})

    def _named(self, request: Request) -> tuple[str, int]:
        """The attempt the evaluator names in the URL; one that was closed long ago is in the store alone."""
        self._state.door.require_evaluator(read_headers(request.scope))
        return request.path_params["rollout_id"], request.path_params["attempt"]

    async def _record(self, rollout_id: str, attempt: int | None) -> RolloutRecord:
        record = await asyncio.to_thread(self._state.store.rollout, rollout_id, attempt)
        if record is None:
            raise EngineError(f"There is no rollout {rollout_id!r}", status=404, code="rollout_not_found")
        return record

    def _describe(self, record: RolloutRecord) -> dict[str, Any]:
        """Runs in a thread: it reads the store."""
        store, key = self._state.store, (record.rollout_id, record.attempt)
        entry = self._state.book.find(*key)
        rewards = store.rewards(*key)
        return {
            "rollout_id": record.rollout_id,
            "attempt": record.attempt,
            "task_id": record.task_id,
            "group_id": record.group_id,
            "phase": record.phase,
            "step": record.step,
            "status": record.status,
            "error": record.error,
            "open": entry is not None and not entry.closed,
            "calls": len(store.calls(*key)),
            "rewards": [{"name": r.name, "value": r.value, "call_id": r.call_id, "source": r.source} for r in rewards],
        }


def _ending(body: FinishBody, *, sampled: bool, rewarded: bool) -> RolloutStatus:
    """How an attempt really ended: success needs a sampled token and a reward."""
    status = RolloutStatus(body.status)
    if status is not RolloutStatus.SUCCEEDED:
        return status
    if not sampled:
        return RolloutStatus.NO_CALL
    return status if rewarded else RolloutStatus.NO_REWARD


def _model(alias: str) -> dict[str, Any]:
    return {"id": alias, "object": "model", "created": 0, "owned_by": "spangrad"}
