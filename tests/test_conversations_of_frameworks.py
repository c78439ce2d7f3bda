"""Agents of every framework, whose model writes as no template would: each later call begins with the tokens of the one before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool
from langchain_core.tools import tool
from tests.test_integrations_together import Frameworks, stage

from spangrad.testing._contract._stage import Stage
from spangrad.transitions import Call

__all__ = ["stage"]

ANSWERS: Mapping[str, str] = {
    "a bare call": '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>',
    "odd spacing": '\n<tool_call>\n{ "arguments":  {"b":2,  "a":1},"name":"add" }\n</tool_call>\n',
    "words before": 'Let me see.\n\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>',
    "spaces around words": '  Let me see. <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>',
    "words behind": '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call> There.',
    "a number written otherwise": '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2e0}}</tool_call>',
    "two calls": '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>\n'
    '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>',
    "thoughts": '<think>\nhm\n</think>\n\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>',
    "wrong arguments": '<tool_call>{"name": "add", "arguments": {"c": "é"}}</tool_call>',
}


async def add(a: int, b: int) -> str:
    """Adds."""
    return str(a + b)


async def by_responses(frameworks: Frameworks, question: str) -> None:
    provider = OpenAIProvider(openai_client=frameworks.plain, use_responses=True)
    agent = Agent[Any](name="agents", tools=[function_tool(add)])
    await Runner.run(agent, question, run_config=RunConfig(model_provider=provider, model="policy"))


ASKED: Mapping[str, Callable[[Frameworks, str], Awaitable[Any]]] = {
    "autogen": lambda frameworks, question: frameworks.ask_autogen(question, tools=[add]),
    "langchain": lambda frameworks, question: frameworks.ask_langchain(question, tools=[tool(add)]),
    "agents": lambda frameworks, question: frameworks.ask_agents(question, tools=[function_tool(add)]),
    "agents by responses": by_responses,
}


def whole(call: Call) -> tuple[int, ...]:
    return (*(call.prompt_ids or ()), *(call.choices[0].token_ids or ()))


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
@pytest.mark.parametrize("framework", ASKED)
async def test_a_call_after_a_tools_result_begins_with_the_call_before_it(
    stage: Stage, framework: str, answer: str
) -> None:
    stage.answers((answer, answer, "Three."))
    async with stage.rollout():
        await ASKED[framework](Frameworks(stage.endpoint), "1+2?")

    one, two, three = stage.calls()
    for earlier, later in ((one, two), (two, three)):
        assert later.continuation is not None
        assert later.continuation.continuity.goes_on, later.continuation.continuity
        assert later.prompt_ids is not None
        assert later.prompt_ids[: len(whole(earlier))] == whole(earlier)
