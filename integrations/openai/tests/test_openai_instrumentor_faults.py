"""What the instrumentor of openai does wrong after openai has answered is not the program's to bear."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from integrations.openai.tests.test_openai_contract import TestOpenAIContract as Contract
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel

from spangrad.testing._contract._stage import Stage, open_stage
from spangrad_openai import OpenAIIntegration

RESPONSES = "opentelemetry.instrumentation.openai.v1.responses_wrappers"


@pytest.mark.parametrize("way", ["async responses", "sync responses"])
async def test_where_it_fails_the_program_has_its_answer_and_the_call_its_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    def fails(*_: object) -> None:
        raise LookupError("an answer it does not know")

    OpenAIIntegration().attach()()  # so that there is something to patch
    monkeypatch.setattr(importlib.import_module(RESPONSES), "set_data_attributes", fails)
    async with open_stage(tmp_path) as stage:
        await Contract().test_each_way_of_asking_makes_one_call_of_the_agent(stage, way)

    told = [record.getMessage() for record in caplog.records if record.name == "spangrad.openai"]
    lacks = "The span of a call lacks what its answer says, for the instrumentor of openai failed: "
    assert told == [f"{lacks}LookupError('an answer it does not know')"]


async def test_raw_responses_that_stream_are_as_ever(tmp_path: Path) -> None:
    contract = Contract()

    async def ask(stage: Stage) -> list[str]:
        solver = await contract.solver(stage.endpoint)
        raw = solver.client.responses.with_streaming_response
        async with raw.create(model=solver.model, input="How are you?", stream=True) as response:
            stream: Any = await response.parse()
            return [event.type async for event in stream]

    async with open_stage(tmp_path) as stage:
        expected = await ask(stage)
        with contract.attached():
            async with stage.rollout():
                assert await ask(stage) == expected
        assert expected[-1] == "response.completed"
        assert len(stage.calls("rollout")) == 1
        assert stage.tree("rollout") == ""  # rather no span than one that says the call failed


class Answer(BaseModel):
    word: str
    number: int


async def test_a_parsed_answer_makes_no_warnings(tmp_path: Path) -> None:
    async def parse(client: AsyncOpenAI, model: str) -> list[object]:
        chat = await client.chat.completions.parse(
            model=model, messages=[{"role": "user", "content": "Seven?"}], response_format=Answer
        )
        response = await client.responses.parse(model=model, input="Seven?", text_format=Answer)
        return [chat.choices[0].message.parsed, response.output_parsed]

    async with open_stage(tmp_path) as stage:
        stage.answers(lambda _: '{"word": "seven", "number": 7}')
        client = (await Contract().solver(stage.endpoint)).client
        with Contract().attached(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            async with stage.rollout():
                assert await parse(client, stage.endpoint.model) == [Answer(word="seven", number=7)] * 2
    assert [str(warning.message) for warning in warned] == []


@pytest.mark.parametrize("reasoning", [Reasoning(effort="low"), {"effort": "low"}], ids=["object", "dict"])
async def test_a_call_with_reasoning_settings_of_any_form_has_its_span(tmp_path: Path, reasoning: Any) -> None:
    async with open_stage(tmp_path) as stage:
        client = (await Contract().solver(stage.endpoint)).client
        with Contract().attached():
            async with stage.rollout():
                await client.responses.create(model=stage.endpoint.model, input="How are you?", reasoning=reasoning)
        assert stage.tree("rollout") == "call None"  # its span, of no agent
