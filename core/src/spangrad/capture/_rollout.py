"""`spangrad.rollout()`: the block that makes a piece of the user's program a rollout."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from spangrad import semconv
from spangrad.capture._environment import KEY_VARIABLE, URL_VARIABLE, scope_from_environment
from spangrad.capture._gateway_client import GatewayClient
from spangrad.capture._handle import Rollout
from spangrad.capture._reward_list import RewardList
from spangrad.capture._scope import RolloutScope, current_scope, use_scope
from spangrad.capture._tracing import deliver_spans
from spangrad.errors import GatewayError
from spangrad.spans import Span, from_readable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_logger = logging.getLogger("spangrad.capture")


def rollout(task_id: str = "", *, group_id: str | None = None) -> RolloutBlock:
    """Makes the block under it one rollout of an agent.

    Inside a rollout that is already under way (the runner's, or an outer block's) it joins that one, whose task it then is.
    Otherwise the rollout is opened at the gateway of SPANGRAD_URL with its evaluator key of SPANGRAD_KEY.

    An exception of the block's own passes through unchanged and the rollout is recorded as failed.

    Args:
        task_id: the task the agent is run on, where several rollouts of one task are to be compared.
        group_id: the rollouts that are compared; by default those of one task.

    Raises (on entering the block, and on leaving it where nothing else went wrong):
        GatewayError: there is no gateway, or it refuses.
    """
    return RolloutBlock(task_id, group_id)


class RolloutBlock(AbstractContextManager[Rollout], AbstractAsyncContextManager[Rollout]):
    """What `spangrad.rollout()` returns; enter it once, with `with` or `async with`."""

    def __init__(self, task_id: str, group_id: str | None) -> None:
        self._task_id = task_id
        self._group_id = group_id
        self._stack = ExitStack()
        self._remote: _RemoteRollout | None = None

    def __enter__(self) -> Rollout:
        scope = current_scope()
        if scope is None and (scope := scope_from_environment(os.environ)) is None:
            self._remote = _RemoteRollout(self._task_id, self._group_id)
            scope = self._remote.scope
        self._stack.enter_context(use_scope(scope))
        return Rollout(scope)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
        if self._remote is not None:
            self._remote.finish(error)

    async def __aenter__(self) -> Rollout:
        if current_scope() is None and scope_from_environment(os.environ) is None:
            self._remote = await asyncio.to_thread(_RemoteRollout, self._task_id, self._group_id)
            self._stack.enter_context(use_scope(self._remote.scope))
            return Rollout(self._remote.scope)
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._remote is not None:
            await asyncio.to_thread(self._remote.finish, error)


class _RemoteRollout:
    """A rollout opened at a gateway over HTTP."""

    def __init__(self, task_id: str, group_id: str | None) -> None:
        url = os.environ.get(URL_VARIABLE)
        if not url:
            raise GatewayError(
                "There is no gateway to run this rollout against",
                cure=f"Start one with `spangrad gateway` and set {URL_VARIABLE} and {KEY_VARIABLE} to what it prints",
            )
        self._gateway = GatewayClient(url, os.environ.get(KEY_VARIABLE, ""))
        self._rewards: RewardList
        self._spans: list[Span] = []
        self._open = ExitStack()
        with ExitStack() as stack:
            stack.callback(self._gateway.close)
            self.scope = self._opened(url, task_id, group_id)
            stack.enter_context(deliver_spans(self._keep))
            self._open = stack.pop_all()

    def _opened(self, url: str, task_id: str, group_id: str | None) -> RolloutScope:
        opened = self._gateway.open(task_id=task_id or None, group_id=group_id)
        self._rewards = RewardList(str(opened["rollout_id"]))
        return RolloutScope(
            rollout_id=str(opened["rollout_id"]),
            attempt=int(opened["attempt"]),
            task_id=task_id,
            base_url=str(opened["base_url"]),
            api_key=str(opened["api_key"]),
            gateway_url=url.rstrip("/"),
            reward_sink=self._rewards,
        )

    def _keep(self, spans: Sequence[ReadableSpan]) -> None:
        key = (self.scope.rollout_id, self.scope.attempt)
        self._spans += [s for s in map(from_readable, spans) if (s.rollout_id, s.attempt) == key]

    def finish(self, error: BaseException | None) -> None:
        """Sends what there is and ends the rollout; an error of the user's block comes before one of the gateway's.

        Raises:
            GatewayError: the gateway cannot be reached or refuses, and `error` is None.
        """
        try:
            self._deliver(error)
        except GatewayError as trouble:
            if error is None:
                raise
            _logger.warning("Rollout %s is not recorded: %s", self.scope.rollout_id, trouble)
