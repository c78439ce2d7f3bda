"""The training loop: warm start, then task -> rollout -> transition -> advantage -> update, step after step."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from spangrad.backend import UpdateReport
from spangrad.errors import SpangradError, StoreError
from spangrad.gateway import append_only_note
from spangrad.lightningrl import AdvantageReport
from spangrad.training._checkpoint import RunState, load_policies, read_state, save_checkpoint
from spangrad.training._clock import Clock
from spangrad.training._collection import StopRequestedError, collect
from spangrad.training._critic import values_of
from spangrad.training._evaluation import Evaluation, evaluation, evaluation_jobs
from spangrad.training._failure_figures import failure_figures
from spangrad.training._metrics import MetricsFile
from spangrad.training._order import tasks_of_step
from spangrad.training._progress import ProgressDisplay
from spangrad.training._rollout_stream import RolloutStream
from spangrad.training._session import Session
from spangrad.training._settling import settle, settle_given_up
from spangrad.training._staleness import without_stale
from spangrad.training._step_checks import missing_agents, missing_rewards, unlinked_work
from spangrad.training._step_rollouts import StepRollouts, too_many_failed
from spangrad.training._summary import RunSummary
from spangrad.training._update_figures import shown_figures, update_figures
from spangrad.training._updates import update_batches
from spangrad.training._warm_start import demonstrated, imitation_batches, ramped
from spangrad.transitions import LedgerEntry, Reason, TransitionBatch


class Trainer:
    """Trains the policies of an open session.

    Args:
        session: the live parts.
        display: shows where the run is.
        stop: set to end the run after what cannot be interrupted (an optimiser step); the run is saved.
    """

    def __init__(self, session: Session, display: ProgressDisplay, stop: asyncio.Event) -> None:
        self._session = session
        self._config = session.preparation.config
        self._learners = {name: policy.learner for name, policy in session.backend.policies.items()}
        self._display = display
        self._stop = stop
        self._metrics = MetricsFile(session.folder.metrics)
        self._clock = Clock()
        self._state = RunState(0, 0, 0.0, session.preparation.identity())
        self._saved: RunState | None = None
        self._counts: Counter[str] = Counter()
        self._late: Mapping[str, int] = {}
        self._stream = RolloutStream(session, display, self._clock, stop)

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
        note = append_only_note(self._session.backend.chat_format) if self._config.policy.renders else ""
        if note:
            self._display.line(note)
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
            await self._stream.close()
            await self._save()
        for name, learner in self._learners.items():
            await learner.export(self._session.folder.model_of(name, self._learners))
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
        await load_policies(checkpoint, self._session.backend)
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
            await save_checkpoint(self._session.folder, self._learners, state)
        self._saved = state

    async def _warm_start(self) -> None:
        table = self._config.warm_start
        if table is None or self._state.warm_start_steps >= table.steps:
            return
        conversations = self._session.preparation.demonstrations
        examples = demonstrated(conversations, self._session.backend.chat_format, policies=list(self._learners))
        with self._clock.phase("warm_start"), self._display.phase("warm start", table.steps) as phase:
            phase.advance(self._state.warm_start_steps)
            for step in range(self._state.warm_start_steps + 1, table.steps + 1):
                self._raise_if_stopped()
                chosen = tasks_of_step(
                    step, tasks=len(examples), per_step=min(table.batch, len(examples)), seed=self._config.seed
                )
                transitions = [transition for index in chosen for transition in examples[index]]
                rate = ramped(table.learning_rate, step, table.ramp_steps)
                batches = imitation_batches(transitions, rate)
                reports = [(name, await self._learners[name].imitate(batch)) for name, batch in batches.items()]
                self._state = replace(self._state, warm_start_steps=step)
                self._metrics.append(
                    "warm_start",
                    step=0,
                    warm_start_step=step,
                    learning_rate=rate,
                    updates=[update_figures(name, report) for name, report in reports],
                )
                phase.advance(1, {"loss": " ".join(f"{report.loss:.3f}" for _, report in reports)})
                self._show_done()
        for learner in self._learners.values():
            await learner.publish()
        await self._save()

    async def _begin_reinforcement(self) -> None:
        for learner in self._learners.values():
            await learner.restart_optimizer()
            if self._session.preparation.loss.kl is not None:
                await learner.freeze_reference()

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
                self._session.versions,
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
        position = self._state.position
        if position is None:
            position = (step - 1) * self._config.training.tasks_per_step
        rollouts = await self._stream.of(step, position)
        learning_since = time.monotonic()
        if self._config.training.overlap and step < self._config.training.steps:
            self._stream.begin(step + 1, rollouts.position)
        collection = rollouts.collection
        judges = self._session.preparation.judges
        for what in (
            missing_agents(self._session, collection),
            missing_rewards(judges.weights, collection.results, judges.rules),
            unlinked_work(collection),
            rollouts.note(),
        ):
            if what:
                self._display.line(f"Step {step}: {what}")
        try:
            report, updates = await self._learn_from(step, rollouts)
        except StoreError:
            raise
        except SpangradError as error:
            settle_given_up(self._session, rollouts, step, error)
            raise
        self._settle([*collection.excluded, *rollouts.discarded, *collection.annotated(report.ledger(step))], step)
        self._state = replace(self._state, step=step, memory=dict(report.memory), position=rollouts.position)
        self._record(step, rollouts, report, updates, self._stream.idle_since(learning_since))
        self._show_done()

    async def _learn_from(
        self, step: int, rollouts: StepRollouts
    ) -> tuple[AdvantageReport, list[tuple[str, UpdateReport]]]:
        """Updates the policies by the rollouts of a step, and publishes those that were updated."""
        collection = rollouts.collection
        report = await self._estimate(rollouts.batch)
        if too_many_failed(collection, self._config.training.max_failed):
            count = len(collection.results)
            self._display.line(f"Step {step} is not trained on: {collection.failed} of {count} rollouts failed")
            report = report.without_update(Reason.BATCH_FAILED)
        report = without_stale(report, self._session.versions, self._config.algorithm.max_staleness)
        for warning in report.warnings:
            self._display.line(f"Step {step}: {warning}")
        with self._clock.phase("learning"), self._display.phase(f"step {step} learning", 1) as phase:
            updates = await self._learn(step, report)
            phase.advance(1, shown_figures(updates, report))
        for name in {name for name, _ in updates}:
            await self._learners[name].publish()
        return report, updates

    async def _estimate(self, batch: TransitionBatch) -> AdvantageReport:
        """Advantages of the step, by the values of the weights that are about to be updated where the estimator wants them."""
        algorithm = self._session.preparation.algorithm
        with self._clock.phase("learning"):
            values = await values_of(self._learners, algorithm, batch)
        return algorithm.compute(
            batch, max_sequence=self._session.max_sequence, values=values, memory=self._state.memory
        )

    async def _learn(self, step: int, report: AdvantageReport) -> list[tuple[str, UpdateReport]]:
        """One or more optimiser steps of each policy; groups stay whole. No step at all of one that has no advantage."""
        loss = self._session.preparation.loss
        made = []
        for name, learner in self._learners.items():
            batches = await update_batches(self._config, loss, learner, report, policy=name, step=step)
            made += [(name, await learner.update(batch)) for batch in batches]
        return made

    def _record(
        self,
        step: int,
        rollouts: StepRollouts,
        report: AdvantageReport,
        updates: Sequence[tuple[str, UpdateReport]],
        sampler_idle: float,
    ) -> None:
        collection = rollouts.collection
        rewards = collection.rewards
        late = self._session.runner.late
        self._counts["rollouts"] += len(collection.results)
        self._counts["failed_rollouts"] += collection.failed
        self._counts["updates"] += len(updates)
        self._counts["trained_tokens"] += sum(update.tokens for _, update in updates)
        self._counts["sampled_tokens"] += collection.sampled_tokens
        self._metrics.append(
            "step",
            step=step,
            policy_versions=self._session.versions,
            train_seconds=self._clock.total,
            reward_mean=float(np.mean(rewards)) if rewards else None,
            success=sum(r >= self._config.evaluation.success_at - 1e-9 for r in rewards) / len(collection.results),
            rollouts=len(collection.results),
            rollouts_reused=collection.reused,
            statuses={status.value: count for status, count in sorted(collection.statuses.items())},
            failures=failure_figures(self._session.store, collection),
            late={kind: count - self._late.get(kind, 0) for kind, count in late.items()},
            refill=rollouts.figures(),
            transitions=len(collection.transitions),
            excluded=dict(Counter(entry.reason.value for entry in collection.excluded)),
            sampled_tokens=collection.sampled_tokens,
            continuation=collection.continuation,
            rules=collection.rules,
            rollout_seconds=collection.seconds,
            idle={"learner_seconds": self._stream.waited, "sampler_seconds": sampler_idle},
            updates=[update_figures(name, update) for name, update in updates],
            lightningrl=dict(report.metrics),
        )
        self._late = late

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
        lost = Counter(entry.reason for entry in rest if entry.reason is not Reason.NOT_TRAINED_POLICY)
        for reason, count in sorted(lost.items()):
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
