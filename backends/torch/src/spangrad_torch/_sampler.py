"""The torch sampler: takes requests from any event loop, draws in one worker thread, hands deltas back as they come.

`paused()` is how the learner keeps the two from using the weights at once: inside it no forward pass runs; on leaving, keys
and values of the old weights are dropped, and answers under way are computed anew up to where they were before they go on.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import torch

from spangrad.backend import AnswerText, FinishReason, SampleDelta, SampleRequest
from spangrad.errors import BackendError
from spangrad_torch._decoder import Decoder, Row
from spangrad_torch._decoder_check import check_model
from spangrad_torch._drawing import DrawnToken
from spangrad_torch._model import LoadedModel
from spangrad_torch._stems import COST

_Item = SampleDelta | BackendError


@dataclass(eq=False)
class _Job:
    """A request, and where its deltas go."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[_Item]
    rows: list[Row] = field(default_factory=list)


class TorchSampler:
    """Continuous batching over one model; implements `spangrad.backend.Sampler`.

    Args:
        loaded: the model; shared with the learner, which changes its weights in place while the sampler is paused.
        max_rows: most answers drawn at a time.
        prefix_cache_mb: memory for keys and values of prompts seen before.
        threads: torch threads of the worker; None leaves torch's default.
        autocast: compute in this lower precision while the weights stay as they are.
        seed: where requests without a seed get theirs from.

    Raises:
        BackendError: the model is of a kind that cannot be sampled this way; see `check_model`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_rows: int = 64,
        prefix_cache_mb: int = 256,
        threads: int | None = None,
        autocast: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        self._loaded = loaded
        self._threads = threads
        self._seeds = random.Random(seed)
        self._decoder = Decoder(
            loaded.model,
            max_rows=max_rows,
            prefix_cache_bytes=prefix_cache_mb << 20,
            autocast=autocast,
            stem_cost=COST if check_model(loaded.model) else None,
        )
        self._vocabulary = int(loaded.model.config.get_text_config().vocab_size)
        self._changed = threading.Condition()
        """Guards everything below down to `_outbox`, which only the worker touches."""
        self._new: list[_Job] = []
        self._jobs: set[_Job] = set()
        self._pauses: list[Future[None]] = []
        """One for each pause asked for and not left; the worker resolves it when it rests."""
        self._stale = False
        """A pause has ended since the last step."""
        self._closed = False
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[_Job, _Item]]] = defaultdict(list)
        self.policy_version = 0
        """Stamped on every token from the next step on; set it inside `paused()`, where the weights change."""
        self._worker = threading.Thread(target=self._work, name="spangrad-sampler", daemon=True)
        self._worker.start()

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its answer may have together."""
        return self._loaded.context_length

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens computed so far; those read from the prefix cache or shared within a group are not in it."""
        return self._decoder.prefilled_tokens

    async def sample(self, request: SampleRequest) -> AsyncGenerator[SampleDelta, None]:
        """Draws the request's choices, yielding as tokens are sampled; closing the iterator stops the work.

        Raises:
            BackendError: the prompt is empty, holds an id the model does not have, or leaves no room in its context; a
                parameter is out of range; sampling failed; the sampler is closed.
        """
        self._check(request)
        job = _Job(asyncio.get_running_loop(), asyncio.Queue())
        job.rows = [self._row(job, request, choice) for choice in range(request.choices)]
        with self._changed:
            self._refuse_when_closed()
            self._jobs.add(job)
            self._new.append(job)
            self._changed.notify_all()
        try:
            unfinished = request.choices
            while unfinished:
                item = await job.queue.get()
                if isinstance(item, BackendError):
                    raise item
                unfinished -= item.finish_reason is not None
                yield item
        finally:
            with self._changed:
                self._jobs.discard(job)
                for row in job.rows:
                    row.gone = True

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Waits for the step in flight; no forward pass runs inside. Requests are held meanwhile and then go on.

        Raises:
            BackendError: the sampler is closed.
        """
        rests: Future[None] = Future()
        with self._changed:
            self._refuse_when_closed()
            self._pauses.append(rests)
            self._changed.notify_all()
        try:
            await asyncio.wrap_future(rests)
            yield
        finally:
            with self._changed:
                self._pauses.remove(rests)
                self._stale = True
                self._changed.notify_all()

    def changed(self, version: int) -> None:
        """Its weights are of that version from here on; called inside `paused()`."""
        self.policy_version = version

    async def take(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Nothing: the learner's weights are its own."""

    async def close(self) -> None:
        """Stops the worker; answers under way fail with BackendError. Closing twice is harmless."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        await asyncio.to_thread(self._worker.join)

    def _check(self, request: SampleRequest) -> None:
        """Refuses what cannot be drawn."""
        prompt, params = request.prompt_ids, request.params
        if not prompt:
            raise BackendError("The prompt is empty")
        if len(prompt) >= self.context_length:
            raise BackendError(
                f"The prompt has {len(prompt)} tokens and leaves no room in the model's context of {self.context_length}",
                cure="Shorten the conversation or choose a model with a longer context",
            )
        if min(prompt) < 0 or max(prompt) >= self._vocabulary:
            raise BackendError(f"The prompt holds token ids the model does not have (it has {self._vocabulary})")
        wrong = [
            f"{name} must be {rule}"
            for name, rule, fine in (
                ("temperature", "a number, 0 or more", 0 <= params.temperature < math.inf),
                ("top_p", "above 0 and at most 1", 0 < params.top_p <= 1),
                ("top_k", "0 or more", params.top_k >= 0),
                ("max_tokens", "1 or more", params.max_tokens >= 1),
                ("choices", "1 or more", request.choices >= 1),
                ("top_logprobs", "0 or more", request.top_logprobs >= 0),
            )
            if not fine
        ]
        if wrong:
            raise BackendError("; ".join(wrong))

    def _refuse_when_closed(self) -> None:
        """Raises BackendError when nothing will be drawn any more."""
        if self._closed:
            raise BackendError("The sampler is closed")

    def _row(self, job: _Job, request: SampleRequest, choice: int) -> Row:
        """The row of one choice of a request."""
        params = request.params
        seed = self._seeds.getrandbits(63) if params.seed is None else params.seed + choice
        text = AnswerText(lambda ids: self._loaded.chat_format.decode(ids, skip_special=True), params.stop)
        most = min(params.max_tokens, self.context_length - len(request.prompt_ids))
        taken = 0

        def take(token: DrawnToken) -> bool:
            nonlocal taken
            taken += 1
            ends = token.token_id in self._loaded.end_ids
            piece = "" if ends else text.push(token.token_id)
            reason: FinishReason | None = None
            if ends or text.stopped:
                reason = "stop"
            elif taken >= most:
                reason = "length"
            if reason is not None:
                piece += text.finish()
                reason = "stop" if text.stopped else reason
            delta = SampleDelta(
                choice=choice,
                token_ids=(token.token_id,),
                logprobs=(token.logprob,),
                text=piece,
                policy_version=self.policy_version,
                finish_reason=reason,
                top_logprobs=(token.alternatives,) if request.top_logprobs else (),
            )
            self._outbox[job.loop].append((job, delta))
            return reason is None

        return Row(
            ids=list(request.prompt_ids),
            params=params,
            generator=torch.Generator().manual_seed(seed % 2**63),
            top_logprobs=request.top_logprobs,
            take=take,
        )

    def _work(self) -> None:
        """The worker thread: one step after the other, resting while paused or idle."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while self._ready():
            try:
                self._decoder.step()
            except Exception as error:  # noqa: BLE001 - whatever failed, the callers must hear of it and the thread go on
                self._fail(error)
            self._deliver()
        self._fail(None)
        self._deliver()

    def _ready(self) -> bool:
        """Waits until there is a step to make; False when the sampler is closed."""
        with self._changed:
            while not self._closed:
                if self._pauses:
                    for rests in self._pauses:
                        if not rests.done() and rests.set_running_or_notify_cancel():
                            rests.set_result(None)
                else:
                    if self._stale:
                        self._decoder.forget()
                        self._stale = False
                    for job in self._new:
                        self._decoder.add(job.rows)
                    self._new.clear()
                    if self._decoder.busy:
                        return True
                self._changed.wait()
            for rests in self._pauses:
                rests.cancel()
            return False

    def _fail(self, cause: Exception | None) -> None:
        """Ends all answers under way with an error."""
        self._decoder.abandon()
        with self._changed:
            jobs, self._new = self._jobs, []
            self._jobs = set()
        for job in jobs:
            error = BackendError("The sampler was closed before the answer was whole")
            if cause is not None:
                error = BackendError(f"Sampling failed: {type(cause).__name__}: {cause}")
                error.__cause__ = cause
            self._outbox[job.loop].append((job, error))

    def _deliver(self) -> None:
        """Hands what the step brought to the event loops that wait for it."""
        for loop, items in self._outbox.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_put, items)
        self._outbox.clear()


def _put(items: list[tuple[_Job, _Item]]) -> None:
    """Fills the queues; runs in their event loop."""
    for job, item in items:
        job.queue.put_nowait(item)
