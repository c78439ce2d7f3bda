"""Which rollout the code that is running belongs to.

The scope lives in a `ContextVar`, which asyncio tasks and `asyncio.to_thread` carry along, and is mirrored into the
OpenTelemetry context, which opentelemetry-instrumentation-threading also carries into plain threads and executors. A call
made from such a thread is therefore still the rollout's own. A process that was started for one rollout has that one as the
scope of all its code, wherever none of the two says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from string import punctuation
from typing import Final, TypeVar
from urllib.parse import quote

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from spangrad import semconv

HEADER_PLAIN: Final = punctuation.replace("%", "")
"""What stands in a header as it is, besides letters and digits; all else is percent-encoded."""

RewardSink = Callable[[float, str, str | None], None]
"""Takes a validated reward: its value, its name, and the id of the call it rewards (None: the rollout)."""


@dataclass(frozen=True, slots=True)
class RolloutScope:
    """One attempt of one rollout, and how its agent reaches the model."""

    rollout_id: str
    attempt: int
    task_id: str
    base_url: str
    """The attempt's own OpenAI-compatible URL, up to and including `/v1`."""
    api_key: str = field(repr=False)
    """The attempt's own key: it may call the model and send spans for this attempt, nothing else."""
    gateway_url: str = ""
    """The server behind `base_url` (`http://host:port`); a client pointed at any URL below it gets this rollout's identity."""
    agent: str | None = None
    """Which of the rollout's agents is running, where a framework hook has said so."""
    reward_sink: RewardSink | None = field(default=None, repr=False, compare=False)
    """Takes rewards given inside this process; None when they have to go to the gateway."""

    def headers(self) -> dict[str, str]:
        """The identity that goes with each request to the gateway; the call's and the request's own ids are the caller's to add.

        The agent's name is percent-encoded where it is not plain ASCII.
        """
        headers = {semconv.ROLLOUT_HEADER: self.rollout_id, semconv.ATTEMPT_HEADER: str(self.attempt)}
        if self.agent is not None:
            headers[semconv.AGENT_HEADER] = quote(self.agent, safe=HEADER_PLAIN, errors="replace")
        return headers

    def named(self, agent: str | None) -> RolloutScope:
        """The same scope, inside that agent."""
        return replace(self, agent=agent)


_OTEL_KEY = otel_context.create_key("spangrad-rollout-scope")
Current = TypeVar("Current", bound=RolloutScope | None)
_scope: ContextVar[RolloutScope | None] = ContextVar("spangrad_rollout_scope", default=None)
_process_scope: RolloutScope | None = None


def current_scope(otel: Context | None = None) -> RolloutScope | None:
    """The scope the running code belongs to; None outside a rollout.

    Args:
        otel: the OpenTelemetry context to fall back to where the `ContextVar` did not come along; the current one by default.
    """
    if (scope := _scope.get()) is not None:
        return scope
    mirrored = otel_context.get_value(_OTEL_KEY, otel)
    return mirrored if isinstance(mirrored, RolloutScope) else _process_scope


def set_process_scope(scope: RolloutScope | None) -> None:
    """Makes `scope` the one of all code of this process that is in no other; None takes it back."""
    global _process_scope  # noqa: PLW0603 - a process has one
    _process_scope = scope


@contextmanager
def use_scope(scope: Current) -> Iterator[Current]:
    """Makes `scope` the current one for the block and for all tasks and threads started in it.

    With None they belong to no rollout; in a process that was started for one, to that.
    """
    token = _scope.set(scope)
    otel_token = otel_context.attach(otel_context.set_value(_OTEL_KEY, scope))
    try:
        yield scope
    finally:
        # A block left from another context than it was entered in (an async generator closed by the garbage collector) has
        # nothing to restore here: the context that held the scope is gone.
        with suppress(ValueError):
            _scope.reset(token)
            otel_context.detach(otel_token)
