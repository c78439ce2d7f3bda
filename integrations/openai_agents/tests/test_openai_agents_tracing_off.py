"""The SDK's own tracing switched off, and no rollout at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    RunConfig,
    Runner,
    function_tool,
    set_default_openai_api,
)
from agents.tracing import set_tracing_disabled
from integrations.openai_agents.tests.conftest import tool_call
from opentelemetry.trace import StatusCode

if TYPE_CHECKING:
    from integrations.openai_agents.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached", "api")


@function_tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@function_tool
def broken(reason: str) -> str:
    """Fails; the model is told."""
    raise LookupError(reason)


def agent(*tools: Any, **options: Any) -> Agent[Any]:
    return Agent(name="solver", instructions="Solve it.", tools=list(tools), **options)


async def test_with_tracing_switched_off_the_work_is_recorded_all_the_same(stage: Stage) -> None:
    stage.script = lambda prompt: (
        tool_call("broken", reason="no such page") if prompt.messages[-1]["role"] != "tool" else "done"
    )
    set_tracing_disabled(True)
    try:
        with stage.rollout():
            await Runner.run(agent(broken), "go")
    finally:
        set_tracing_disabled(False)

    assert stage.trained() == ["solver", "solver"]
    assert stage.tree() == ["invoke_agent solver", "  execute_tool broken"]
    assert stage.span("execute_tool broken").status.status_code is StatusCode.ERROR
    assert stage.said("execute_tool broken")["gen_ai.tool.call.arguments"] == '{"reason": "no such page"}'
    assert "gen_ai.tool.call.id" in stage.said("execute_tool broken")


async def test_a_run_with_its_own_tracing_switched_off_stays_below_the_tool_that_started_it(stage: Stage) -> None:
    inner = Agent(name="inner", instructions="Be inner.")

    @function_tool
    async def delegate(question: str) -> str:
        """Delegates."""
        result = await Runner.run(inner, question, run_config=RunConfig(tracing_disabled=True))
        return str(result.final_output)

    stage.answers(tool_call("delegate", question="why?"), "because", "Because.")

    with stage.rollout():
        await Runner.run(agent(delegate), "go")

    assert stage.trained() == ["solver", "inner", "solver"]
    assert stage.tree() == ["invoke_agent solver", "  execute_tool delegate", "    invoke_agent inner"]


async def test_nothing_is_recorded_outside_a_rollout(stage: Stage) -> None:
    stage.answers(tool_call("add", a=2, b=3), "5")

    result = await Runner.run(agent(add), "2+3?")

    assert result.final_output == "5"
    assert stage.spans == []
    assert [call.agent for call in stage.store.calls(None)] == [None, None]


async def test_each_models_span_lies_below_the_agent_that_asked(stage: Stage) -> None:
    set_default_openai_api("chat_completions")  # the instrumentation of openai names no calls of the Responses API
    expert = Agent(name="expert")
    front = Agent(name="front", handoffs=[expert], tools=[add])
    stage.answers(tool_call("add", a=1, b=1), tool_call("transfer_to_expert"), "42")

    with stage.rollout():
        await Runner.run(front, "go")

    assert stage.callers() == ["invoke_agent front", "invoke_agent front", "invoke_agent expert"]
