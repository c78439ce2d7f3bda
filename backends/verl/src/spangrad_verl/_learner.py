"""The learner: verl's actor, driven through verl's own training workers.

What is trained on is decided before verl sees it (`_rows`); verl computes log-probabilities, gradients and steps. Calls of the workers
block, so they are made from one thread, in order.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from ray.exceptions import RayError, RayTaskError
from verl.utils import tensordict_utils as tu

from spangrad.backend import ServedPolicy, UpdateBatch, UpdateReport
from spangrad.errors import BackendError
from spangrad.transitions import FloatArray, TransitionBatch
from spangrad_torch import check_batch, written_whole
from spangrad_verl._checkpoint import LearnerRecord, damaged, read_record
from spangrad_verl._export import write_model
from spangrad_verl._failures import explained
from spangrad_verl._model_folder import ModelFolder
from spangrad_verl._rows import Rows, have_gradient, likelihood_rows, plain_rows, selected, update_rows
from spangrad_verl._tensors import Shares, action_values, as_tensors
from spangrad_verl._terms import LIKELIHOOD, LossTerms, loss_terms

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a learner needs to know of its workers."""

    workers: int
    """Data-parallel ones."""
    ranks: int
    """All of them."""
    multiple: int
    """Rows of a worker must be a multiple of this."""
    max_sequence: int
    dtype: str
    """torch's name of the type that weights are published in."""
    training: str
    """What is trained, in words."""
    loss_function: Callable[[LossTerms], Any]
    """What workers minimise."""


class VerlLearner:
    """Updates a policy; implements `spangrad.backend.Learner`.

    Args:
        group: the workers, as one `ActorWorker` or as verl's worker group of them.
        setup: how they are set up.
        model: as it was loaded.
        served: draws with the published weights.
        handover: folder in which weights go over to the servers.
    """

    def __init__(self, group: Any, setup: Setup, model: ModelFolder, served: ServedPolicy, handover: Path) -> None:
        self._group = group
        self._setup = setup
        self._model = model
        self._served = served
        self._handover = handover
        self._given: Path | None = None
        """Folder of the weights that servers draw with."""
        self._terms: LossTerms | None = None
        self._has_reference = False
        self._version = 0
        self._steps = 0
        self._busy = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spangrad-verl")

    @property
    def max_sequence(self) -> int:
        """Most tokens of a prompt and its answer that can be trained on."""
        return self._setup.max_sequence

    async def update(self, batch: UpdateBatch) -> UpdateReport:
        """One policy-gradient step; none when no transition has a gradient.

        Raises:
            BackendError: the batch cannot be trained on (the message names the call), a KL term has no reference, or the gradient is
                not finite. No step was taken then.
        """
        if batch.loss.kl is not None and not self._has_reference:
            raise BackendError(
                "The loss has a KL term, but there is no reference to compare with",
                cure="Call freeze_reference() first, or leave the KL term out",
            )
        return await self._run(partial(self._step, batch, imitate=False))

    async def imitate(self, batch: UpdateBatch) -> UpdateReport:
        """One step of maximum likelihood on the batch's actions; see `update`."""
        return await self._run(partial(self._step, batch, imitate=True))

    async def logprobs(self, transitions: TransitionBatch) -> Sequence[FloatArray]:
        """(T,) of (A,) log-probabilities of the actions' tokens under the present weights.

        Raises:
            BackendError: a transition cannot be computed; the message names the call.
        """
        nothing = np.ones(len(transitions))
        self._check(UpdateBatch(transitions, 0.0, nothing, nothing), imitate=False)
        return await self._run(lambda: self._logprobs(transitions, self._group.compute))

    async def values(self, transitions: TransitionBatch) -> Sequence[FloatArray]:
        """Not of this backend: `Capabilities.values` is False.

        Raises:
            BackendError: always.
        """
        raise BackendError(
            f"The verl backend learns no values (of {len(transitions)} calls)", cure='Use backend = "torch"'
        )

    async def restart_optimizer(self) -> None:
        """Forgets the optimiser's moments."""
        await self._run(self._group.restart_optimizer)

    async def freeze_reference(self) -> None:
        """Takes the present weights as the reference of the KL term."""
        await self._run(self._group.freeze_reference)
        self._has_reference = True

    async def publish(self) -> int:
        """Lets the servers draw with the present weights, if these are others than the ones they have.

        Raises:
            BackendError: the weights cannot be written, or no server takes them.
        """
        async with self._busy:
            return await self._publish()

    async def save(self, folder: Path) -> None:
        """Writes all that `load` needs to go on exactly.

        Raises:
            CheckpointError: the disk is full or may not be written; what was there before is untouched.
        """
        await self._run(partial(self._save, folder))

    async def load(self, folder: Path) -> None:
        """Restores what `save` wrote and publishes it. The version goes on from the saved one, but never back.

        Raises:
            CheckpointError: the folder is damaged or of other training.
        """
        async with self._busy:
            record, self._has_reference = await self._in_thread(partial(self._load, folder))
            after = self._version + 1 if self._version else 0
            self._version = max(record.policy_version, after)
            self._steps = record.steps
            await self._publish()

    async def export(self, folder: Path) -> None:
        """Writes a Hugging Face folder that plain transformers loads, tokenizer and chat template included.

        Raises:
            CheckpointError: the disk is full or may not be written; what was there before is untouched.
        """
        await self._run(partial(self._export, folder))

    async def close(self) -> None:
        """Waits for the call under way, which ends with the workers; nothing can be done afterwards. Closing twice is harmless."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._busy:
            return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def told() -> T:
            with explained():
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, told)

    def _check(self, batch: UpdateBatch, *, imitate: bool) -> None:
        check_batch(batch, imitate=imitate, max_sequence=self.max_sequence, vocabulary=self._model.vocabulary)

    def _step(self, batch: UpdateBatch, *, imitate: bool) -> UpdateReport:
        self._check(batch, imitate=imitate)
        began = time.perf_counter()
        keep = have_gradient(batch, imitate=imitate)
        if not keep.any():
            return UpdateReport(loss=0.0, grad_norm=0.0, tokens=0, computed_tokens=0, metrics={"optimizer_steps": 0.0})
        kept = selected(batch, keep)
        terms = LIKELIHOOD if imitate else loss_terms(batch.loss)
        rows = likelihood_rows(kept) if imitate else self._rows(kept)
        if terms != self._terms:
            self._group.set_loss_fn(self._setup.loss_function(terms))
            self._terms = terms
        self._group.set_learning_rate(batch.learning_rate)
        shares = self._shares(rows)
        data = as_tensors(rows, shares, calculate_entropy=terms.entropy_bonus != 0)
        metrics = tu.get(self._group.step(data), "metrics")
        norm = float(metrics["grad_norm"])
        if not math.isfinite(norm):  # verl has taken no step then
            raise BackendError(
                f"The gradient is not finite (its norm is {norm}); no step was taken",
                cure="Lower the learning rate, or check the rewards",
            )
        self._version += 1
        self._steps += 1
        lengths = [len(t.prompt_ids) + len(t.action_ids) for t in rows.transitions]
        return UpdateReport(
            loss=float(metrics["loss"]),
            grad_norm=norm,
            tokens=rows.tokens,
            computed_tokens=sum(lengths[row] for row in shares.order),
            metrics={**_figures(metrics), "optimizer_steps": 1.0, "step_seconds": time.perf_counter() - began},
        )

    def _rows(self, batch: UpdateBatch) -> Rows:
        """Rows with all that other passes have to say about them."""
        present = reference = None
        if batch.loss.corrections and batch.proximal == "present":
            present = self._logprobs(batch.transitions, self._group.compute)
        if batch.loss.kl is not None:
            reference = self._logprobs(batch.transitions, self._group.compute_reference)
        return update_rows(batch, present=present, reference=reference)

    def _logprobs(self, transitions: TransitionBatch, compute: Callable[[Any], Any]) -> list[FloatArray]:
        if not len(transitions):
            return []
        rows = plain_rows(transitions)
        shares = self._shares(rows)
        found = compute(as_tensors(rows, shares, compute_loss=False))
        return action_values(found["log_probs"], shares, rows)

    def _shares(self, rows: Rows) -> Shares:
        lengths = [len(transition.prompt_ids) + len(transition.action_ids) for transition in rows.transitions]
        return Shares.of(lengths, workers=self._setup.workers, multiple=self._setup.multiple)

    async def _publish(self) -> int:
        version = self._version
        if version != self._served.policy_version:
            folder = self._handover / f"weights-{version}"
            await self._in_thread(partial(self._write, folder))
            await self._served.take(folder, version)
            given, self._given = self._given, folder
            if given is not None:
                await asyncio.to_thread(shutil.rmtree, given, ignore_errors=True)
        return version

    def _write(self, folder: Path) -> None:
        """Puts what servers take into a new folder."""
        try:
            folder.mkdir(parents=True)
            self._group.write_weights(str(folder), self._setup.dtype)
            self._model.write_rest(folder)
        except OSError as error:
            raise BackendError(
                f"The new weights cannot be written to {folder}: {error}", cure="Make room there"
            ) from error

    def _save(self, folder: Path) -> None:
        with written_whole(folder) as partial_folder:
            self._group.save(str(partial_folder))
            record = LearnerRecord(
                policy_version=self._version,
                steps=self._steps,
                training=self._setup.training,
                workers=self._setup.ranks,
            )
            record.write(partial_folder)

    def _load(self, folder: Path) -> tuple[LearnerRecord, bool]:
        """What the checkpoint is of, and whether it has a reference."""
        record = read_record(folder, training=self._setup.training, workers=self._setup.ranks)
        try:
            self._group.restore(str(folder))
        except RayTaskError as error:
            raise damaged(folder, f"verl cannot read it: {error.cause}") from error
        except RayError:  # not the folder's fault
            raise
        except Exception as error:  # pickles fail in any way they like
            raise damaged(folder, f"verl cannot read it: {error}") from error
        return record, any(folder.glob("reference_rank_*.safetensors"))

    def _export(self, folder: Path) -> None:
        with written_whole(folder) as partial_folder:
            write_model(self._group, self._model, partial_folder)


def _figures(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The loss's sums as means over tokens, and what verl tells besides, as `verl/...`."""
    sums = {
        name: math.fsum(_flat(value))
        for name, value in metrics.items()
        if name not in {"loss", "grad_norm", "lr"} and not name.startswith("perf/")
    }
    tokens = max(sums.pop("tokens", 0.0), 1.0)
    comparable = sums.pop("mismatch_tokens", None)
    found = {name: total / tokens for name, total in sums.items() if name != "mismatch_kl"}
    if comparable is not None:
        found |= {"mismatch_kl": sums["mismatch_kl"] / max(comparable, 1.0), "mismatch_tokens": comparable}
    shown = {f"verl/{name}": float(value) for name, value in metrics.items() if name.startswith("perf/")}
    return dict(sorted({**found, **shown}.items()))


def _flat(value: Any) -> Iterator[float]:
    """The numbers of a list of lists, a worker's and a micro-batch's each."""
    if isinstance(value, Iterable):
        for inner in value:
            yield from _flat(inner)
    else:
        yield float(value)
