"""The training loop: warm start, then task -> rollout -> transition -> advantage -> update, step after step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spangrad.backend import UpdateReport
from spangrad.lightningrl import AdvantageReport
from spangrad.store import RolloutStatus
from spangrad.training._checkpoint import POLICY as POLICY_FOLDER
from spangrad.training._checkpoint import RunState, read_state, save_checkpoint
from spangrad.training._clock import Clock
from spangrad.training._collection import Collection, StopRequestedError, collect, settle
from spangrad.training._critic import values_of
from spangrad.training._evaluation import Evaluation, evaluation, evaluation_jobs
from spangrad.training._jobs import training_jobs
from spangrad.training._metrics import MetricsFile
from spangrad.training._order import tasks_of_step
from spangrad.training._progress import ProgressDisplay
from spangrad.training._session import POLICY, Session
from spangrad.training._staleness import without_stale
from spangrad.training._step_checks import check_ids, missing_agents, missing_rewards, unlinked_work
from spangrad.training._summary import RunSummary
from spangrad.training._update_figures import shown_figures, update_figures
from spangrad.training._updates import update_batches
from spangrad.training._warm_start import demonstrated, imitation_batch, ramped
from spangrad.transitions import LedgerEntry, Reason, TransitionBatch


class Trainer:
    """Trains one policy in an open session.

    Args:
        session: the live parts.
        display: shows where the run is.
        stop: set to end the run after what cannot be interrupted (an optimiser step); the run is saved.
    """

    def __init__(self, session: Session, display: ProgressDisplay, stop: asyncio.Event) -> None:
        self._session = session
        self._config = session.preparation.config
        self._learner = session.backend.learner
        self._display = display
        self._stop = stop
        self._metrics = MetricsFile(session.folder.metrics)
        self._clock = Clock()
        self._state = RunState(0, 0, 0.0, session.preparation.identity())
        self._saved: RunState | None = None
        self._counts: Counter[str] = Counter()

    async def run(self) -> RunSummary:
        """Trains from where the run's folder stands to the end; returns what came of it.

        Raises:
            StopRequestedError: `stop` was set; the run has been saved and can be resumed.
            SpangradError: training cannot go on; what is finished has been saved.
        """
        await self._restore()
        warm_start, training = self._config.warm_start, self._config.training
        self._display.plan((warm_start.steps if warm_start else 0) + training.steps)
        self._show_done()
        try:
            await self._warm_start()
            before = await self._evaluate(0)
            if self._state.step == 0:
                await self._begin_reinforcement()
            for step in range(self._state.step + 1, training.steps + 1):
                await self._step(step)
                if step % training.checkpoint_every == 0:
                    await self._save()
                if step == training.steps or (
                    self._config.evaluation.every and step % self._config.evaluation.every == 0
                ):
                    await self._evaluate(step)
            after = await self._evaluate(training.steps)
        finally:
            await self._save()
        await self._learner.export(self._session.folder.model)
        return self._summary(before, after)

    async def _restore(self) -> None:
        """Goes on from the latest checkpoint, if the folder holds one."""
        found = self._session.folder.latest_checkpoint()
        if found is None:
            self._metrics.keep_until(-1)
            return
        _, checkpoint = found
        self._state = self._saved = read_state(checkpoint, self._state.identity)
        self._clock.before = self._state.train_seconds
        await self._learner.load(checkpoint / POLICY_FOLDER)
        self._metrics.keep_until(self._state.step)
        self._display.line(
            f"Going on after warm-start step {self._state.warm_start_steps}, training step {self._state.step}"
        )

    async def _save(self) -> None:
        """Writes a checkpoint unless the latest one says the same already.

        None is written when a record of the metrics was lost: going on from the one before makes that record again.
        """
        if self._metrics.lost_record or (self._saved is not None and _progress(self._saved) == _progress(self._state)):
            return
        with self._clock.phase("checkpoint"):
            state = replace(self._state, train_seconds=self._clock.total)
            await save_checkpoint(self._session.folder, self._learner, state)
        self._saved = state

    async def _warm_start(self) -> None:
        table = self._config.warm_start
        if table is None or self._state.warm_start_steps >= table.steps:
            return
        conversations = self._session.preparation.demonstrations
        examples = demonstrated(conversations, self._session.backend.chat_format, policy=POLICY)
        with self._clock.phase("warm_start"), self._display.phase("warm start", table.steps) as phase:
            phase.advance(self._state.warm_start_steps)
            for step in range(self._state.warm_start_steps + 1, table.steps + 1):
                self._raise_if_stopped()
                chosen = tasks_of_step(step, tasks=len(examples), per_step=table.batch, seed=self._config.seed)
                transitions = [transition for index in chosen for transition in examples[index]]
                rate = ramped(table.learning_rate, step, table.ramp_steps)
                report = await self._learner.imitate(imitation_batch(transitions, rate))
                self._state = replace(self._state, warm_start_steps=step)
                self._metrics.append(
                    "warm_start", step=0, warm_start_step=step, learning_rate=rate, **update_figures(report)
                )
                phase.advance(1, {"loss": f"{report.loss:.3f}"})
                self._show_done()
        await self._learner.publish()
        await self._save()

    async def _begin_reinforcement(self) -> None:
        await self._learner.restart_optimizer()
        if self._session.preparation.loss.kl is not None:
            await self._learner.freeze_reference()

    async def _evaluate(self, step: int) -> list[Evaluation]:
        """Measures every held-out set after a step, unless that has been done."""
        known = {r["heldout"]: r for r in self._metrics.read() if r["kind"] == "evaluation" and r["step"] == step}
        return [
            Evaluation.from_json(known[name]) if name in known else await self._evaluate_on(name, step)
            for name in self._session.preparation.heldout
        ]

    async def _evaluate_on(self, heldout: str, step: int) -> Evaluation:
        self._raise_if_stopped()
        jobs = evaluation_jobs(heldout, self._session.preparation.heldout[heldout], step)
        with self._clock.phase("evaluation"), self._display.phase(f"evaluate {heldout}", len(jobs)) as phase:
            collection = await collect(self._session, jobs, phase, self._stop)
            measured = evaluation(
                heldout,
                step,
                self._session.backend.policy_version,
                collection.results,
                success_at=self._config.evaluation.success_at,
            )
            success = measured.success
            phase.advance(0, {"success": f"{success.value:.2f} [{success.low:.2f}, {success.high:.2f}]"})
        self._settle(collection.excluded, step)
        self._counts["evaluation_rollouts"] += len(jobs)
        self._metrics.append(
            "evaluation", train_seconds=self._clock.total, seconds=collection.seconds, **measured.as_json()
        )
        return measured

    async def _step(self, step: int) -> None:
        """One training step, from tasks to a published policy."""
        self._raise_if_stopped()
        jobs = training_jobs(self._session.preparation, step)
        with self._clock.phase("rollouts"), self._display.phase(f"step {step} rollouts", len(jobs)) as phase:
            collection = await collect(self._session, jobs, phase, self._stop)
        check_ids(self._session)
        judges = self._session.preparation.judges
        for what in (
            missing_agents(self._session, collection),
            missing_rewards(judges.weights, collection.results, judges.rules),
            unlinked_work(collection),
        ):
            if what:
                self._display.line(f"Step {step}: {what}")
        failed = sum(count for status, count in collection.statuses.items() if status is not RolloutStatus.SUCCEEDED)
        report = await self._estimate(TransitionBatch(collection.transitions))
        if failed > self._config.training.max_failed * len(jobs):
            self._display.line(f"Step {step} is not trained on: {failed} of {len(jobs)} rollouts failed")
            report = report.without_update(Reason.BATCH_FAILED)
        report = without_stale(report, self._session.backend.policy_version, self._config.algorithm.max_staleness)
        for warning in report.warnings:
            self._display.line(f"Step {step}: {warning}")
        with self._clock.phase("learning"), self._display.phase(f"step {step} learning", 1) as phase:
            updates = await self._learn(step, report)
            phase.advance(1, shown_figures(updates, report))
        if updates:
            await self._learner.publish()
        self._settle([*collection.excluded, *report.ledger(step)], step)
        self._state = replace(self._state, step=step, memory=dict(report.memory))
        self._record(step, collection, report, updates, failed)
        self._show_done()

    async def _estimate(self, batch: TransitionBatch) -> AdvantageReport:
        """Advantages of the step, by the values of the weights that are about to be updated where the estimator wants them."""
        algorithm = self._session.preparation.algorithm
        with self._clock.phase("learning"):
            values = await values_of(self._learner, algorithm, batch)
        return algorithm.compute(
            batch, max_sequence=self._learner.max_sequence, values=values, memory=self._state.memory
        )

    async def _learn(self, step: int, report: AdvantageReport) -> list[UpdateReport]:
        """One or more optimiser steps; groups stay whole. No step at all when nothing has an advantage."""
        batches = await update_batches(self._config, self._session.preparation.loss, self._learner, report, step)
        return [await self._learner.update(batch) for batch in batches]

    def _record(
        self,
        step: int,
        collection: Collection,
        report: AdvantageReport,
        updates: Sequence[UpdateReport],
        failed: int,
    ) -> None:
        rewards = collection.rewards
        self._counts["rollouts"] += len(collection.results)
        self._counts["failed_rollouts"] += failed
        self._counts["updates"] += len(updates)
        self._counts["trained_tokens"] += sum(update.tokens for update in updates)
        self._counts["sampled_tokens"] += collection.sampled_tokens
        self._metrics.append(
            "step",
            step=step,
            policy_version=self._session.backend.policy_version,
            train_seconds=self._clock.total,
            reward_mean=float(np.mean(rewards)) if rewards else None,
            success=sum(r >= self._config.evaluation.success_at - 1e-9 for r in rewards) / len(collection.results),
            rollouts=len(collection.results),
            rollouts_reused=collection.reused,
            statuses={status.value: count for status, count in sorted(collection.statuses.items())},
            transitions=len(collection.transitions),
            excluded=dict(Counter(entry.reason.value for entry in collection.excluded)),
            sampled_tokens=collection.sampled_tokens,
            rules=collection.rules,
            rollout_seconds=collection.seconds,
            updates=[update_figures(update) for update in updates],
            lightningrl=dict(report.metrics),
        )

    def _summary(self, before: Sequence[Evaluation], after: Sequence[Evaluation]) -> RunSummary:
        rows = {f"{table}_in_store": count for table, count in self._session.store.counts().items()}
        return RunSummary(
            run=self._session.folder.path.name,
            seed=self._config.seed,
            steps=self._state.step,
            train_seconds=self._clock.total,
            before=before,
            after=after,
            seconds_by_phase=self._clock.phases,
            counts={**self._counts, **rows},
            backend=self._session.backend.describe(),
        )

    def _settle(self, entries: Sequence[LedgerEntry], step: int) -> None:
        rest = settle(self._session, entries, step)
        for reason, count in sorted(Counter(entry.reason for entry in rest).items()):
            self._display.line(
                f"Step {step}: {count} calls belong to no rollout under way ({reason.value}); none is trained on"
            )
            self._counts[f"{reason.value}_calls"] += count

    def _show_done(self) -> None:
        self._display.done(self._state.warm_start_steps + self._state.step)

    def _raise_if_stopped(self) -> None:
        if self._stop.is_set():
            raise StopRequestedError


def _progress(state: RunState) -> tuple[int, int]:
    return state.warm_start_steps, state.step
