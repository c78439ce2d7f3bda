"""Where a call's prompt came from, in words and tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spangrad.transitions import Call, Continuity

_SHOWN_TOKENS: Final = 6
_WHY: Final[Mapping[Continuity, str]] = {
    Continuity.RETOKENISED: "its answer, rendered anew, would have other tokens",
    Continuity.RESPELLED: "its answer, rendered anew, would be written otherwise",
    Continuity.TEMPLATE: "the chat template writes earlier turns otherwise now",
    Continuity.STOP_STRING: "the answer was cut before a stop string",
    Continuity.END_TOKEN: "the answer ended with another token than the template ends turns with",
    Continuity.CONTROL_TOKENS: "control tokens were sampled in the midst of the answer",
    Continuity.NEW_SYSTEM: "the system message is another one",
    Continuity.OTHER_TOOLS: "other tools are offered",
    Continuity.SHORTENED: "earlier messages were left out",
    Continuity.EDITED_HISTORY: "earlier messages were edited",
    Continuity.EDITED_ANSWER: "the answer was edited",
}


@dataclass(frozen=True, slots=True)
class PromptOrigin:
    """How a call's prompt relates to the calls before it; see `spangrad.transitions.Continuation`."""

    continuity: str
    continued_from: str | None
    compared_with: str | None
    differs_at: int | None
    before: str
    """Text of a few tokens of the call it is compared with, from `differs_at` on; empty where it has none there."""
    now: str
    """Text of the prompt's own tokens there."""

    def lines(self) -> list[str]:
        """For people; nothing where there is nothing to say."""
        kind = Continuity(self.continuity)
        if kind is Continuity.ENDPOINT:
            return []
        if kind is Continuity.FIRST:
            return ["new prompt"]
        begun = "new prompt" if self.continued_from is None else f"goes on from call {self.continued_from}"
        if kind is Continuity.EXTENDED:
            return [begun]
        if kind.goes_on:
            return [f"{begun}; {_WHY[kind]} from token {self.differs_at} on: {self.now!r}"]
        changed = f"{self.before!r} -> {self.now!r}"
        return [f"{begun}, not from call {self.compared_with}: {_WHY[kind]}, at token {self.differs_at}: {changed}"]


def prompt_origin(call: Call, calls: Mapping[str, Call], decode: Callable[[Sequence[int]], str]) -> PromptOrigin | None:
    """The origin of a call's prompt; None where the store does not know it.

    Args:
        call: the call.
        calls: those of its attempt by id.
        decode: token ids -> text.
    """
    known = call.continuation
    if known is None:
        return None
    before = now = ""
    if known.differs_at is not None:
        now = decode(_piece(call.prompt_ids or (), known.differs_at))
        earlier = calls.get(known.compared_with or "")
        if earlier is not None and not known.continuity.goes_on:
            before = decode(_piece(_compared(earlier, call), known.differs_at))
    return PromptOrigin(
        continuity=known.continuity.value,
        continued_from=known.continued_from,
        compared_with=known.compared_with,
        differs_at=known.differs_at,
        before=before,
        now=now,
    )


def _compared(earlier: Call, call: Call) -> tuple[int, ...]:
    """Prompt and answer of an earlier call: that of its answers that has most in common with the prompt."""
    prompt = call.prompt_ids or ()
    answers = [(*(earlier.prompt_ids or ()), *(choice.token_ids or ())) for choice in earlier.choices]
    return max(answers, key=lambda ids: _common(ids, prompt), default=())


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal tokens they begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _piece(ids: Sequence[int], at: int) -> Sequence[int]:
    return ids[at : at + _SHOWN_TOKENS]
