"""The torch learner: gradients of batches, optimiser steps, and the life of the weights.

All of it runs in one worker thread, so the event loop stays free. The weights are the very tensors the sampler reads: a step
happens while the sampler is paused, and from then on answers are drawn with the new weights. Every step therefore raises the
policy version; `publish` only has to say which it is. A sampler elsewhere has weights of its own, which `publish` replaces.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from spangrad.backend import UpdateBatch, UpdateReport
from spangrad.errors import BackendError
from spangrad.transitions import FloatArray, TransitionBatch
from spangrad_torch._attention import let_attend
from spangrad_torch._batch_check import check_batch
from spangrad_torch._checkpoint import load_state, save_state
from spangrad_torch._export import export_model
from spangrad_torch._flex_attention import attend_by_flex
from spangrad_torch._forward import takes_tree_masks
from spangrad_torch._gradient import accumulate, pack_logprobs, pack_values
from spangrad_torch._memory import release_freed
from spangrad_torch._model import LoadedModel
from spangrad_torch._options import TorchOptions
from spangrad_torch._sums import Sums
from spangrad_torch._trained import Trained
from spangrad_torch._value_loss import critic_of
from spangrad_torch._work import Work, in_rows, lay_out
from spangrad_torch._worker import Worker


class LearnersSampler(Protocol):
    """What the learner needs of the sampler that serves its policy."""

    def paused(self) -> AbstractAsyncContextManager[None]:
        """No forward pass of the learner's weights runs inside; what was computed with the weights before is forgotten after."""
        ...

    def changed(self, version: int) -> None:
        """The learner's weights are of that version now; called inside `paused()`."""
        ...

    async def take(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Draws with these weights, the learner's, from now on."""
        ...


class TorchLearner:
    """Updates a model in place; implements `spangrad.backend.Learner`.

    Args:
        loaded: the model; adapters are put into it in place.
        sampler: serves the same model.
        options: of the learner's part of the backend's table.
        threads: torch threads of the worker; None leaves torch's default.
        autocast: bfloat16 to compute products in bf16, None to compute in the weights' fp32.
        seed: of the adapters' first weights.

    Raises:
        BackendError: the adapter's target layers are not in the model.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        sampler: LearnersSampler,
        options: TorchOptions,
        *,
        threads: int | None = None,
        autocast: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        self._loaded = loaded
        self._model = loaded.model
        self._sampler = sampler
        self._options = options
        self._vocabulary = int(self._model.config.get_text_config().vocab_size)
        self._autocast_dtype = autocast
        self._trained = Trained(self._model, options, seed=seed)
        (attend_by_flex if options.tree_attention == "flex" else let_attend)(self._model)
        self._version = 0
        self._busy = asyncio.Lock()
        self._worker = Worker(threads)
        self.shares_prefixes = self._worker.run_now(partial(takes_tree_masks, self._model))
        """Whether prefixes are computed once; False for models whose attention takes no tree mask."""

    @property
    def max_sequence(self) -> int:
        """Most tokens of a prompt and its answer that can be trained on."""
        return min(self._options.max_sequence, self._loaded.context_length)

    @property
    def training(self) -> str:
        """What is trained, in words."""
        return self._trained.description

    @property
    def trained_parameters(self) -> int:
        """How many numbers are trained."""
        return sum(weight.numel() for weight in self._trained.weights.values())

    async def update(self, batch: UpdateBatch) -> UpdateReport:
        """One policy-gradient step; none when no transition has a gradient.

        Raises:
            BackendError: the batch cannot be trained on (the message names the call), a KL term has no reference, or loss or
                gradient are not finite. No step was taken then.
        """
        self._check_reference(batch)
        return await self._step(batch, imitate=False)

    async def gradient(self, batch: UpdateBatch) -> dict[str, Tensor]:
        """What `update` would take a step down, before it is bounded: by weight; empty when no transition has a gradient.

        Raises:
            BackendError: as `update`.
        """
        self._check_reference(batch)
        async with self._busy:
            work = await self._worker.run(partial(self._prepare, batch, imitate=False))
            reference = await self._reference_logprobs(work)
            await self._worker.run(partial(self._accumulate, work, reference))
            return await self._worker.run(self._trained.take_gradient)

    async def logprobs(self, transitions: TransitionBatch) -> list[FloatArray]:
        """(T,) of (A,) log-probabilities of the actions' tokens under the present weights.

        Raises:
            BackendError: a transition cannot be computed; the message names the call.
        """
        return await self._computed(transitions, pack_logprobs)

    async def values(self, transitions: TransitionBatch) -> list[FloatArray]:
        """(T,) of (A,) values before each of the actions' tokens; 0 as long as none were learnt.

        Raises:
            BackendError: a transition cannot be computed; the message names the call.
        """
        return await self._computed(transitions, partial(pack_values, head=self._trained.value_head))

    async def imitate(self, batch: UpdateBatch) -> UpdateReport:
        """One step of maximum likelihood on the batch's actions; see `update`."""
        return await self._step(batch, imitate=True)

    async def restart_optimizer(self) -> None:
        """Forgets AdamW's moments of the policy."""
        async with self._busy:
            await self._worker.run(self._trained.restart_optimizer)

    async def freeze_reference(self) -> None:
        """Takes the present weights as the reference of the KL term."""
        async with self._busy:
            await self._worker.run(self._trained.freeze_reference)

    async def publish(self) -> int:
        """The policy version of the present weights, which the sampler draws with from now on, if it has not since the last step.

        Raises:
            BackendError: they cannot be handed to the sampler.
        """
        async with self._busy:
            await self._sampler.take(self._trained.weights, self._version)
            return self._version

    async def save(self, folder: Path) -> None:
        """Writes all that `load` needs to go on exactly.

        Raises:
            CheckpointError: the disk is full or may not be written; what was there before is untouched.
        """
        async with self._busy:
            await self._worker.run(lambda: save_state(self._trained.state(self._version), folder))

    async def load(self, folder: Path) -> None:
        """Restores what `save` wrote and publishes it. The version goes on from the saved one, but never back.

        Raises:
            CheckpointError: the folder is damaged or of other training; the learner is as it was.
        """
        async with self._busy:
            state = await self._worker.run(lambda: load_state(folder, training=self.training))
            async with self._sampler.paused():
                await self._worker.run(partial(self._trained.restore, state))
                after = self._version + 1 if self._version else 0
                self._version = max(state.policy_version, after)
                self._sampler.changed(self._version)
            await self._sampler.take(self._trained.weights, self._version)

    async def export(self, folder: Path) -> None:
        """Writes a Hugging Face folder that plain transformers loads, tokenizer and chat template included.

        Raises:
            CheckpointError: the disk is full or may not be written; what was there before is untouched.
        """
        async with self._busy:
            await self._worker.run(partial(export_model, self._loaded, folder))

    async def close(self) -> None:
        """Ends the work in flight at its next pack; nothing can be done afterwards. Closing twice is harmless."""
        await self._worker.close()

    async def _step(self, batch: UpdateBatch, *, imitate: bool) -> UpdateReport:
        """Lays out the batch, adds up its gradient, and moves the weights while the sampler rests."""
        async with self._busy:
            began = time.perf_counter()
            work = await self._worker.run(partial(self._prepare, batch, imitate=imitate))
            if not work.transitions:
                return UpdateReport(
                    loss=0.0, grad_norm=0.0, tokens=0, computed_tokens=0, metrics={"optimizer_steps": 0.0}
                )
            reference = await self._reference_logprobs(work)
            sums = await self._worker.run(partial(self._accumulate, work, reference))
            gradient_done = time.perf_counter()
            critic = critic_of(work)
            async with self._sampler.paused():
                norm = await self._worker.run(partial(self._trained.step, batch.learning_rate, critic))
                self._version += 1
                self._sampler.changed(self._version)
                await self._worker.run(release_freed)
            seconds = {"gradient_seconds": gradient_done - began, "step_seconds": time.perf_counter() - gradient_done}
            return _report(work, sums, norm, seconds)

    async def _computed(self, transitions: TransitionBatch, of_packs: Callable[..., list[Tensor]]) -> list[FloatArray]:
        """(T,) of (A,) what a function of the model and some work gives for the actions' tokens."""
        nothing = np.ones(len(transitions))
        batch = UpdateBatch(transitions, learning_rate=0.0, advantages=nothing, token_weights=nothing)

        def compute() -> list[FloatArray]:
            work = self._prepare(batch, imitate=False)
            found = of_packs(self._model, work=work, autocast=self._autocast, before_pack=self._worker.check)
            return in_rows(work, found)

        async with self._busy:
            return await self._worker.run(compute)

    def _check_reference(self, batch: UpdateBatch) -> None:
        """Refuses a KL term without a reference."""
        if batch.loss.kl is not None and self._trained.reference is None:
            raise BackendError(
                "The loss has a KL term, but there is no reference to compare with",
                cure="Call freeze_reference() first, or leave the KL term out",
            )

    def _prepare(self, batch: UpdateBatch, *, imitate: bool) -> Work:
        """The part of a valid batch that has a gradient, laid out."""
        check_batch(batch, imitate=imitate, max_sequence=self.max_sequence, vocabulary=self._vocabulary)
        return lay_out(batch, imitate=imitate, budget=self._options.max_tokens_per_pass, share=self.shares_prefixes)

    async def _reference_logprobs(self, work: Work) -> list[Tensor] | None:
        """What the frozen reference says about the batch, if the loss asks for it.

        The sampler rests, for the reference's weights take the place of the present ones meanwhile.
        """
        reference = self._trained.reference
        if reference is None or work.loss is None or work.loss.kl is None:
            return None

        def compute() -> list[Tensor]:
            with reference.in_place_of(self._trained.weights):
                return pack_logprobs(self._model, work, autocast=self._autocast, before_pack=self._worker.check)

        async with self._sampler.paused():
            return await self._worker.run(compute)

    def _accumulate(self, work: Work, reference: list[Tensor] | None) -> Sums:
        """The batch's gradient, left in the weights' `grad`; nothing is left there on an error."""
        head = None if work.value_targets is None else self._trained.value_head
        try:
            return accumulate(
                self._model, work, reference, head=head, autocast=self._autocast, before_pack=self._worker.check
            )
        except BaseException:
            self._trained.drop_gradient()
            raise

    def _autocast(self) -> torch.autocast:
        """The context of a forward pass, which sets its precision."""
        return torch.autocast(
            self._model.device.type, dtype=torch.bfloat16, enabled=self._autocast_dtype == torch.bfloat16
        )


def _report(work: Work, sums: Sums, norm: float, seconds: Mapping[str, float]) -> UpdateReport:
    """The step in plain numbers."""
    packed = work.packed
    return UpdateReport(
        loss=sums.loss,
        grad_norm=norm,
        tokens=sums.tokens,
        computed_tokens=packed.computed_tokens,
        metrics={
            **sums.metrics(),
            **seconds,
            "optimizer_steps": 1.0,
            "packs": float(len(packed.packs)),
            "flat_tokens": float(packed.flat_tokens),
            "repeated_tokens": float(packed.repeated_tokens),
        },
    )
