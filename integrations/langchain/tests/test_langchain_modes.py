"""The ways of LangChain to call a model: each call is recorded once, and the program gets what it gets without spangrad."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from integrations.langchain.tests.conftest import tool_call
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import tool
from langchain_core.caches import InMemoryCache
from langchain_core.messages import HumanMessage
from langchain_core.tools import ToolException
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from spangrad.gateway import EngineError
from spangrad.transitions import CallStatus

if TYPE_CHECKING:
    from integrations.langchain.tests.conftest import Stage

    from spangrad.testing import ScriptedPrompt

pytestmark = pytest.mark.usefixtures("attached")


class Answer(BaseModel):
    """An object instead of text."""

    word: str


def hello(text: str = "hello") -> Any:
    return {"messages": [HumanMessage(text)]}


def refusing_once() -> Callable[[ScriptedPrompt], str | Exception]:
    left = [EngineError("no", status=400)]
    return lambda prompt: left.pop() if left else f"You said: {prompt.last}"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("function_calling", ' {"word": "seven"}}</tool_call>'),  # what follows the opening that the forced tool gives
        ("json_mode", '{"word": "seven"}'),
        ("json_schema", '{"word": "seven"}'),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # langchain-openai's own, where it streams a schema
async def test_structured_output_in_each_mode_is_one_call(stage: Stage, method: Any, answer: str) -> None:
    stage.script = lambda _prompt: answer
    chain: Any = stage.model().with_structured_output(Answer, method=method).with_config(run_name="solver")

    with stage.rollout():
        assert await chain.ainvoke("give me json") == Answer(word="seven")
        assert list(chain.stream("give me json"))[-1] == Answer(word="seven")

    assert stage.trained() == ["solver", "solver"]
    assert stage.tree() == ["invoke_agent solver", "  call solver", "invoke_agent solver", "  call solver"]


def test_an_agents_structured_answer_by_a_tool_is_one_call(stage: Stage) -> None:
    stage.script = lambda _prompt: ' {"word": "seven"}}</tool_call>'
    agent: Any = create_agent(stage.model(), tools=[], response_format=ToolStrategy(Answer), name="solver")

    with stage.rollout():
        assert agent.invoke(hello())["structured_response"] == Answer(word="seven")

    assert stage.trained() == ["solver"]


def test_what_a_cache_answers_is_no_call_and_what_follows_keeps_its_place(stage: Stage) -> None:
    model = stage.model(cache=InMemoryCache()).with_config(run_name="solver")
    with stage.rollout():
        answers = [model.invoke(text).content for text in ("a", "a", "b")]

    assert answers == ["You said: a", "You said: a", "You said: b"]
    assert stage.trained() == ["solver", "solver"]


def test_a_call_tried_again_by_langchain_is_one_transition(stage: Stage) -> None:
    stage.script = refusing_once()
    model = stage.model().with_retry(stop_after_attempt=2, wait_exponential_jitter=False).with_config(run_name="solver")

    with stage.rollout():
        assert model.invoke("hello").content == "You said: hello"

    assert stage.agents() == ["solver", "solver"]
    assert [call.status for call in stage.calls()] == [CallStatus.ERROR, CallStatus.OK]
    assert stage.trained() == ["solver"]


def test_a_fallback_has_a_name_of_its_own(stage: Stage) -> None:
    stage.script = refusing_once()
    first, second = (stage.model().with_config(run_name=name) for name in ("first", "second"))

    with stage.rollout():
        assert first.with_fallbacks([second]).invoke("hello").content == "You said: hello"

    assert stage.agents() == ["first", "second"]
    assert stage.trained() == ["second"]
    errors = {span.name: span.status.status_code.name for span in stage.kept() if span.name.startswith("invoke_agent")}
    assert errors == {"invoke_agent first": "ERROR", "invoke_agent second": "UNSET"}


def test_a_stream_left_early_is_incomplete_and_no_transition(stage: Stage) -> None:
    stage.script = lambda prompt: ["one ", lambda: asyncio.sleep(60), "two"] if prompt.last == "slow" else "fast"
    model = stage.model().with_config(run_name="solver")

    with stage.rollout():
        for chunk in model.stream("slow"):
            if chunk.content:
                break
        assert model.invoke("quick").content == "fast"

    assert stage.agents() == ["solver", "solver"]
    assert stage.trained() == ["solver"]
    first, second = (span for span in stage.kept() if span.name == "invoke_agent solver")
    assert (first.attributes or {})["spangrad.incomplete"] is True
    assert "spangrad.incomplete" not in (second.attributes or {})
    assert first.status.status_code.name == "UNSET"


async def test_a_cancelled_agent_is_incomplete(stage: Stage) -> None:
    stage.script = lambda _prompt: ["one ", lambda: asyncio.sleep(60), "two"]
    agent: Any = create_agent(stage.model(), tools=[], name="solver")

    with stage.rollout():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent.ainvoke(hello()), timeout=0.5)
        assert (stage.said("invoke_agent solver")["spangrad.incomplete"], stage.trained()) == (True, [])


async def test_streams_of_a_graph_are_the_same_with_a_rollout_and_without(stage: Stage) -> None:
    agent: Any = create_agent(stage.model(), tools=[], name="solver")

    async def heard() -> list[Any]:
        stage.answers("one two three")
        return [
            (mode, [type(part).__name__ for part in chunk] if isinstance(chunk, tuple) else sorted(chunk))
            async for mode, chunk in agent.astream(hello(), stream_mode=["updates", "messages", "values", "custom"])
        ]

    outside = await heard()
    with stage.rollout():
        inside = await heard()

    assert inside == outside
    assert len(outside) > 2
    assert stage.trained() == ["solver"]


async def test_events_are_the_same_with_a_rollout_and_without(stage: Stage) -> None:
    agent: Any = create_agent(stage.model(), tools=[], name="solver")

    async def heard() -> list[tuple[str, str]]:
        return [(event["event"], event["name"]) async for event in agent.astream_events(hello(), version="v2")]

    outside = await heard()
    with stage.rollout():
        inside = await heard()

    assert inside == outside
    assert stage.trained() == ["solver"]


def test_a_tool_that_raises_is_marked_and_raises_as_ever(stage: Stage) -> None:
    @tool
    def fail(reason: str) -> str:
        """Fails."""
        raise LookupError(reason)

    stage.answers(tool_call("fail", reason="no such page"), "never mind")
    agent: Any = create_agent(stage.model(), tools=[fail], name="solver")
    with (
        stage.rollout(),
        contextlib.suppress(LookupError),
    ):  # what `create_agent` does with it has changed over versions
        agent.invoke(hello())

    span = stage.span("execute_tool fail")
    assert (span.status.status_code.name, span.status.description) == ("ERROR", "no such page")
    assert (span.attributes or {})["error.type"] == "LookupError"


def test_a_tools_error_that_it_answers_itself_is_marked(stage: Stage) -> None:
    @tool
    def search(query: str) -> str:
        """Searches."""
        raise ToolException(f"nothing on {query}")

    search.handle_tool_error = True
    stage.answers(tool_call("search", query="x"), "nothing found")
    agent: Any = create_agent(stage.model(), tools=[search], name="solver")
    with stage.rollout():
        assert agent.invoke(hello())["messages"][-1].content == "nothing found"

    span = stage.span("execute_tool search")
    assert (span.status.status_code.name, span.status.description) == ("ERROR", "nothing on x")
    assert (span.attributes or {})["gen_ai.tool.call.result"] == "nothing on x"


def test_a_node_that_raises_is_marked_and_raises_as_ever(stage: Stage) -> None:
    def broken(state: MessagesState) -> dict[str, Any]:
        stage.model().invoke(state["messages"])
        raise LookupError("lost")

    builder = StateGraph(MessagesState)
    builder.add_node("broken", broken)
    builder.add_edge(START, "broken")
    with stage.rollout(), pytest.raises(LookupError, match="lost"):
        builder.compile(name="team").invoke(hello())

    assert stage.trained() == ["broken"]
    assert {span.status.status_code.name for span in stage.kept() if span.name.startswith("invoke_")} == {"ERROR"}


def test_questions_of_a_batch_have_their_own_runs(stage: Stage) -> None:
    agent: Any = create_agent(stage.model(), tools=[], name="solver")
    with stage.rollout():
        states = agent.batch([hello(str(number)) for number in range(3)])

    assert [state["messages"][-1].content for state in states] == [f"You said: {number}" for number in range(3)]
    assert stage.trained() == ["solver"] * 3
    assert stage.tree() == ["invoke_agent solver", "  invoke_node model", "    call solver"] * 3


def test_an_address_in_the_environment_is_enough(stage: Stage) -> None:
    from langchain_openai import ChatOpenAI  # noqa: PLC0415 - as a program would

    with stage.rollout():
        ChatOpenAI(model="policy").with_config(run_name="solver").invoke("hello")

    assert stage.trained() == ["solver"]
