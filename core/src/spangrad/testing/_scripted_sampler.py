"""A sampler that writes what a script says, with ids and log-probabilities a test can check."""

from __future__ import annotations

import codecs
import struct
import zlib
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spangrad.backend import FinishReason, SampleDelta, SampleRequest, SamplingParams
from spangrad.errors import BackendError
from spangrad.testing._byte_chat_format import END, ByteChatFormat


@dataclass(frozen=True)
class ScriptedPrompt:
    """What a script gets to see."""

    ids: tuple[int, ...]
    params: SamplingParams
    choice: int
    """Which of the request's choices, from 0."""
    policy_version: int
    policy: str | None = None
    """Name of the policy asked; None for the model as it was loaded."""

    @cached_property
    def messages(self) -> list[dict[str, str]]:
        """The turns as {"role", "content"}; the tools are a turn of the role "tools"."""
        return ByteChatFormat().read(self.ids)

    @property
    def last(self) -> str:
        """The last message's text."""
        return self.messages[-1]["content"]


Piece = str | Exception | Callable[[], Awaitable[object]]
"""Text to sample, an exception to raise, or something to wait for (a slow model: `lambda: asyncio.sleep(0.1)`)."""
Script = Callable[[ScriptedPrompt], str | Exception | Sequence[Piece]]
"""What to answer. A sequence is worked off in order, and each text in it is one delta."""


def scripted_logprob(prompt_ids: Sequence[int], position: int, token_id: int, policy_version: int) -> float:
    """The log-probability the scripted sampler reports; any mix-up of prompts, positions or versions changes it.

    Args:
        prompt_ids: the prompt.
        position: of the token in the answer, from 0.
        token_id: the sampled id.
        policy_version: that sampled it.

    Returns:
        A multiple of 1/128 in [-8, 0), so that 32-bit floats hold it exactly.
    """
    return _logprob(_checksum(prompt_ids), position, token_id, policy_version)


def _checksum(prompt_ids: Sequence[int]) -> int:
    return zlib.crc32(array("q", prompt_ids).tobytes())


def _logprob(checksum: int, position: int, token_id: int, policy_version: int) -> float:
    mixed = zlib.crc32(struct.pack("<Iqqq", checksum, position, token_id, policy_version))
    return -(mixed % 1024 + 1) / 128


@dataclass
class ScriptedSampler:
    """A `Sampler` over bytes (`ByteChatFormat`): each byte of the scripted text is one sampled id, then the end of the turn.

    `max_tokens` and `stop` are honoured; temperature, top_p, top_k and seed are the script's to read.
    """

    script: Script
    context_length: int = 65536
    policy_version: int = 0
    """Stamped on every token sampled from now on."""
    policy: str | None = None
    """Shown to the script."""
    started: int = field(default=0, init=False)
    """Requests that began."""
    finished: int = field(default=0, init=False)
    """Requests sampled to their end."""
    requests: list[SampleRequest] = field(default_factory=list, init=False)
    """All requests so far."""

    async def sample(self, request: SampleRequest) -> AsyncGenerator[SampleDelta, None]:
        """Draws the request's choices, one after the other.

        Raises:
            BackendError: the prompt leaves no room; or whatever the script says.
        """
        if len(request.prompt_ids) >= self.context_length:
            raise BackendError(f"The prompt's {len(request.prompt_ids)} tokens leave no room in {self.context_length}")
        self.requests.append(request)
        self.started += 1
        for choice in range(request.choices):
            answer = _Answer(request, choice, self.policy_version)
            prompt = ScriptedPrompt(request.prompt_ids, request.params, choice, self.policy_version, self.policy)
            pieces = self.script(prompt)
            for piece in (pieces,) if isinstance(pieces, str | Exception) else pieces:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, str):
                    yield answer.take(piece.encode())
                    if answer.finish_reason:
                        break
                else:
                    await piece()
            if not answer.finish_reason:
                yield answer.end()
        self.finished += 1


class _Answer:
    """One choice on its way: what is sampled, and which of its text is certain."""

    def __init__(self, request: SampleRequest, choice: int, policy_version: int) -> None:
        self.finish_reason: FinishReason | None = None
        self._request = request
        self._choice = choice
        self._version = policy_version
        self._checksum = _checksum(request.prompt_ids)
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def take(self, data: bytes) -> SampleDelta:
        """Samples these bytes one by one, until a limit or a stop string ends the answer."""
        ids: list[int] = []
        for byte in data:
            ids.append(byte)
            self._held += self._decoder.decode(bytes((byte,)))
            if any(stop in self._held for stop in self._request.params.stop):
                self.finish_reason = "stop"
            elif self._position + len(ids) >= self._room:
                self.finish_reason = "length"
            if self.finish_reason:
                break
        return self._delta(ids)

    def end(self) -> SampleDelta:
        """Samples the end of the turn."""
        self.finish_reason = "stop"
        return self._delta([END])

    @property
    def _room(self) -> int:
        return self._request.params.max_tokens

    def _delta(self, ids: list[int]) -> SampleDelta:
        request, first = self._request, self._position
        self._position += len(ids)
        logprobs = tuple(_logprob(self._checksum, first + i, token, self._version) for i, token in enumerate(ids))
        top = tuple(
            tuple(((token + rank) % 256 if rank else token, logprob - rank) for rank in range(request.top_logprobs))
            for token, logprob in zip(ids, logprobs, strict=True)
        )
        return SampleDelta(
            choice=self._choice,
            token_ids=tuple(ids),
            logprobs=logprobs,
            text=self._certain(),
            policy_version=self._version,
            finish_reason=self.finish_reason,
            top_logprobs=top if request.top_logprobs else (),
        )

    def _certain(self) -> str:
        """Text that can be handed out: cut before a stop string, and nothing that may begin one."""
        text, stops = self._held, self._request.params.stop
        if self.finish_reason:
            text += self._decoder.decode(b"", final=True)
            self._held = ""
            return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]
        keep = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]
