"""Contract: attaching restores everything, however often and in whatever order, and reaches no further than rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from spangrad.testing._contract._checks import ANSWER, QUESTION, ContractChecks
from spangrad.testing._contract._expect import holds, same
from spangrad.testing._contract._places import Places, differences, places
from spangrad.testing._contract._stage import Stage


class AttachingChecks(ContractChecks):
    """Attach and detach."""

    async def test_detaching_after_work_restores_every_attribute(self, stage: Stage) -> None:
        solver = await self._warm_up(stage)
        before = self._state()
        with self.attached():
            async with stage.rollout():
                await self.ask(solver, self.ways[0], QUESTION)
        same(_changes(before, self._state()), [], "What is left of an attachment under which agents worked")

    async def test_attachments_may_end_in_any_order(self, stage: Stage) -> None:
        await self._warm_up(stage)
        before = self._state()
        one, other = self.integration(), self.integration()
        with ExitStack() as left:
            ends = [left.callback(integration.attach()) for integration in (one, one, other)]
            hooked = self._state()
            for number in (1, 1, 0, 0):
                ends[number]()
            same(_changes(hooked, self._state()), [], "What ending two of three attachments changed")
            async with stage.rollout():
                await self.ask(await self.solver(stage.endpoint), self.ways[0], QUESTION)
            self.check_solver_tree(stage)
        same(_changes(before, self._state()), [], "What is left of three attachments, each ended twice")

    async def test_detaching_restores_every_attribute(self) -> None:
        self.integration().attach()()  # what attaching imports is there from now on
        before = self._state()
        with self.attached():
            holds(_changes(before, self._state()), f"Attaching changes nothing in {self.packages}")
        same(_changes(before, self._state()), [], "What attaching changed and detaching did not restore")

    async def test_attaching_again_records_as_the_first_time(self, stage: Stage) -> None:
        solver = await self.solver(stage.endpoint)
        for rollout in ("first", "second"):
            with self.attached(), self.attached():
                async with stage.rollout(rollout):
                    same(await self.ask(solver, self.ways[0], QUESTION), ANSWER, "The answer")
        for rollout in ("first", "second"):
            same(stage.questions(rollout), [QUESTION], f"The calls of {rollout}")
            self.check_solver_tree(stage, rollout)

    async def test_detached_nothing_is_recorded_of_a_rollouts_work(self, stage: Stage) -> None:
        solver = await self.solver(stage.endpoint)
        with self.attached():
            pass
        async with stage.rollout():
            same(await self.ask(solver, self.ways[0], QUESTION), ANSWER, "The answer")
        stage.spans()
        same(stage.delivered, [], "The spans")
        same(stage.calls(), [], "The rollout's calls: nobody said they were its own")

    async def test_outside_of_rollouts_nothing_is_recorded(self, stage: Stage) -> None:
        solver = await self.solver(stage.endpoint)
        with self.attached():
            same(await self.ask(solver, self.ways[0], QUESTION), ANSWER, "The answer")
            same([call.agent for call in stage.calls(None)], [None], "The agents of calls outside of rollouts")
            async with stage.rollout():
                await self.ask(solver, self.ways[0], QUESTION)
            await self.ask(solver, self.ways[0], QUESTION)
        same(stage.questions(), [QUESTION], "The rollout's calls")
        same(stage.spans(None), [], "Spans of work outside of rollouts")
        self.check_solver_tree(stage)

    async def test_it_describes_what_is_hooked(self) -> None:
        integration = self.integration()
        detached = dict(integration.describe())
        with ExitStack() as left:
            left.callback(integration.attach())
            described = dict(integration.describe())
        holds(described and all(described.values()), "It describes nothing")
        holds(described != detached, f"It describes the same attached and detached: {described}")
        same(dict(integration.describe()), detached, "What it describes after detaching")
        same(integration.framework, self.integration().framework, "The framework")

    async def _warm_up(self, stage: Stage) -> Any:
        """Has everything happen once that only happens the first time. Returns a solver."""
        solver = await self.solver(stage.endpoint)
        await self.ask(solver, self.ways[0], QUESTION)
        with self.attached():
            async with stage.rollout("warming up"):
                await self.ask(solver, self.ways[0], QUESTION)
        return solver

    def _state(self) -> tuple[Places, Mapping[str, object]]:
        return places(self.packages), self.fingerprint()


def _changes(before: tuple[Places, Mapping[str, object]], after: tuple[Places, Mapping[str, object]]) -> list[str]:
    keys = {*before[1], *after[1]}
    return [*differences(before[0], after[0]), *sorted(k for k in keys if before[1].get(k) != after[1].get(k))]
