"""Whose call it is: the rule by which agents get their names, and where calls have their place."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypedDict

import pytest
from integrations.langchain.tests.conftest import tool_call
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.tools import tool
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnableParallel
from langgraph.graph import START, MessagesState, StateGraph
from openai import AsyncOpenAI, OpenAI

from spangrad_langchain._naming import given_name, is_part

if TYPE_CHECKING:
    from integrations.langchain.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached")


class Text(TypedDict, total=False):
    text: str


def graph_of(nodes: dict[str, Any], *, name: str | None = None, metadata: dict[str, Any] | None = None) -> Any:
    """A graph that runs its nodes one after the other."""
    builder = StateGraph(MessagesState)
    last = START
    for node, action in nodes.items():
        builder.add_node(node, action, metadata=metadata)
        builder.add_edge(last, node)
        last = node
    return builder.compile(name=name)


def asking(model: Any) -> Any:
    """A node that asks the model."""

    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    return node


def hello() -> Any:
    return {"messages": [HumanMessage("hello")]}


@pytest.mark.parametrize(
    ("node", "part"),
    [
        ("model", True),
        ("agent", True),
        ("tools", True),
        ("SummarizationMiddleware.before_model", True),
        ("writer", False),
        ("call_model", False),
        ("before_model", True),
    ],
)
def test_the_nodes_of_prebuilt_agents_are_parts(node: str, *, part: bool) -> None:
    assert is_part(node) is part


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("writer", "writer"),
        ("LangGraph", None),
        ("RunnableSequence", None),
        ("RunnableParallel<a,b>", None),
        ("", None),
        (None, None),
    ],
)
def test_the_names_that_langchain_gives_by_itself_are_no_names(name: str | None, given: str | None) -> None:
    assert given_name(name) == given


def test_a_model_called_by_itself_has_no_agent(stage: Stage) -> None:
    with stage.rollout():
        stage.model().invoke("hello")

    assert stage.trained() == [None]
    assert stage.tree() == ["call None"]


def test_a_call_may_be_given_the_name_of_its_agent(stage: Stage) -> None:
    model = stage.model()
    with stage.rollout():
        model.with_config(run_name="poet").invoke("hello")
        model.invoke("hello", config={"metadata": {"lc_agent_name": "critic"}})

    assert stage.trained() == ["poet", "critic"]
    assert stage.tree() == ["invoke_agent poet", "  call poet", "invoke_agent critic", "  call critic"]


def test_metadata_names_the_agent_inside_a_node_too(stage: Stage) -> None:
    critic = stage.model().with_config(metadata={"lc_agent_name": "critic"})
    with stage.rollout():
        graph_of({"writer": asking(stage.model()), "review": asking(critic)}).invoke(hello())
        graph_of({"review": asking(stage.model())}, metadata={"lc_agent_name": "judge"}).invoke(hello())

    assert stage.trained() == ["writer", "critic", "judge"]
    assert stage.tree()[2:5] == ["invoke_node review", "  invoke_agent critic", "    call critic"]


def test_a_name_given_to_a_chain_does_not_take_a_node_its_name(stage: Stage) -> None:
    chain = ChatPromptTemplate.from_template("{messages}") | stage.model()

    with stage.rollout():
        graph_of({"writer": asking(chain.with_config(run_name="draft"))}).invoke(hello())

    assert stage.trained() == ["writer"]
    assert stage.tree() == ["invoke_node writer", "  call writer"]


def test_chains_inside_a_chain_are_told_apart(stage: Stage) -> None:
    def chain(template: str, name: str) -> Any:
        return (ChatPromptTemplate.from_template(template) | stage.model()).with_config(run_name=name)

    with stage.rollout():
        pipeline = chain("write on {x}", "writer") | RunnableLambda(lambda message: {"y": message.content})
        (pipeline | chain("check {y}", "checker")).with_config(run_name="pipeline").invoke({"x": 1})

    assert stage.trained() == ["writer", "checker"]
    assert stage.tree() == [
        "invoke_agent pipeline",
        "  invoke_agent writer",
        "    call writer",
        "  invoke_agent checker",
        "    call checker",
    ]


def test_branches_of_a_chain_side_by_side_have_their_own_agents(stage: Stage) -> None:
    branches = {name: stage.model().with_config(run_name=name) for name in ("left", "right")}

    with stage.rollout():
        found = RunnableParallel(branches).with_config(run_name="both").invoke("hello")

    assert set(found) == {"left", "right"}
    assert sorted(map(str, stage.trained())) == ["left", "right"]
    tree = stage.tree()
    assert tree[0] == "invoke_agent both"
    assert {(tree[number], tree[number + 1]) for number in (1, 3)} == {
        ("  invoke_agent left", "    call left"),
        ("  invoke_agent right", "    call right"),
    }


def test_a_function_that_calls_a_model_is_an_agent_and_one_that_does_not_is_none(stage: Stage) -> None:
    model = stage.model()

    def poet(topic: str) -> str:
        return str(model.invoke(topic).content)

    def shout(text: str) -> str:
        return text.upper()

    with stage.rollout():
        assert (RunnableLambda(poet) | shout).invoke("hello") == "YOU SAID: HELLO"

    assert stage.trained() == ["poet"]
    assert stage.tree() == ["invoke_agent poet", "  call poet"]


def test_a_graph_whose_nodes_are_named_as_those_of_a_prebuilt_agent_is_the_agent(stage: Stage) -> None:
    with stage.rollout():
        graph_of({"agent": asking(stage.model())}, name="solver").invoke(hello())
        graph_of({"agent": asking(stage.model())}).invoke(hello())
        graph_of({"team": graph_of({"agent": asking(stage.model())}, name="solver")}).invoke(hello())

    assert stage.trained() == ["solver", "agent", "solver"]
    assert stage.tree() == [
        "invoke_agent solver",
        "  invoke_node agent",
        "    call solver",
        "invoke_node agent",
        "  call agent",
        "invoke_node team",
        "  invoke_agent solver",
        "    invoke_node agent",
        "      call solver",
    ]


def test_what_middleware_asks_is_the_agents(stage: Stage) -> None:
    model = stage.model()

    class Planning(AgentMiddleware):
        def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            del runtime
            return {"messages": [model.invoke(f"plan for {state['messages'][0].content}")]}

    with stage.rollout():
        create_agent(stage.model(), tools=[], middleware=[Planning()], name="planner").invoke(hello())

    assert stage.trained() == ["planner", "planner"]
    assert stage.tree() == [
        "invoke_agent planner",
        "  invoke_node Planning.before_model",
        "    call planner",
        "  invoke_node model",
        "    call planner",
    ]


def test_a_model_called_in_a_tool_is_placed_there(stage: Stage) -> None:
    inner: BaseChatModel = stage.model()

    @tool
    def summarize(text: str) -> str:
        """Summarizes."""
        return str(inner.invoke(text).content)

    stage.answers(tool_call("summarize", text="long"), "short", "done")
    with stage.rollout():
        create_agent(stage.model(), tools=[summarize], name="reader").invoke(hello())

    assert stage.trained() == ["reader", "reader", "reader"]
    assert stage.tree()[3:6] == ["  invoke_node tools", "    execute_tool summarize", "      call reader"]


def test_an_agent_called_with_callbacks_of_its_own_stays_below_its_caller(stage: Stage) -> None:
    helper: Any = create_agent(stage.model(), tools=[], name="helper")

    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": helper.invoke({"messages": state["messages"]}, {"callbacks": []})["messages"]}

    with stage.rollout():
        graph_of({"boss": node}).invoke(hello())

    assert stage.tree() == [
        "invoke_node boss",
        "  invoke_agent helper",
        "    invoke_node model",
        "      call helper",
    ]


def test_a_plain_client_in_a_node_is_placed_there(stage: Stage) -> None:
    def node(state: MessagesState) -> dict[str, Any]:
        with OpenAI() as client:
            said = client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": str(state["messages"][-1].content)}]
            )
        return {"messages": [HumanMessage(said.choices[0].message.content or "")]}

    with stage.rollout():
        graph_of({"raw": node}).invoke(hello())

    assert stage.trained() == ["raw"]
    assert stage.tree() == ["invoke_node raw", "  call raw"]


async def test_a_plain_client_in_an_asynchronous_function_is_placed_there(stage: Stage) -> None:
    async def poet(topic: str) -> str | None:
        async with AsyncOpenAI() as client:
            said = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": topic}])
        return said.choices[0].message.content

    with stage.rollout():
        assert await RunnableLambda(poet).ainvoke("hello") == "You said: hello"

    assert stage.trained() == ["poet"]
    assert stage.tree() == ["invoke_agent poet", "  call poet"]


def test_a_retriever_that_asks_a_model_passes_its_agent_on(stage: Stage) -> None:
    class Expanding(BaseRetriever):
        model: Any

        def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
            said = self.model.invoke(query, {"callbacks": run_manager.get_child()})
            return [Document(page_content=str(said.content))]

    with stage.rollout():
        chain = Expanding(model=stage.model()) | RunnableLambda(lambda docs: docs[0].page_content)
        assert chain.with_config(run_name="searcher").invoke("q") == "You said: q"

    assert stage.trained() == ["searcher"]
    assert stage.tree() == ["invoke_agent searcher", "  call searcher"]


def test_a_stream_left_open_does_not_take_the_calls_that_follow(stage: Stage) -> None:
    kept: list[Any] = []

    def first(state: MessagesState) -> dict[str, Any]:
        stream = stage.model().stream(state["messages"])
        kept.append(stream)
        return {"messages": [next(stream)]}

    def second(state: MessagesState) -> dict[str, Any]:
        with OpenAI() as client:
            client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "raw"}])
        return asking(stage.model())(state)  # type: ignore[no-any-return]

    with stage.rollout():
        graph_of({"first": first, "second": second}).invoke(hello())
    for stream in kept:
        stream.close()

    assert stage.agents() == ["first", "second", "second"]


def test_a_rollout_inside_a_node_has_the_node_to_itself(stage: Stage) -> None:
    def node(state: MessagesState) -> dict[str, Any]:
        with stage.rollout(str(state["messages"][0].content)):
            return asking(stage.model())(state)  # type: ignore[no-any-return]

    graph_of({"writer": node}).invoke({"messages": [HumanMessage("alone")]})
    with stage.rollout("outer"):
        graph_of({"writer": node}).invoke({"messages": [HumanMessage("inner")]})

    assert [len(stage.calls(name)) for name in ("outer", "alone", "inner")] == [0, 1, 1]
    assert stage.tree("outer") == ["invoke_node writer"]


def test_an_agent_in_a_thread_of_its_own_is_in_its_rollout(stage: Stage) -> None:
    agent = create_agent(stage.model(), tools=[], name="worker")
    with stage.rollout():
        thread = threading.Thread(target=agent.invoke, args=(hello(),))
        thread.start()
        thread.join()

    assert stage.trained() == ["worker"]
    assert stage.tree() == ["invoke_agent worker", "  invoke_node model", "    call worker"]


async def test_rollouts_side_by_side_keep_their_own_work(stage: Stage) -> None:
    graph = graph_of({"writer": asking(stage.model()), "checker": asking(stage.model())})
    names = [f"rollout-{number}" for number in range(4)]

    async def one(name: str) -> None:
        with stage.rollout(name):
            await graph.ainvoke({"messages": [HumanMessage(name)]})

    await asyncio.gather(*map(one, names))

    for name in names:
        assert stage.trained(name) == ["writer", "checker"]
        assert stage.tree(name) == ["invoke_node writer", "  call writer", "invoke_node checker", "  call checker"]


async def test_configuration_passed_on_by_hand_is_followed(stage: Stage) -> None:
    async def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [await stage.model().ainvoke(state["messages"], config)]}

    with stage.rollout():
        await graph_of({"writer": node}).ainvoke(hello())

    assert stage.tree() == ["invoke_node writer", "  call writer"]


def test_a_thread_of_a_nodes_own_is_placed_by_the_nodes_configuration(stage: Stage) -> None:
    def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        thread = threading.Thread(target=stage.model().invoke, args=(state["messages"], config))
        thread.start()
        thread.join()
        return {}

    with stage.rollout():
        graph_of({"writer": node}).invoke(hello())

    assert stage.trained() == ["writer"]
    assert stage.tree() == ["invoke_node writer", "  call writer"]


@pytest.mark.filterwarnings("ignore:.* has been moved to .langchain.agents")
def test_the_older_prebuilt_agent_is_named_as_it_is(stage: Stage) -> None:
    from langgraph.prebuilt import create_react_agent  # noqa: PLC0415 - using it warns; importing it may some day

    @tool
    def double(number: int) -> int:
        """Doubles."""
        return 2 * number

    stage.answers(tool_call("double", number=2), "4")
    with stage.rollout():
        create_react_agent(stage.model(), [double], name="solver").invoke(hello())

    assert stage.trained() == ["solver", "solver"]
    assert stage.tree() == [
        "invoke_agent solver",
        "  invoke_node agent",
        "    call solver",
        "  invoke_node tools",
        "    execute_tool double",
        "  invoke_node agent",
        "    call solver",
    ]
