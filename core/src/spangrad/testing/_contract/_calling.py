"""Contract: every call is recorded exactly once, under its agent, and becomes the right transition or none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from spangrad import semconv
from spangrad.gateway import EndpointEngine
from spangrad.gateway._engine import EngineError
from spangrad.testing._byte_chat_format import END, ByteChatFormat
from spangrad.testing._contract._checks import (
    ANSWER,
    QUESTION,
    SOLVER,
    ContractChecks,
    check_transitions,
    needs,
    outcome,
    returned,
)
from spangrad.testing._contract._expect import same
from spangrad.testing._contract._reference_run import REFERENCE, tool_call_text
from spangrad.testing._contract._span_tree import call_of
from spangrad.testing._contract._stage import Stage, open_stage
from spangrad.testing._scripted_endpoint import ScriptedEndpoint
from spangrad.testing._scripted_sampler import Piece, ScriptedPrompt
from spangrad.transitions import CallStatus, Reason

_OBJECT = {"word": "seven", "number": 7}


class CallingChecks(ContractChecks):
    """How calls are made."""

    async def test_each_way_of_asking_makes_one_call_of_the_agent(self, stage: Stage, way: str) -> None:
        async def run() -> str:
            return await self.ask(await self.solver(stage.endpoint), way, QUESTION)

        same(returned(await self.compared(stage, run)), ANSWER, "The answer")
        self._check_one_call(stage, way)

    async def test_a_solver_used_before_attaching_makes_calls_of_its_rollouts(self, stage: Stage, way: str) -> None:
        """Its calls are what trains. Spans of theirs are not asked for: clients keep methods they have once bound."""
        solver = await self.solver(stage.endpoint)
        found = await self.compared(stage, lambda: self.ask(solver, way, QUESTION))
        same(returned(found), ANSWER, "The answer")
        same((stage.questions(), stage.agents()), ([QUESTION], [SOLVER]), "The calls: their questions and agents")
        check_transitions(stage, calls=1)

    @needs("batch_ways")
    async def test_each_question_of_a_batch_is_one_call(self, stage: Stage, batch_way: str) -> None:
        questions = [f"question {number}" for number in range(4)]
        solver = await self.solver(stage.endpoint)
        found = await self.compared(stage, lambda: self.batch(solver, batch_way, questions))
        same(returned(found), [f"You said: {question}" for question in questions], "The answers")
        same(sorted(stage.questions()), questions, "The questions of the calls")
        same(stage.agents(), [SOLVER] * 4, "The agents of the calls")
        check_transitions(stage, calls=4)

    @needs("stream_ways")
    async def test_a_stream_has_the_same_pieces_and_is_one_call(self, stage: Stage, stream_way: str) -> None:
        async def run() -> list[str]:
            return await self.stream(await self.solver(stage.endpoint), stream_way, QUESTION)

        found = await self.compared(stage, run)
        same("".join(returned(found)), ANSWER, "The answer")
        self._check_one_call(stage, stream_way)

    @needs("stream_ways")
    async def test_a_stream_nobody_reads_to_its_end_is_no_transition(self, stage: Stage, stream_way: str) -> None:
        def slow(prompt: ScriptedPrompt) -> list[Piece]:
            return ["You said: ", lambda: asyncio.sleep(60), prompt.last]

        solver = await self.solver(stage.endpoint)
        await self.compared(stage, lambda: self.close_early(solver, stream_way, QUESTION), slow)
        (call,) = stage.calls()
        same((call.status, call.agent), (CallStatus.UNDELIVERED, SOLVER), "The call")
        check_transitions(stage, calls=0)
        same([entry.reason for entry in stage.extraction().entries], [Reason.UNDELIVERED], "Why it is no transition")

    @needs("stream_ways")
    async def test_a_stream_closed_early_leaves_nothing_behind_for_what_follows(
        self, stage: Stage, stream_way: str
    ) -> None:
        def slow(prompt: ScriptedPrompt) -> list[Piece]:
            wait: list[Piece] = [lambda: asyncio.sleep(60)] if prompt.last == "early" else []
            return ["You said: ", *wait, prompt.last]

        stage.answers(slow)
        with self.attached():
            solver = await self.solver(stage.endpoint)
            async with stage.rollout("first"):
                await self.close_early(solver, stream_way, "early")
            async with stage.rollout("second"):
                await self.ask(solver, self.ways[0], QUESTION)
        same(stage.agents("first"), [SOLVER], "The agents of the first rollout's calls")
        same(stage.agents("second"), [SOLVER], "The agents of the second rollout's calls")
        self.check_solver_tree(stage, "second")

    @needs("structured_modes")
    async def test_structured_output_is_the_same_object_from_one_call(self, stage: Stage, mode: str) -> None:
        found = await self.compared(stage, lambda: self.structured(stage.endpoint, mode, QUESTION), _structured)
        same(dict(returned(found)), _OBJECT, "The object")
        same(stage.agents(), [self.structured_agent], "The agents of the calls")
        check_transitions(stage, calls=1)

    @needs("has_cache")
    async def test_what_the_frameworks_cache_answers_is_no_call(self, stage: Stage) -> None:
        with self.attached():
            solver = await self.cached_solver(stage.endpoint)
            async with stage.rollout("first"):
                first = [await self.ask(solver, self.ways[0], QUESTION) for _ in range(2)]
            async with stage.rollout("second"):
                second = await self.ask(solver, self.ways[0], QUESTION)
        same([*first, second], [ANSWER] * 3, "The answers")
        check_transitions(stage, "first", calls=1)
        same(stage.calls("second"), [], "The calls of a rollout that the cache answered")

    async def test_an_error_of_the_model_reaches_the_program_as_ever(self, stage: Stage) -> None:
        def refuse(_prompt: ScriptedPrompt) -> Exception:
            return EngineError("the model refuses", status=400)

        solver = await self.solver(stage.endpoint)
        found = await self.compared(stage, lambda: self.ask(solver, self.ways[0], QUESTION), refuse)
        same(found[0], "raised", "How the run ended")
        (call,) = stage.calls()
        same((call.status, call.agent), (CallStatus.ERROR, SOLVER), "The call")
        check_transitions(stage, calls=0)
        if self.records_work:
            (agent,) = stage.named(f"{semconv.AGENT_OPERATION} {SOLVER}")
            same(agent.status.status_code, StatusCode.ERROR, "The status of the agent's span")

    @pytest.mark.parametrize("status", [429, 500])
    async def test_a_request_that_is_tried_again_is_one_transition(self, tmp_path: Path, status: int) -> None:
        with ScriptedEndpoint(_answer, fail_first=1, fail_status=status) as upstream:
            engine = EndpointEngine(upstream.base_url, policy_version=0)
            folder = tmp_path / "retried"
            folder.mkdir()
            async with open_stage(folder, engine) as stage:
                with self.attached():
                    solver = await self.solver(stage.endpoint)
                    async with stage.rollout():
                        found = await outcome(lambda: self.ask(solver, self.ways[0], QUESTION))
                same(returned(found), ANSWER, "The answer")
                calls = stage.calls()
                same([call.status for call in calls], [CallStatus.ERROR, CallStatus.OK], "How the calls ended")
                same([call.agent for call in calls], [SOLVER] * 2, "The agents of the calls")
                same(len({call.request_key for call in calls}), 1, "The number of requests the agent made")
                check_transitions(stage, calls=1)
                named = [call_id for span in stage.spans() if (call_id := call_of(span))]
                same(named, [calls[1].call_id], "The calls that spans name")

    @needs("has_judge")
    async def test_the_calls_of_a_judge_are_recorded_but_not_trained(self, stage: Stage) -> None:
        found = await self.compared(stage, lambda: self.judged(stage.endpoint, QUESTION))
        same(returned(found), ANSWER, "The answer")
        calls = sorted(stage.calls(), key=lambda call: call.model)
        asked = [(call.model, call.policy, call.agent) for call in calls]
        same(asked, [("judge", None, self.judge_agent), ("policy", "policy", SOLVER)], "Models, policies and agents")
        check_transitions(stage, calls=1)

    async def test_the_reference_conversation_gives_the_reference_transitions(self, stage: Stage) -> None:
        """Written by hand from the wire format, so the same for all integrations."""
        found = await self.compared(stage, lambda: self.reference(stage.endpoint, REFERENCE), list(REFERENCE.answers))
        same(returned(found), REFERENCE.answers[1], "The answer")
        transitions = check_transitions(stage, calls=2)
        shown = ByteChatFormat().decode
        first = _REFERENCE_PROMPT
        second = (
            f"{first}{REFERENCE.answers[0]}<|im_end|><|im_start|>tool\nZurich: 21 °C<|im_end|><|im_start|>assistant\n"
        )
        same([shown(t.prompt_ids) for t in transitions], [first, second], "The prompts")
        expected = [(*answer.encode(), END) for answer in REFERENCE.answers]
        same([t.action_ids for t in transitions], expected, "The sampled ids")

    def _check_one_call(self, stage: Stage, way: str) -> None:
        same(stage.questions(), [QUESTION], "The questions of the calls")
        same(stage.agents(), [SOLVER], "The agents of the calls")
        (transition,) = check_transitions(stage, calls=1)
        same(transition.action_ids, (*ANSWER.encode(), END), "The sampled ids")
        self.check_solver_tree(stage, way=way)


_REFERENCE_PROMPT = (
    "<|im_start|>tools\n"
    '{"type":"function","function":{"name":"measure","description":"Measures the temperature.","parameters":'
    '{"type":"object","properties":{"city":{"type":"string"},"degrees":{"type":"integer"}},"required":["city","degrees"]}}}'
    "<|im_end|><|im_start|>system\nYou report the weather.<|im_end|>"
    "<|im_start|>user\nWie warm ist es in Zürich?<|im_end|><|im_start|>assistant\n"
)


def _structured(prompt: ScriptedPrompt) -> str:
    """The object: as a call of the first tool the model is shown, if any; what the gateway has begun is not said again."""
    first = prompt.messages[0]
    if first["role"] != "tools":
        return json.dumps(_OBJECT)
    tool = json.loads(first["content"].splitlines()[0])
    begun = ByteChatFormat().decode(prompt.ids).rpartition("<|im_start|>assistant\n")[2]
    return tool_call_text(tool["function"]["name"], **_OBJECT).removeprefix(begun)


def _answer(body: Mapping[str, Any]) -> str:
    """What the upstream server says."""
    content = body["messages"][-1]["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    return f"You said: {text}"
