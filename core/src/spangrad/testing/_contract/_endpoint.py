"""What an integration's tests build their agents against."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass
class ContractEndpoint:
    """An OpenAI-compatible server on this machine, as a program that knows nothing of spangrad would be told of it."""

    base_url: str
    """Up to and including `/v1`; it names no rollout."""
    api_key: str
    """Any text; it is no rollout's key."""
    model: str = "policy"
    """The model the agents ask for: the policy being trained."""
    judge: str = "judge"
    """A frozen model, for guardrails and judges."""
    _closings: list[Callable[[], Awaitable[object] | object]] = field(default_factory=list)

    def on_close(self, close: Callable[[], Awaitable[object] | object]) -> None:
        """Has something closed at the end of the test, in its event loop; the last first."""
        self._closings.append(close)

    async def close(self) -> None:
        """Closes what was left to be closed."""
        while self._closings:
            closed = self._closings.pop()()
            if inspect.isawaitable(closed):
                await closed
