"""The answers of one rollout's attempt that later calls may go on from."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

from spangrad.gateway._conversation import Conversation
from spangrad.transitions import Continuity

_MOST_TOKENS: Final = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """One answer of a call, with its tokens."""

    call_id: str
    engine: str
    shown: bytes
    messages: tuple[bytes, ...]
    """Fingerprints of the prompt's messages."""
    systems: int
    """How many of them are the system's."""
    asked: bytes
    """Fingerprint of the prompt's conversation."""
    answer: bytes
    """Fingerprint of the answer by itself."""
    whole: bytes
    """Fingerprint of the conversation with the answer."""
    prompt_ids: array[int]
    sampled_ids: array[int]
    """The end-of-turn id included, if it was sampled."""
    opening: str
    """The text the answer was made to begin with, part of the prompt."""
    opening_ids: int
    """With how many ids the prompt says so."""
    begins: int
    """Hash of the prompt's written text, without the opening."""
    finish_reason: str | None
    """The sampler's word: stop or length."""

    @property
    def tokens(self) -> int:
        """How many it holds."""
        return len(self.prompt_ids) + len(self.sampled_ids)


class Branches:
    """All open branches of an attempt: parallel and nested agents, retries, several choices. Used on the gateway's loop only.

    Looking up takes as long as there are messages, however many calls there were before.

    Args:
        most_tokens: how many tokens are kept, of 4 bytes each; the answers given first are forgotten first.
    """

    def __init__(self, most_tokens: int = _MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._tokens = 0
        self._closed = False
        self._kept: dict[Answered, None] = {}
        self._by_whole: dict[bytes, Answered] = {}
        self._by_asked: dict[bytes, Answered] = {}
        self._by_answer: dict[tuple[str, bytes], Answered] = {}

    @property
    def tokens(self) -> int:
        """How many are kept."""
        return self._tokens

    def keep(self, answered: Answered) -> None:
        """Remembers an answer; of several with one meaning the latest counts. Does nothing once the attempt is closed."""
        if self._closed:
            return
        self._kept[answered] = None
        self._tokens += answered.tokens
        self._by_whole[answered.whole] = answered
        self._by_asked[answered.asked] = answered
        self._by_answer[answered.engine, answered.answer] = answered
        while self._tokens > self._most_tokens:
            self._forget(next(iter(self._kept)))

    def continued(self, conversation: Conversation) -> list[tuple[int, Answered]]:
        """The answers the conversation goes on from, the latest first, each with the place of its message."""
        found = ((at, self._by_whole.get(conversation.chain[at + 1])) for at in conversation.answers)
        return [(at, answered) for at, answered in found if answered is not None]

    def obstacle(self, conversation: Conversation, since: int) -> tuple[Continuity, Answered] | None:
        """Why the conversation does not go on from a later answer than `continued` finds.

        Args:
            conversation: of the call.
            since: place of the latest answer it goes on from; -1 without one.

        Returns:
            The reason, and the earlier call; None if it repeats no other answer.
        """
        later = [at for at in conversation.answers if at > since]
        for at in later:
            if (answered := self._by_answer.get((conversation.engine, conversation.digests[at]))) is not None:
                return _difference(conversation, at, answered), answered
        for at in later:
            if (answered := self._by_asked.get(conversation.chain[at])) is not None:
                return Continuity.EDITED_ANSWER, answered
        return None

    def close(self) -> None:
        """Forgets everything, for good."""
        self._closed = True
        self._tokens = 0
        self._kept.clear()
        self._by_whole.clear()
        self._by_asked.clear()
        self._by_answer.clear()

    def _forget(self, answered: Answered) -> None:
        del self._kept[answered]
        self._tokens -= answered.tokens
        if self._by_whole.get(answered.whole) is answered:
            del self._by_whole[answered.whole]
        if self._by_asked.get(answered.asked) is answered:
            del self._by_asked[answered.asked]
        if self._by_answer.get((answered.engine, answered.answer)) is answered:
            del self._by_answer[answered.engine, answered.answer]


def _difference(conversation: Conversation, at: int, answered: Answered) -> Continuity:
    """What is other about the messages before a known answer than when it was given."""
    mine, systems = conversation.digests[:at], conversation.systems
    if mine[:systems] != answered.messages[: answered.systems]:
        return Continuity.NEW_SYSTEM
    if conversation.shown != answered.shown:
        return Continuity.OTHER_TOOLS
    remaining = iter(answered.messages)
    left_out = all(message in remaining for message in mine)
    return Continuity.SHORTENED if left_out else Continuity.EDITED_HISTORY
