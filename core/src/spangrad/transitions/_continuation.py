"""Whether a call's prompt went on from the tokens of an earlier call, and if not, why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Continuity(StrEnum):
    """How a call's prompt relates to the calls of its rollout's attempt before it."""

    FIRST = "first"
    """It repeats no answer of an earlier call: there is nothing to go on from."""
    EXTENDED = "extended"
    """It is an earlier call's prompt and sampled tokens, and what was added; rendered anew it would have the same tokens."""
    RETOKENISED = "retokenised"
    """The same, where the earlier answer's text, rendered anew, would have other tokens than those that were sampled."""
    RESPELLED = "respelled"
    """The same, where the template would write the earlier answer in another way that means the same."""
    TEMPLATE = "template"
    """Rendered anew: the chat template writes earlier turns otherwise once there are later ones (it drops thinking ...)."""
    STOP_STRING = "stop_string"
    """Rendered anew: the earlier answer was cut before a stop string, whose tokens were sampled."""
    END_TOKEN = "end_token"
    """Rendered anew: the earlier answer ended with another token than the template closes a turn with."""
    CONTROL_TOKENS = "control_tokens"
    """Rendered anew: control tokens were sampled in the midst of the earlier answer, and its message does not show them."""
    NEW_SYSTEM = "new_system"
    """Rendered anew: the system message is another one than in the call that gave the answer."""
    OTHER_TOOLS = "other_tools"
    """Rendered anew: other tools are offered than in the call that gave the answer."""
    SHORTENED = "shortened"
    """Rendered anew: messages before the answer were left out."""
    EDITED_HISTORY = "edited_history"
    """Rendered anew: messages before the answer were changed."""
    EDITED_ANSWER = "edited_answer"
    """Rendered anew: the answer itself was changed by the agent."""
    ENDPOINT = "endpoint"
    """The prompt was rendered by an endpoint, which takes messages and not tokens."""

    @property
    def goes_on(self) -> bool:
        """The prompt begins with all tokens of the earlier call."""
        return self in _GOING_ON

    @property
    def drifts(self) -> bool:
        """Rendering the prompt anew does not give the tokens of the earlier call."""
        return self not in {Continuity.FIRST, Continuity.EXTENDED, Continuity.ENDPOINT}


_GOING_ON = frozenset({Continuity.EXTENDED, Continuity.RETOKENISED, Continuity.RESPELLED})


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where a call's prompt came from."""

    continuity: Continuity
    continued_from: str | None = None
    """Id of the call with whose tokens the prompt begins: prompt and one sampled answer. Where the latest one cannot be gone
    on from it may be one before that."""
    compared_with: str | None = None
    """Id of the call that gave the latest answer in the messages, which the prompt goes on from or should have."""
    differs_at: int | None = None
    """Of a prompt that drifts: position of its first token that is another one than the same rendering, or the call it is
    compared with, has there; counted from the beginning of the prompt."""


def continuation_figures(continuations: Iterable[Continuation | None]) -> dict[str, Any]:
    """How far calls went on from the tokens of earlier ones.

    Args:
        continuations: one for each call; None for a call whose engine does not say.

    Returns:
        `merge_rate`: the share that began with all tokens of an earlier call, of the calls that repeat an answer (None without
        any). `drift_rate`: of the same calls, the share of each reason for which a new rendering has other tokens.
        `calls`: how many there were of each kind.
    """
    counts = Counter(known.continuity for known in continuations if known is not None)
    repeating = {kind: n for kind, n in counts.items() if kind not in {Continuity.FIRST, Continuity.ENDPOINT}}
    total = sum(repeating.values())
    merged = sum(n for kind, n in repeating.items() if kind.goes_on)
    return {
        "merge_rate": merged / total if total else None,
        "drift_rate": {kind.value: n / total for kind, n in sorted(repeating.items()) if kind.drifts},
        "calls": {kind.value: n for kind, n in sorted(counts.items())},
    }
