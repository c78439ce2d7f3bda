"""`spangrad.rollout()`: the block that makes a piece of the user's program a rollout."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from types import TracebackType

from spangrad.capture._handle import Rollout
from spangrad.capture._remote import RemoteRollout
from spangrad.capture._scope import RolloutScope, current_scope, use_scope


def rollout(task_id: str | None = None, *, group_id: str | None = None) -> RolloutBlock:
    """Makes the block under it one rollout of an agent.

    Inside a rollout that is already under way (the runner's, or an outer block's) it joins that one, whose task it then is;
    so it does in a process that the runner started for a rollout.
    Otherwise the rollout is opened at the gateway of SPANGRAD_URL with its evaluator key of SPANGRAD_KEY.

    An exception of the block's own passes through unchanged, and the rollout is recorded as failed.

    Args:
        task_id: the task the agent is run on.
        group_id: names the rollouts that are to be compared with each other; by default those of one task.

    Returns:
        A block for `with` or `async with`. Entering it, and leaving it where nothing else went wrong, raises `GatewayError`
        if there is no gateway or it refuses, and `TaskError` for an id that cannot be one.
    """
    return RolloutBlock(task_id, group_id)


class RolloutBlock(AbstractContextManager[Rollout], AbstractAsyncContextManager[Rollout]):
    """What `spangrad.rollout()` returns; to be entered once."""

    def __init__(self, task_id: str | None, group_id: str | None) -> None:
        self._task_id = task_id
        self._group_id = group_id
        self._stack = ExitStack()
        self._remote: RemoteRollout | None = None

    def __enter__(self) -> Rollout:
        if (scope := current_scope()) is None:
            scope = self._reach()
        return self._enter(scope)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._remote is not None:
            self._remote.finish(error)

    async def __aenter__(self) -> Rollout:
        if (scope := current_scope()) is None:
            scope = await asyncio.to_thread(self._reach)
        return self._enter(scope)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._remote is not None:
            await asyncio.to_thread(self._remote.finish, error)

    def _reach(self) -> RolloutScope:
        """The rollout this process was started for, or else a new one."""
        from spangrad.capture._process import join_from_environment  # noqa: PLC0415 - it loads plug-ins

        if (scope := join_from_environment()) is not None:
            return scope
        self._remote = RemoteRollout.open(self._task_id, self._group_id)
        return self._remote.scope

    def _enter(self, scope: RolloutScope) -> Rollout:
        if self._remote is not None:  # inside a runner's rollout the integrations are attached already
            from spangrad.plugins import load_plugins  # noqa: PLC0415 - who only imports this should not wait for it

            self._stack.enter_context(load_plugins().attached())
        self._stack.enter_context(use_scope(scope))
        return Rollout(scope)
