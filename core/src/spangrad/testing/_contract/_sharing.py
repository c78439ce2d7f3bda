"""Contract: rollouts that run at the same time and share what they use own exactly their own calls."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self, TypeVar

from spangrad import semconv
from spangrad.testing._contract._checks import ANSWER, QUESTION, SOLVER, ContractChecks, check_transitions, needs
from spangrad.testing._contract._expect import same
from spangrad.testing._contract._reference_run import tool_call_text
from spangrad.testing._contract._stage import Stage, said
from spangrad.testing._scripted_sampler import ScriptedPrompt

ROLLOUTS: Final = tuple(f"rollout-{number}" for number in range(8))
_ROUNDS: Final = 2

Asking = Callable[[str], Awaitable[str]]
Result = TypeVar("Result")


class SharingChecks(ContractChecks):
    """Eight rollouts, one solver."""

    async def test_rollouts_in_tasks_own_their_calls(self, stage: Stage, way: str) -> None:
        with self.attached():
            solver = await self.solver(stage.endpoint)
            await self._all(stage, lambda question: self.ask(solver, way, question), way)

    @needs("stream_ways")
    async def test_rollouts_that_stream_side_by_side_own_their_calls(self, stage: Stage, stream_way: str) -> None:
        with self.attached():
            solver = await self.solver(stage.endpoint)

            async def ask(question: str) -> str:
                return "".join(await self.stream(solver, stream_way, question))

            await self._all(stage, ask, stream_way)

    async def test_rollouts_in_worker_threads_own_their_calls(self, stage: Stage) -> None:
        """`asyncio.to_thread`, which hands the context on."""
        with self.attached():
            ask = await self._asker(stage)
            await self._all(stage, lambda question: asyncio.to_thread(ask, question))

    async def test_rollouts_in_an_executor_own_their_calls(self, stage: Stage) -> None:
        """One pool for all rollouts, whose threads go from one to the next."""
        with self.attached(), ThreadPoolExecutor(4) as pool:
            ask = await self._asker(stage)
            loop = asyncio.get_running_loop()
            await self._all(stage, lambda question: loop.run_in_executor(pool, ask, question))

    async def test_rollouts_in_raw_threads_own_their_calls(self, stage: Stage) -> None:
        with self.attached():
            ask = await self._asker(stage)
            await self._all(stage, lambda question: _in_raw_thread(ask, question))

    async def test_a_worker_of_no_rollout_is_credited_to_none(self, stage: Stage) -> None:
        """A thread that was there before: nobody can know for whom it works, so nobody gets its calls."""
        with self.attached():
            ask = await self._asker(stage)
            with _Worker(ask) as worker:
                async with stage.rollout("first"), stage.rollout("second"):
                    same(await asyncio.to_thread(worker.ask, QUESTION), ANSWER, "The answer")
        same([stage.calls("first"), stage.calls("second")], [[], []], "The calls of the rollouts")
        same(stage.questions(None), [QUESTION], "The calls of nobody")
        same(stage.delivered, [], "Spans of work outside of rollouts")

    @needs("records_work")
    async def test_tools_of_rollouts_side_by_side_lie_below_their_own_agents(self, stage: Stage) -> None:
        def script(prompt: ScriptedPrompt) -> str:
            done = prompt.messages[-1]["role"] == "tool"
            return f"done {said(prompt)}" if done else tool_call_text("add", a=int(said(prompt)), b=100)

        stage.answers(script)
        with self.attached():
            solver = await self.solver(stage.endpoint, tools=True)

            async def one(number: int) -> str:
                async with stage.rollout(ROLLOUTS[number]):
                    return await self.ask(solver, self.ways[0], str(number))

            answers = await _side_by_side(one(number) for number in range(len(ROLLOUTS)))
        same(answers, [f"done {number}" for number in range(len(ROLLOUTS))], "The answers")
        for number, rollout in enumerate(ROLLOUTS):
            same(stage.agents(rollout), [SOLVER] * 2, f"The agents of the calls of {rollout}")
            (tool,) = stage.named("execute_tool add", rollout)
            arguments = json.loads(str((tool.attributes or {})[semconv.TOOL_ARGUMENTS]))
            same(arguments, {"a": number, "b": 100}, f"The tool's arguments in {rollout}")
            self.check_spans(stage, rollout)

    async def _asker(self, stage: Stage) -> Callable[[str], str]:
        """Asks the one solver, or, where it belongs to an event loop, one of the thread's own."""
        if not self.threads_share:
            return lambda question: self.ask_sync(self.thread_solver(stage.endpoint), question)
        solver = await self.solver(stage.endpoint)
        return lambda question: self.ask_sync(solver, question)

    async def _all(self, stage: Stage, ask: Asking, way: str | None = None) -> None:
        """Runs every rollout at the same time and looks at what each has got."""

        async def one(rollout: str) -> None:
            async with stage.rollout(rollout):
                for number in range(_ROUNDS):
                    question = f"{rollout} asks {number}"
                    same(await ask(question), f"You said: {question}", "The answer")

        await _side_by_side(one(rollout) for rollout in ROLLOUTS)
        same(stage.questions(None), [], "The calls of nobody")
        for rollout in ROLLOUTS:
            same(stage.questions(rollout), [f"{rollout} asks {n}" for n in range(_ROUNDS)], f"The calls of {rollout}")
            same(stage.agents(rollout), [SOLVER] * _ROUNDS, f"The agents of the calls of {rollout}")
            check_transitions(stage, rollout, calls=_ROUNDS)
            self.check_solver_tree(stage, rollout, way=way, times=_ROUNDS)
        same(stage.spans(None), [], "Spans that do not say whose they are")


async def _side_by_side(parts: Iterable[Awaitable[Result]]) -> list[Result]:
    """What all of them give.

    Waits for all of them also where one raises: what a failing test left at work would trouble the tests after it.
    """
    ended = await asyncio.gather(*parts, return_exceptions=True)
    results: list[Result] = []
    for result in ended:
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


async def _in_raw_thread(ask: Callable[[str], str], question: str) -> str:
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(ask(question)), name=f"contract {question}")
    thread.start()
    await asyncio.to_thread(thread.join)
    return answers[0]


class _Worker:
    """A thread that answers questions for as long as the block lasts."""

    def __init__(self, ask: Callable[[str], str]) -> None:
        self._questions: queue.Queue[str | None] = queue.Queue()
        self._answers: queue.Queue[str] = queue.Queue()
        self._ask = ask
        self._thread = threading.Thread(target=self._work, name="contract worker")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._questions.put(None)
        self._thread.join()

    def ask(self, question: str) -> str:
        """Hands the question to the thread and waits for the answer."""
        self._questions.put(question)
        return self._answers.get(timeout=30)

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            try:
                self._answers.put(self._ask(question))
            except Exception as error:  # noqa: BLE001 - whoever waits for the answer is told
                self._answers.put(f"raised {error!r}")
