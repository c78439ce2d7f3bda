"""The SDK's own way to send one run's calls somewhere: a `RunConfig`."""

from __future__ import annotations

from dataclasses import replace

from agents import RunConfig
from agents.models.multi_provider import MultiProvider

from spangrad import semconv
from spangrad.capture import Rollout, RolloutScope


def run_config(rollout: Rollout | RolloutScope, base: RunConfig | None = None) -> RunConfig:
    """A run configuration that sends the model calls of a run to a rollout, whichever client or thread makes them.

    Args:
        rollout: what `with spangrad.rollout(...) as r` gives.
        base: your own configuration; all of it is kept but the model provider. A group id that it names is kept too.

    Returns:
        A new configuration. Agents that bring a model object of their own, not a model's name, do not ask the provider.
    """
    scope = rollout.scope if isinstance(rollout, Rollout) else rollout
    config = RunConfig() if base is None else base
    identity = {semconv.ROLLOUT_ID: scope.rollout_id, semconv.ATTEMPT: str(scope.attempt)}
    return replace(
        config,
        model_provider=MultiProvider(openai_base_url=scope.base_url, openai_api_key=scope.api_key),
        trace_metadata={**(config.trace_metadata or {}), **identity},
        group_id=config.group_id or scope.task_id or None,
    )
