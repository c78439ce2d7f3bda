"""Contract: what agents and tools did is recorded, each below the piece of work it was part of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from spangrad import semconv
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent
from spangrad.testing._contract._checks import (
    ANSWER,
    QUESTION,
    SOLVER,
    ContractChecks,
    check_transitions,
    needs,
    returned,
)
from spangrad.testing._contract._expect import holds, same
from spangrad.testing._contract._reference_run import tool_call_text
from spangrad.testing._contract._span_tree import call_of, plain, unordered
from spangrad.testing._contract._stage import Stage
from spangrad.transitions import RolloutStatus

_ADD = tool_call_text("add", a=2, b=3)
_MULTIPLY = tool_call_text("multiply", a=4, b=5)


class RecordingChecks(ContractChecks):
    """What spans say."""

    @needs("records_work")
    async def test_a_tool_call_is_recorded_whole(self, stage: Stage) -> None:
        same(returned(await self._solve(stage, _ADD, "it is 5")), "it is 5", "The answer")
        self._check_tools(stage, calls=2, tools=1)
        (span,) = stage.named(f"{semconv.TOOL_OPERATION} add")
        holds("5" in attributes_of(span)[semconv.TOOL_RESULT], f"The span's result is {attributes_of(span)!r}")
        same(span.status.status_code, StatusCode.UNSET, "The status of the tool's span")

    @needs("records_work")
    async def test_tool_calls_in_turn_are_recorded_in_turn(self, stage: Stage) -> None:
        same(returned(await self._solve(stage, _ADD, _MULTIPLY, "done")), "done", "The answer")
        self._check_tools(stage, calls=3, tools=2)
        add, multiply = _tools(stage)
        same([add.name, multiply.name], ["execute_tool add", "execute_tool multiply"], "The tools' spans")
        holds((add.end_time or 0) <= (multiply.start_time or 0), "The second tool's span begins before the first ends")

    @needs("records_work")
    async def test_parallel_tool_calls_are_told_apart(self, stage: Stage) -> None:
        three = "".join([_ADD, tool_call_text("add", a=6, b=7), _MULTIPLY])
        same(returned(await self._solve(stage, three, "done")), "done", "The answer")
        self._check_tools(stage, calls=2, tools=3)
        results = _results(stage)
        for arguments, result in ({"a": 2, "b": 3}, "5"), ({"a": 6, "b": 7}, "13"), ({"a": 4, "b": 5}, "20"):
            found = results[json.dumps(arguments)]
            holds(result in found, f"The result of {arguments} is {found!r}")

    @needs("records_work")
    async def test_a_tool_that_fails_is_marked_and_the_program_goes_on_as_ever(self, stage: Stage) -> None:
        await self._solve(stage, tool_call_text("fail", reason="no such page"), "I could not")
        self._check_tools(stage, calls=len(stage.calls()), tools=1)
        (span,) = stage.named(f"{semconv.TOOL_OPERATION} fail")
        same(span.status.status_code, StatusCode.ERROR, "The status of the tool's span")
        holds(
            "no such page" in str(attributes_of(span)) + str(span.status.description),
            "The span does not say what failed",
        )

    @needs("structures")
    async def test_each_structure_is_recorded_as_it_ran(self, stage: Stage, structure: str) -> None:
        expected = self.structures[structure]
        found = await self.compared(
            stage, lambda: self.run_structure(stage.endpoint, structure, QUESTION), expected.answers
        )
        returned(found)
        agents = stage.agents()
        if expected.ordered:
            same(agents, list(expected.agents), "The agents of the calls")
            same(stage.tree(), plain(expected.tree), "The spans")
        else:
            same(sorted(map(str, agents)), sorted(map(str, expected.agents)), "The agents of the calls")
            same(stage.tree(ordered=False), unordered(expected.tree), "The spans")
        self.check_spans(stage)
        check_transitions(stage, calls=len(expected.agents))
        for name, wanted in (expected.attributes or {}).items():
            holds(stage.named(name), f"There is no span {name!r}")
            for said in map(attributes_of, stage.named(name)):
                same({key: said.get(key) for key in wanted}, dict(wanted), f"The attributes of {name!r}")

    async def test_whoever_reads_a_rollouts_record_finds_its_spans(self, stage: Stage, tmp_path: Path) -> None:
        """The runner's way, in a process that lives on: two rollouts, one after the other."""

        async def agent(task: Any) -> float:
            endpoint = dataclasses.replace(
                stage.endpoint, _closings=[]
            )  # clients of the runner's loop are closed there
            try:
                solver = await self.solver(endpoint)
                return float(await self.ask(solver, self.ways[0], task["question"]) == ANSWER)
            finally:
                await endpoint.close()

        runner = Runner(load_agent(agent, tmp_path), None, stage.gateway, stage.store, concurrency=1, timeout=30)
        jobs = [RolloutJob(f"rollout-{n}", 1, "g", Task("t", {"question": QUESTION}), "train", n) for n in range(2)]
        found: list[list[str]] = []

        def read(result: RolloutResult) -> None:
            same((result.status, result.record.error), (RolloutStatus.SUCCEEDED, ""), "How the rollout ended")
            spans = stage.store.spans(result.record.rollout_id)
            found.append([str(call_id) for span in spans if (call_id := span.attributes.get(semconv.CALL_ID))])

        with self.attached(), runner:
            await runner.run(jobs, on_result=read)
        made = [[call.call_id for call in stage.calls(job.rollout_id)] for job in jobs]
        same(found, made, "The calls that the spans in the store name, when the rollout ends")
        same([len(calls) for calls in made], [1, 1], "The number of calls")

    async def _solve(self, stage: Stage, *answers: str) -> Any:
        """Asks a solver with tools, attached and not."""
        endpoint = stage.endpoint

        async def run() -> str:
            return await self.ask(await self.solver(endpoint, tools=True), self.ways[0], QUESTION)

        return await self.compared(stage, run, answers)

    def _check_tools(self, stage: Stage, *, calls: int, tools: int) -> None:
        """Insists on ids, parents and numbers: what the model asked for is what was executed, all below the solver."""
        same(stage.agents(), [SOLVER] * calls, "The agents of the calls")
        check_transitions(stage, calls=calls)
        self.check_spans(stage)
        found = _tools(stage)
        messages = [choice.message for call in stage.calls() for choice in call.choices]
        asked = {
            tool["id"]: (tool["function"]["name"], json.loads(tool["function"]["arguments"]))
            for message in messages
            for tool in message.get("tool_calls") or ()
        }
        executed = {
            said[semconv.TOOL_CALL_ID]: (said[semconv.TOOL_NAME], json.loads(str(said[semconv.TOOL_ARGUMENTS])))
            for said in map(attributes_of, found)
        }
        same(executed, asked, "The tool calls, by id: name and arguments")
        same(len(found), tools, "The number of tools' spans")
        (solver,) = stage.named(f"{semconv.AGENT_OPERATION} {SOLVER}")
        above = {span.context.span_id: span.parent.span_id if span.parent else None for span in stage.spans()}
        for span in [*found, *(span for span in stage.spans() if call_of(span))]:
            holds(_is_below(span, solver, above), f"The span {span.name!r} is not below its agent's")
        for span in found:
            same(attributes_of(span).get(semconv.AGENT_NAME), SOLVER, f"The agent that {span.name!r} names")


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    """What a span says."""
    return dict(span.attributes or {})


def _tools(stage: Stage) -> list[ReadableSpan]:
    return [span for span in stage.spans() if attributes_of(span).get(semconv.OPERATION_NAME) == semconv.TOOL_OPERATION]


def _results(stage: Stage) -> dict[str, str]:
    """Arguments of each tool call, in one form of JSON -> its result."""
    said = map(attributes_of, _tools(stage))
    return {json.dumps(json.loads(s[semconv.TOOL_ARGUMENTS])): str(s[semconv.TOOL_RESULT]) for s in said}


def _is_below(span: ReadableSpan, other: ReadableSpan, above: Mapping[int, int | None]) -> bool:
    at: int | None = span.context.span_id
    while at is not None:
        at = above.get(at)
        if at == other.context.span_id:
            return True
    return False
