"""The SDK's own ways in: a run configuration and a processor, without any hook; and the environment alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from agents import Agent, RunConfig, Runner, add_trace_processor, function_tool
from agents.models.multi_provider import MultiProvider
from integrations.openai_agents.tests.conftest import tool_call

from spangrad.capture import Rollout, current_site, use_scope
from spangrad_openai_agents import SpangradTracingProcessor, run_config
from spangrad_openai_agents._hooks import HOOKS

if TYPE_CHECKING:
    from integrations.openai_agents.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("api")


@function_tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@pytest.fixture
def processor() -> Iterator[SpangradTracingProcessor]:
    """The processor, added as a program adds one."""
    processor = SpangradTracingProcessor()
    add_trace_processor(processor)
    yield processor
    processor.shutdown()


async def test_a_run_configuration_sends_the_runs_calls_to_its_rollout(stage: Stage) -> None:
    stage.answers("4")
    rollout = Rollout(stage.open("mine"))

    result = await Runner.run(Agent(name="solver"), "2+2?", run_config=run_config(rollout))

    assert result.final_output == "4"
    assert len(stage.trained("mine")) == 1
    assert stage.store.calls(None) == []


async def test_two_runs_at_once_keep_to_their_own_rollouts(stage: Stage) -> None:
    async def run(name: str) -> None:
        await Runner.run(Agent(name="solver"), name, run_config=run_config(stage.open(name)))

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY")
        await asyncio.gather(*(run(name) for name in ("one", "two", "three")))

    assert [len(stage.calls(name)) for name in ("one", "two", "three")] == [1, 1, 1]


def test_the_programs_own_configuration_is_kept(stage: Stage) -> None:
    base = RunConfig(workflow_name="mine", trace_metadata={"user": "u"}, model="small", group_id="chat-7")

    config = run_config(stage.open("mine"), base)

    assert (config.workflow_name, config.model, config.group_id) == ("mine", "small", "chat-7")
    assert config.trace_metadata == {"user": "u", "spangrad.rollout.id": "mine", "spangrad.attempt": "1"}
    assert isinstance(config.model_provider, MultiProvider)
    assert base.trace_metadata == {"user": "u"}
    assert run_config(stage.open("other")).group_id == "task"


async def test_a_processor_alone_records_the_work(stage: Stage, processor: SpangradTracingProcessor) -> None:
    del processor
    scope = stage.open("rollout")
    sites = []

    @function_tool
    def where() -> str:
        """Looks where it is."""
        sites.append(current_site())
        return "here"

    stage.answers(tool_call("add", a=1, b=1) + tool_call("where"), "2")
    with use_scope(scope):
        await Runner.run(Agent(name="solver", tools=[add, where]), "1+1?", run_config=run_config(scope))

    assert not HOOKS.attached
    assert stage.tree() == ["invoke_agent solver", "  execute_tool add", "  execute_tool where"]
    assert stage.said("execute_tool add")["gen_ai.tool.call.result"] == "2"
    (site,) = sites
    assert site is not None
    assert (site.agent, site.span.name) == ("solver", "execute_tool where")


@pytest.mark.usefixtures("attached")
async def test_hooks_and_processor_together_record_everything_once(
    stage: Stage, processor: SpangradTracingProcessor
) -> None:
    stage.answers(tool_call("add", a=1, b=1), "2")

    with stage.rollout():
        await Runner.run(Agent(name="solver", tools=[add]), "1+1?")

    processor.force_flush()
    assert stage.tree() == ["invoke_agent solver", "  execute_tool add"]
    assert stage.trained() == ["solver", "solver"]


async def test_a_processor_records_nothing_outside_a_rollout(stage: Stage, processor: SpangradTracingProcessor) -> None:
    del processor
    stage.answers("2")

    await Runner.run(Agent(name="solver"), "1+1?")

    assert stage.spans == []
