"""`spangrad.rollout()`: the block that makes a piece of the user's program a rollout."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Final

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

AD_HOC: Final = "ad-hoc"
"""Task of a rollout that names none."""

_logger = logging.getLogger("spangrad.capture")


def rollout(task_id: str | None = None, *, group_id: str | None = None) -> RolloutBlock:
    """Makes the block under it one rollout of an agent.

    Inside a rollout that is already under way (the runner's, or an outer block's) it joins that one, whose task it then is.
    Otherwise the rollout is opened at the gateway of SPANGRAD_URL with its evaluator key of SPANGRAD_KEY.

    An exception of the block's own passes through unchanged and the rollout is recorded as failed.

    Args:
        task_id: the task the agent is run on.
        group_id: names the rollouts that are to be compared with each other; by default those of one task.

    Raises (on entering the block, and on leaving it where nothing else went wrong):
        GatewayError: there is no gateway, or it refuses.
    """
    return RolloutBlock(task_id, group_id)


class RolloutBlock(AbstractContextManager[Rollout], AbstractAsyncContextManager[Rollout]):
    """What `spangrad.rollout()` returns; enter it once, with `with` or `async with`."""

    def __init__(self, task_id: str | None, group_id: str | None) -> None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def __init__(self, task_id: str | None, group_id: str | None) -> None:
        url = os.environ.get(URL_VARIABLE)
        if not url:
            raise GatewayError(
                "There is no gateway to run this rollout against",
                cure=f"Start one with `spangrad gateway` and set {URL_VARIABLE} and {KEY_VARIABLE} to what it prints",
            )
        self._gateway = GatewayClient(url, os.environ.get(KEY_VARIABLE, ""))
        self._spans: list[Span] = []
        try:
            opened = self._gateway.open(task_id=task_id, group_id=group_id or task_id)
        except BaseException:
            self._gateway.close()
            raise
        self._rewards = RewardList(str(opened["rollout_id"]))
        self.scope = RolloutScope(
            rollout_id=str(opened["rollout_id"]),
            attempt=int(opened["attempt"]),
            task_id=task_id or AD_HOC,
            base_url=str(opened["base_url"]),
            api_key=str(opened["api_key"]),
            gateway_url=url.rstrip("/"),
            reward_sink=self._rewards,
        )
        self._listening = ExitStack()
        self._listening.enter_context(deliver_spans(self._keep))

    def _keep(self, spans: Sequence[ReadableSpan]) -> None:
        key = (self.scope.rollout_id, self.scope.attempt)
        self._spans += [span for span in map(from_readable, spans) if (span.rollout_id, span.attempt) == key]

    def finish(self, error: BaseException | None) -> None:
        """Sends what there is and ends the rollout; an error of the user's block comes before one of the gateway's.

        Raises:
            GatewayError: the gateway cannot be reached or refuses, and `error` is None.
        """
        self._listening.close()
        try:
            self._send_spans()
            for reward in self._rewards.close():
                self._gateway.reward(self.scope.rollout_id, self.scope.attempt, reward)
            status, text = _ending(error)
            self._gateway.finish(self.scope.rollout_id, self.scope.attempt, status, text)
        except GatewayError as trouble:
            if error is None:
                raise
            _logger.warning("The end of rollout %s is not recorded: %s", self.scope.rollout_id, trouble)
        finally:
            self._gateway.close()

    def _send_spans(self) -> None:
        """Sends the spans; without them only the structure is missing, so rewards are not held up by it."""
        if not self._spans:
            return
        try:
            self._gateway.send_spans(self._spans, key=self.scope.api_key)
        except GatewayError as trouble:
            _logger.warning("The spans of rollout %s are not recorded: %s", self.scope.rollout_id, trouble)


def _ending(error: BaseException | None) -> tuple[str, str]:
    """Status and error text of a rollout whose block was left this way."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "succeeded", ""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return ("failed" if isinstance(error, Exception | SystemExit) else "lost"), text
