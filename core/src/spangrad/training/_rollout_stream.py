"""The rollouts of one training step after the other, those of the next one perhaps while the present one is learnt from."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from spangrad.training._clock import Clock
from spangrad.training._progress import ProgressDisplay
from spangrad.training._session import Session
from spangrad.training._step_rollouts import StepRollouts, StepSampler


@dataclass(frozen=True)
class _Ahead:
    """Rollouts that were begun before they are needed."""

    step: int
    work: asyncio.Task[tuple[StepRollouts, float]]
    """They, and when the last one ended, by `time.monotonic`."""


class RolloutStream:
    """Runs the rollouts of the steps of a run.

    Args:
        session: the run's.
        display: shows how far they are.
        clock: counts the time that is spent on waiting for them.
        stop: ends them.
    """

    def __init__(self, session: Session, display: ProgressDisplay, clock: Clock, stop: asyncio.Event) -> None:
        self._session = session
        self._display = display
        self._clock = clock
        self._stop = stop
        self._ahead: _Ahead | None = None
        self.waited = 0.0
        """Seconds that the last `of` took: nothing was learnt meanwhile."""

    async def of(self, step: int, position: int) -> StepRollouts:
        """The rollouts of a step.

        Args:
            step: its number, from 1.
            position: where in the order of tasks it begins.

        Raises:
            StopRequestedError, SpangradError: as for `StepSampler.run`.
        """
        begun = time.monotonic()
        with self._clock.phase("rollouts"):
            if self._ahead is not None and self._ahead.step == step:
                ahead, self._ahead = self._ahead, None
                rollouts, _ = await ahead.work
            else:
                rollouts, _ = await self._run(step, position)
        self.waited = time.monotonic() - begun
        return rollouts

    def begin(self, step: int, position: int) -> None:
        """Begins the rollouts of the step after the present one; `of` then hands them out."""
        self._ahead = _Ahead(step, asyncio.create_task(self._run(step, position)))

    def idle_since(self, begun: float) -> float:
        """Seconds since `begun`, by `time.monotonic`, in which no rollouts ran."""
        if self._ahead is None:
            return time.monotonic() - begun
        if not self._ahead.work.done() or self._ahead.work.cancelled() or self._ahead.work.exception() is not None:
            return 0.0
        return time.monotonic() - max(begun, self._ahead.work.result()[1])

    async def close(self) -> None:
        """Ends rollouts that nobody has asked for."""
        if self._ahead is not None:
            self._ahead.work.cancel()
            await asyncio.gather(self._ahead.work, return_exceptions=True)
            self._ahead = None

    async def _run(self, step: int, position: int) -> tuple[StepRollouts, float]:
        with self._display.phase(f"step {step} rollouts", 0) as phase:
            rollouts = await StepSampler(self._session, step, phase, self._stop).run(position)
        return rollouts, time.monotonic()
