"""In which state of its environment an agent makes its calls, as the agent itself names it.

A state belongs to the context it was named in: parallel tasks each have their own, and begin with that of the task which
started them. Plain threads and executors begin with what the OpenTelemetry context holds, as with the rollout's scope.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from opentelemetry import context as otel_context

from spangrad import semconv
from spangrad.capture._reward_value import described, real_number
from spangrad.capture._scope import HEADER_PLAIN, RolloutScope
from spangrad.errors import StateError

LONGEST_STATE: Final = 1000
"""Characters of a state's name. It travels as an HTTP header, which servers limit."""


@dataclass(frozen=True, slots=True)
class AgentState:
    """What a rollout's agent called its state, and how far along it was there."""

    rollout: tuple[str, int]
    """Rollout and attempt that it was named in; it says nothing of another's calls."""
    key: str | None
    """Equal texts mean the same state; None when the agent does not know its state any more."""
    score: float | None

    def headers(self) -> dict[str, str]:
        """As it goes with each request; percent-encoded where it is not plain ASCII."""
        if self.key is None:
            return {}
        headers = {semconv.STATE_HEADER: quote(self.key, safe=HEADER_PLAIN)}
        return headers if self.score is None else {**headers, semconv.SCORE_HEADER: repr(self.score)}


_state: ContextVar[AgentState | None] = ContextVar("spangrad_agent_state", default=None)
_OTEL_KEY = otel_context.create_key("spangrad-agent-state")


def enter_state(scope: RolloutScope, key: str | None, score: object = None) -> None:
    """Names the state of the running code's context, from here on.

    Args:
        scope: the rollout.
        key: see `checked_state`; None takes the state back.
        score: see `checked_score`.

    Raises:
        StateError: one of them cannot be recorded; the state stays what it was.
    """
    if key is None and score is not None:
        raise StateError("A score was given without a state", cure="A score is that of a state: name the state too")
    number = None if score is None else checked_score(score)
    state = AgentState((scope.rollout_id, scope.attempt), None if key is None else checked_state(key), number)
    _state.set(state)
    # Never detached: what holds for the rest of the context ends with it.
    otel_context.attach(otel_context.set_value(_OTEL_KEY, state))


def current_state(scope: RolloutScope) -> AgentState | None:
    """The state that the running code's context is in; None when the rollout's agent has named none."""
    state = _state.get()
    if state is None:
        mirrored = otel_context.get_value(_OTEL_KEY)
        state = mirrored if isinstance(mirrored, AgentState) else None
    return state if state is not None and state.rollout == (scope.rollout_id, scope.attempt) else None


def checked_state(key: object) -> str:
    """The name of a state.

    Raises:
        StateError: it is no text, empty, too long, or no text that UTF-8 can carry.
    """
    if not isinstance(key, str):
        raise StateError(f"The state {described(key)} is no text", cure="Name a state by a text: repr(state) may do")
    if not key:
        raise StateError("The state is an empty text", cure="Name no state where none is known")
    if len(key) > LONGEST_STATE:
        raise StateError(
            f"The state {key[:40]!r}... has {len(key)} characters, more than {LONGEST_STATE}",
            cure="Name a state by what tells it from others, such as a hash of it",
        )
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise StateError(f"The state {key[:80]!r} holds half of a surrogate pair", cure="Correct the text") from error
    return key


def checked_score(score: object) -> float:
    """How far along the agent is.

    Raises:
        StateError: it is no finite real number.
    """
    number = real_number(score)
    if number is None or not math.isfinite(number):
        shown = described(score) if number is None else number
        raise StateError(f"The score of a state is {shown}, not a finite number", cure="Give a finite int or float")
    return number
