"""A rollout's identity as environment variables: how the runner tells it to a command and how `spangrad.rollout()` finds it there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spangrad.capture._scope import RolloutScope
from spangrad.errors import ConfigError

URL_VARIABLE: Final = "SPANGRAD_URL"
"""Root URL of the gateway."""
KEY_VARIABLE: Final = "SPANGRAD_KEY"
"""The gateway's evaluator key; inside a rollout started by the runner, the rollout's own key."""
_ROLLOUT: Final = "SPANGRAD_ROLLOUT"
_ATTEMPT: Final = "SPANGRAD_ATTEMPT"
_TASK_ID: Final = "SPANGRAD_TASK_ID"
_BASE_URL: Final = "SPANGRAD_BASE_URL"


def scope_to_environment(scope: RolloutScope) -> dict[str, str]:
    """What a process of its own needs to run as this rollout, for any OpenAI client and for spangrad."""
    return {
        "OPENAI_BASE_URL": scope.base_url,
        "OPENAI_API_BASE": scope.base_url,  # older clients read this one, and LangChain prefers it
        "OPENAI_API_KEY": scope.api_key,
        URL_VARIABLE: scope.gateway_url,
        KEY_VARIABLE: scope.api_key,
        _ROLLOUT: scope.rollout_id,
        _ATTEMPT: str(scope.attempt),
        _TASK_ID: scope.task_id,
        _BASE_URL: scope.base_url,
    }


def scope_from_environment(environ: Mapping[str, str]) -> RolloutScope | None:
    """The rollout this process was started for; None when it was started for none.

    Raises:
        ConfigError: the attempt is no number.
    """
    if not {_ROLLOUT, _ATTEMPT, _TASK_ID, _BASE_URL, KEY_VARIABLE, URL_VARIABLE} <= environ.keys():
        return None
    if not environ[_ATTEMPT].isdecimal():
        raise ConfigError(f"{_ATTEMPT} is {environ[_ATTEMPT]!r}, not a number", cure="Leave it as the runner set it")
    return RolloutScope(
        rollout_id=environ[_ROLLOUT],
        attempt=int(environ[_ATTEMPT]),
        task_id=environ[_TASK_ID],
        base_url=environ[_BASE_URL],
        api_key=environ[KEY_VARIABLE],
        gateway_url=environ[URL_VARIABLE],
    )
