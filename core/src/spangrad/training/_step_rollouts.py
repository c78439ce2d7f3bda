"""The rollouts of a training step: those of its first tasks, and those that take the place of others.

Two things leave a gap. A rollout that was dropped leaves one in its group, which `failures.groups = "refill"` fills with a new
rollout of the same task. A group whose rollouts have nothing to tell leaves one in the step, which `training.refill_rounds` fills
with the group of another task: DAPO's dynamic sampling (arXiv 2503.14476, section 3.2), but it asks for no more groups than
are missing. What is run follows from what came out before and from nothing else, so a resumed run asks for the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spangrad.lightningrl import AdvantageReport
from spangrad.rollouts import RolloutJob
from spangrad.training._collection import Collection, collect
from spangrad.training._jobs import group_id, training_jobs
from spangrad.training._order import tasks_from
from spangrad.training._progress import Phase
from spangrad.training._session import Session
from spangrad.training._step_checks import check_ids
from spangrad.transitions import LedgerEntry, Reason, TransitionBatch


@dataclass(frozen=True)
class StepRollouts:
    """What a step is trained on, and what it took to get it."""

    collection: Collection
    """All rollouts that were run."""
    batch: TransitionBatch
    """Of the groups that are trained on."""
    discarded: tuple[LedgerEntry, ...]
    """Ledger rows of the transitions of other groups."""
    position: int
    """Where in the order of tasks the next step begins."""
    rounds: int
    """How often further tasks were drawn."""
    groups_discarded: int
    replacements: int
    """Rollouts that were run in the place of dropped ones of their group."""
    lacking: int
    """Groups without anything to tell that the step is left with, although they should have been replaced."""
    unfilled: tuple[int, ...]
    """Rollouts that are left in each group that is not whole although dropped ones were to be replaced."""

    def figures(self) -> dict[str, int]:
        """For the metrics."""
        return {
            "rounds": self.rounds,
            "groups_discarded": self.groups_discarded,
            "groups_lacking": self.lacking,
            "groups_unfilled": len(self.unfilled),
            "replacements": self.replacements,
        }

    def note(self) -> str:
        """What the user should know, as sentences; empty when nothing."""
        said = []
        if self.unfilled:
            said.append(
                f"{len(self.unfilled)} groups are not whole, {self.unfilled.count(0)} of them without a rollout: those that "
                "were run in the place of dropped ones were dropped too"
            )
        if self.lacking:
            said.append(
                f"{self.lacking} groups have nothing to learn from after {self.rounds} rounds of further tasks; "
                "the step is trained on the others, and is so much smaller"
            )
        return ". ".join(said)


def too_many_failed(collection: Collection, max_failed: float) -> bool:
    """Whether a step of these rollouts is not to be trained on. One that was penalised or kept has failed all the same."""
    return collection.failed > max_failed * len(collection.results)


class StepSampler:
    """Runs the rollouts of one step.

    Args:
        session: the run's.
        step: its number, from 1.
        phase: shows how far it is.
        stop: ends it.
    """

    def __init__(self, session: Session, step: int, phase: Phase, stop: asyncio.Event) -> None:
        self._session = session
        self._preparation = session.preparation
        self._training = session.preparation.config.training
        self._step = step
        self._phase = phase
        self._stop = stop
        self._replacements = 0

    async def run(self, position: int) -> StepRollouts:
        """Runs what the step needs.

        Args:
            position: where in the order of tasks it begins.

        Raises:
            StopRequestedError, RewardError, SpangradError: as for `collect`.
            TokenIdsMissingError: the endpoint gives nothing to train on.
        """
        tasks, position = self._drawn(position, self._training.tasks_per_step, ())
        collection = await self._whole_groups(tasks, None)
        check_ids(self._session)
        rounds = 0
        if not self._training.refill_rounds:
            return self._all(collection, tasks, position)
        while (missing := self._missing(tasks, telling := self._telling(collection))) and self._may_go_on(
            collection, rounds
        ):
            rounds += 1
            more, position = self._drawn(position, missing, tasks)
            tasks += more
            collection = await self._whole_groups(more, collection)
        return self._chosen(collection, tasks, telling, position, rounds)

    def _drawn(self, position: int, count: int, taken: Sequence[int]) -> tuple[list[int], int]:
        known = len(self._preparation.tasks)
        seed = self._preparation.config.seed
        return tasks_from(position, tasks=known, count=count, seed=seed, taken=taken)

    def _missing(self, tasks: Sequence[int], telling: frozenset[str]) -> int:
        """How many further tasks are wanted and can be had."""
        wanted = self._training.tasks_per_step - len(telling)
        return min(wanted, len(self._preparation.tasks) - len(tasks))

    def _may_go_on(self, collection: Collection, rounds: int) -> bool:
        """A step that will not be trained on needs no further tasks."""
        return rounds < self._training.refill_rounds and not too_many_failed(collection, self._training.max_failed)

    async def _whole_groups(self, tasks: Sequence[int], earlier: Collection | None) -> Collection:
        """Runs the groups of tasks, and new rollouts in the place of dropped ones where that is asked for."""
        table, size = self._preparation.config.failures, self._training.rollouts_per_task
        jobs = [job for task in tasks for job in training_jobs(self._preparation, self._step, task, range(size))]
        collection = await self._collected(jobs, earlier)
        for _ in range(table.refill_limit if table.groups == "refill" else 0):
            jobs = [job for task in tasks for job in self._replacing(task, collection)]
            if not jobs:
                break
            self._replacements += len(jobs)
            collection = await self._collected(jobs, collection)
        return collection

    def _replacing(self, task: int, collection: Collection) -> list[RolloutJob]:
        """Rollouts of a task in the place of those that were dropped."""
        group = group_id(self._preparation, self._step, task)
        run, usable = collection.group(group)
        lacking = self._training.rollouts_per_task - usable
        return training_jobs(self._preparation, self._step, task, range(run, run + lacking))

    async def _collected(self, jobs: Sequence[RolloutJob], earlier: Collection | None) -> Collection:
        self._phase.expect(len(jobs))
        return await collect(self._session, jobs, self._phase, self._stop, earlier=earlier)

    def _report(self, collection: Collection) -> AdvantageReport:
        batch = TransitionBatch(collection.transitions)
        return self._preparation.algorithm.compute(batch, max_sequence=self._session.max_sequence)

    def _telling(self, collection: Collection) -> frozenset[str]:
        """The groups that would be trained on."""
        report = self._report(collection)
        pairs = zip(report.batch.transitions, report.reasons, strict=True)
        return frozenset(transition.group_id for transition, reason in pairs if reason is Reason.TRAINED)

    def _unfilled(self, collection: Collection, tasks: Sequence[int]) -> tuple[int, ...]:
        """Rollouts that are left in each group that was to be filled up and could not be."""
        if self._preparation.config.failures.groups != "refill":
            return ()
        usable = (collection.group(group_id(self._preparation, self._step, task))[1] for task in tasks)
        return tuple(count for count in usable if count < self._training.rollouts_per_task)

    def _all(self, collection: Collection, tasks: Sequence[int], position: int) -> StepRollouts:
        """A step that takes its groups as they are."""
        return StepRollouts(
            collection=collection,
            batch=TransitionBatch(collection.transitions),
            discarded=(),
            position=position,
            rounds=0,
            groups_discarded=0,
            replacements=self._replacements,
            lacking=0,
            unfilled=self._unfilled(collection, tasks),
        )

    def _chosen(
        self, collection: Collection, tasks: Sequence[int], telling: frozenset[str], position: int, rounds: int
    ) -> StepRollouts:
        """The groups with something to tell; where they are too few, others fill the step up, so that it stays as small as it is."""
        groups = [group_id(self._preparation, self._step, task) for task in tasks]
        ordered = sorted(groups, key=lambda group: group not in telling)  # stable: else in the order they were drawn
        chosen = set(ordered[: self._training.tasks_per_step])
        kept = tuple(t for t in collection.transitions if t.group_id in chosen)
        others = {t.rollout_id for t in collection.transitions if t.group_id not in chosen}
        rows = [entry for entry in self._report(collection).ledger(self._step) if entry.rollout_id in others]
        return StepRollouts(
            collection=collection,
            batch=TransitionBatch(kept),
            discarded=tuple(_replaced(entry) for entry in collection.annotated(rows)),
            position=position,
            rounds=rounds,
            groups_discarded=len(groups) - len(chosen),
            replacements=self._replacements,
            lacking=len(chosen - telling),
            unfilled=self._unfilled(collection, tasks),
        )


def _replaced(entry: LedgerEntry) -> LedgerEntry:
    """The row of a call whose group gave its place to that of another task."""
    note = "another task was drawn in its place"
    return replace(entry, detail=f"{entry.detail}; {note}" if entry.detail else note)
