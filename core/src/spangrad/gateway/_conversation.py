"""A call's messages with fingerprints, by which the gateway finds the earlier call they go on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from spangrad.backend import Message
from spangrad.gateway._message_meaning import digest, message_digest

_SYSTEM = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """What a model is shown in one call."""

    engine: str
    """Name of the engine that is asked."""
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    shown: bytes
    """Fingerprint of the engine and the tools: nothing can be gone on from where these differ."""
    digests: tuple[bytes, ...]
    """Fingerprint of each message by itself."""
    chain: tuple[bytes, ...]
    """One more than messages: fingerprint of the engine, the tools and the first 0, 1, 2 ... messages."""

    @classmethod
    def of(cls, engine: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Conversation:
        """Takes the fingerprints, in time that grows with the messages' length."""
        shown = digest([engine, tools])
        digests = tuple(map(message_digest, messages))
        chain = tuple(accumulate(digests, lambda before, message: digest(None, before, message), initial=shown))
        return cls(engine, messages, tools, shown, digests, chain)

    def answered(self, answer: Message) -> tuple[bytes, bytes]:
        """Fingerprints of an answer by itself, and of the conversation with it."""
        alone = message_digest(answer)
        return alone, digest(None, self.chain[-1], alone)

    @property
    def answers(self) -> list[int]:
        """Where an assistant's messages stand, the latest first."""
        return [at for at in reversed(range(len(self.messages))) if self.messages[at].get("role") == "assistant"]

    @property
    def systems(self) -> int:
        """How many system messages it begins with."""
        roles = (message.get("role") for message in self.messages)
        return next((at for at, role in enumerate(roles) if role not in _SYSTEM), len(self.messages))
