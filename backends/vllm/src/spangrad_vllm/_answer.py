"""An answer while it is drawn, by one server after the other where it has to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spangrad.backend import AnswerText, FinishReason, SampleDelta, SampleRequest

_STRIDE = 1_000_003
"""Between the seeds of an answer's parts: with the same seed a part would repeat the random numbers of the one before."""


class Answer:
    """What has been drawn of one choice, from which it can be gone on with anywhere: its tokens are all there is to it.

    Where it ends is decided here, so it does not matter whether a server that broke off had said so already.

    Args:
        request: what was asked for.
        choice: which of its answers this is.
        decode: text of some ids, special tokens left out.
        end_ids: ids that end an answer.
        most: tokens it may have at most.
    """

    def __init__(
        self,
        request: SampleRequest,
        choice: int,
        *,
        decode: Callable[[Sequence[int]], str],
        end_ids: frozenset[int],
        most: int,
    ) -> None:
        self._request = request
        self._choice = choice
        self._end_ids = end_ids
        self._most = most
        self._text = AnswerText(decode, request.params.stop)
        self._ids: list[int] = []
        self.finished = False

    @property
    def drawn(self) -> int:
        """Tokens so far."""
        return len(self._ids)

    def rest(self) -> SampleRequest:
        """The request that draws what is missing."""
        params = self._request.params
        seed = params.seed
        if seed is not None:
            seed = (seed + self._choice + _STRIDE * self.drawn) % 2**63
        missing = dataclasses.replace(params, max_tokens=self._most - self.drawn, seed=seed)
        prompt = (*self._request.prompt_ids, *self._ids)
        return SampleRequest(prompt, missing, self._request.top_logprobs, choices=1)

    def add(self, delta: SampleDelta, version: int) -> SampleDelta | None:
        """What a server's piece of the rest adds, with the answer's own text; None where that is nothing.

        Args:
            delta: of the request that `rest` gave.
            version: of the weights that drew it.
        """
        reason: FinishReason | None = None
        text = ""
        taken = 0
        for token in delta.token_ids:
            taken += 1
            self._ids.append(token)
            ends = token in self._end_ids
            text += "" if ends else self._text.push(token)
            if ends or self._text.stopped:
                reason = "stop"
            elif self.drawn >= self._most:
                reason = "length"
            if reason is not None:
                break
        reason = reason or delta.finish_reason
        if reason is not None:
            self.finished = True
            text += self._text.finish()
            reason = "stop" if self._text.stopped else reason
        if not taken and reason is None:
            return None
        return SampleDelta(
            choice=self._choice,
            token_ids=delta.token_ids[:taken],
            logprobs=delta.logprobs[:taken],
            text=text,
            policy_version=version,
            finish_reason=reason,
            top_logprobs=delta.top_logprobs[:taken],
        )
