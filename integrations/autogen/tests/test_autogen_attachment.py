"""Attaching changes nothing a program can see, and detaching leaves everything as it was."""

from __future__ import annotations

import functools
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import autogen_core._single_threaded_agent_runtime as runtime_module
import pytest
import wrapt
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, SocietyOfMindAgent
from autogen_agentchat.base import Team
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import BaseAgent, CancellationToken, ComponentBase, InMemoryStore, SingleThreadedAgentRuntime
from autogen_core.models import UserMessage
from autogen_core.tools import BaseTool, FunctionTool
from autogen_ext.models.cache import CHAT_CACHE_VALUE_TYPE, ChatCompletionCache
from integrations.autogen.tests.conftest import tool_call
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spangrad.capture import current_site
from spangrad.errors import PluginError
from spangrad_autogen import AutoGenIntegration
from spangrad_autogen._cure import cure

if TYPE_CHECKING:
    from integrations.autogen.tests.conftest import Stage


def classes() -> Iterator[type]:
    waiting: list[type] = [ComponentBase]
    while waiting:
        cls = waiting.pop()
        yield cls
        waiting.extend(cls.__subclasses__())
    yield from (BaseAgent, SingleThreadedAgentRuntime)


def attributes() -> dict[tuple[str, str], object]:
    """Owner and name -> value, in the owner's order, of all that attaching may touch."""
    owners: list[Any] = [*dict.fromkeys(classes()), runtime_module]
    return {
        (repr(owner), name): value
        for owner in owners
        for name, value in vars(owner).items()
        if name != "__abstractmethods__" and not name.startswith("_abc")
    }


def assert_same(before: dict[tuple[str, str], object]) -> None:
    after = attributes()
    assert list(after) == list(before)
    assert [key for key, value in after.items() if value is not before[key]] == []


def test_detaching_restores_every_class_exactly() -> None:
    before = attributes()

    detach = AutoGenIntegration().attach()
    changed = {name for (_, name), value in attributes().items() if before.get((_, name)) is not value}
    detach()

    assert {"run", "run_stream", "on_messages_stream", "run_json", "call_tool", "on_message"} <= changed
    assert_same(before)


def test_the_hooks_stay_until_the_last_detach_and_a_detach_counts_once() -> None:
    before = attributes()
    first, second = AutoGenIntegration(), AutoGenIntegration()

    detach_first = first.attach()
    attached = attributes()
    detach_second = second.attach()
    assert_same(attached)
    detach_first()
    detach_first()
    assert_same(attached)
    assert second.describe()["agents"] == "hooked"
    detach_second()

    assert_same(before)
    assert second.describe()["agents"] == "not attached"


def test_attaching_from_many_threads_hooks_once() -> None:
    before = attributes()
    with ThreadPoolExecutor(8) as pool:
        detaches = list(pool.map(lambda _: AutoGenIntegration().attach(), range(32)))
        list(pool.map(lambda detach: detach(), detaches))

    assert_same(before)


def test_a_wrapper_that_somebody_put_on_top_stays_and_ours_beneath_does_nothing() -> None:
    before = attributes()
    detach = AutoGenIntegration().attach()
    ours = vars(BaseTool)["run_json"]

    @functools.wraps(ours)
    async def theirs(tool: Any, args: Any, cancellation_token: Any, call_id: str | None = None) -> Any:
        return await ours(tool, args, cancellation_token, call_id)

    BaseTool.run_json = theirs  # type: ignore[method-assign,assignment]  # what is tested
    detach()
    assert vars(BaseTool)["run_json"] is theirs
    again = AutoGenIntegration().attach()
    assert vars(BaseTool)["run_json"] is theirs

    BaseTool.run_json = ours  # type: ignore[method-assign]  # as above
    again()

    assert_same(before)


def test_what_somebody_took_away_while_attached_is_hooked_again_by_the_next() -> None:
    original = vars(BaseTool)["run_json"]
    detach = AutoGenIntegration().attach()
    BaseTool.run_json = original  # type: ignore[method-assign]  # what an instrumentor does that was there before us
    detach()

    again = AutoGenIntegration().attach()
    hooked = vars(BaseTool)["run_json"]
    again()

    assert hooked is not original
    assert vars(BaseTool)["run_json"] is original


@pytest.mark.parametrize("first", ["theirs", "ours"])
async def test_another_instrumentors_wrappers_see_what_they_always_see(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Instrumentors use wrapt, whose wrappers are told the instance, and bind arguments to what they wrap."""
    seen: list[tuple[str, object]] = []

    def listen(wrapped: Any, instance: object, args: Any, kwargs: Any) -> Any:
        seen.append((wrapped.__name__, instance))
        inspect.signature(wrapped).bind(*args, **kwargs)
        return wrapped(*args, **kwargs)

    def instrument() -> None:
        for name in ("on_messages_stream", "_execute_tool_call"):
            method = vars(AssistantAgent)[name]
            monkeypatch.setattr(AssistantAgent, name, wrapt.FunctionWrapper(method, listen))

    stage.answers(tool_call("add", a=1, b=2))
    agent = AssistantAgent("solver", stage.client(), tools=[add])
    if first == "theirs":
        instrument()
    detach = AutoGenIntegration().attach()
    try:
        if first == "ours":
            instrument()
        with stage.rollout():
            await agent.run(task="1+2?")
    finally:
        monkeypatch.undo()
        detach()

    assert seen == [("on_messages_stream", agent), ("_execute_tool_call", None)]
    assert stage.tree() == "invoke_agent solver\n  openai.chat\n  execute_tool add"


@pytest.mark.usefixtures("attached")
def test_hooked_methods_keep_their_kind_name_and_signature() -> None:
    assert inspect.iscoroutinefunction(BaseChatAgent.run)
    assert inspect.isasyncgenfunction(BaseChatAgent.run_stream)
    assert inspect.isasyncgenfunction(AssistantAgent.on_messages_stream)
    assert isinstance(vars(AssistantAgent)["_execute_tool_call"], staticmethod)
    assert AssistantAgent.on_messages_stream.__qualname__ == "AssistantAgent.on_messages_stream"
    assert list(inspect.signature(BaseTool.run_json).parameters)[:3] == ["self", "args", "cancellation_token"]


def test_a_class_made_while_attached_is_restored_too() -> None:
    detach = AutoGenIntegration().attach()

    class Own(AssistantAgent):
        async def run(self, **kwargs: Any) -> Any:
            return await super().run(**kwargs)

        async def on_messages(self, messages: Any, cancellation_token: CancellationToken) -> Any:
            return await super().on_messages(messages, cancellation_token)

    hooked = vars(Own)["on_messages"]
    detach()

    assert vars(Own)["on_messages"] is hooked.__wrapped__
    assert "__wrapped__" not in vars(vars(Own)["run"])


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def test_components_dump_and_load_the_same(stage: Stage) -> None:
    agent = AssistantAgent("solver", stage.client(), tools=[FunctionTool(add, "Adds.")])
    team = RoundRobinGroupChat([AssistantAgent("writer", stage.client())], max_turns=1)
    society = SocietyOfMindAgent("society", team, stage.client())
    dumped = [item.dump_component().model_dump() for item in (agent, team, society)]

    detach = AutoGenIntegration().attach()
    try:
        assert [item.dump_component().model_dump() for item in (agent, team, society)] == dumped
        loaded = Team.load_component(team.dump_component())
        assert type(loaded) is RoundRobinGroupChat
        assert loaded.dump_component().model_dump() == dumped[1]
    finally:
        detach()


async def test_a_programs_own_spans_are_the_same_attached_and_detached(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The real one can be set only once in a process; AutoGen asks for it by this name each time.
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)

    async def spans() -> list[tuple[str, str | None, str]]:
        """Name, parent's name and attributes, without the ids that are made up anew each time."""
        stage.answers(tool_call("add", a=1, b=2), "3", "3")
        agent = AssistantAgent("solver", stage.client(), tools=[add], reflect_on_tool_use=True)
        team = RoundRobinGroupChat([agent], max_turns=1)
        async for _ in agent.run_stream(task="1+2?"):
            pass
        async for _ in team.run_stream(task="1+2?"):
            pass
        found = exporter.get_finished_spans()
        exporter.clear()
        names = {span.context.span_id: span.name for span in found}
        above = [names.get(span.parent.span_id) if span.parent else None for span in found]
        rows = zip(found, above, strict=True)
        return sorted((plain(span.name), plain(parent), plain(dict(span.attributes or {}))) for span, parent in rows)

    def plain(value: object) -> str:
        return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|call_[0-9a-f]+|20\d\d-[-T:.\d]+", "*", str(value))

    before = await spans()
    detach = AutoGenIntegration().attach()
    try:
        outside = await spans()
        with stage.rollout():
            inside = await spans()
    finally:
        detach()

    assert "invoke_agent solver" in {name for name, _, _ in before}
    assert [row[:2] for row in outside] == [row[:2] for row in before]
    assert [row[:2] for row in inside] == [row[:2] for row in before]


@pytest.mark.usefixtures("attached")
async def test_a_cache_hit_is_no_call(stage: Stage) -> None:
    agent = AssistantAgent("solver", ChatCompletionCache(stage.client(), InMemoryStore[CHAT_CACHE_VALUE_TYPE]()))

    with stage.rollout():
        first = await agent.run(task="hello")
        await agent.on_reset(CancellationToken())
        second = await agent.run(task="hello")

    assert first.messages[-1].to_text() == second.messages[-1].to_text()
    assert stage.agents() == ["solver"]
    assert stage.tree() == "invoke_agent solver\n  openai.chat\ninvoke_agent solver"


async def test_an_autogen_of_another_shape_is_refused_and_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_agent: object) -> None: ...

    monkeypatch.setattr(BaseChatAgent, "run", run)
    before = attributes()

    with pytest.raises(PluginError) as raised:
        AutoGenIntegration().attach()

    assert "BaseChatAgent.run has another shape than spangrad-autogen knows" in raised.value.what
    assert raised.value.what.startswith("autogen-core 0.")
    assert raised.value.cure.startswith('pip install "autogen-core')
    assert_same(before)


def test_an_autogen_without_the_runtimes_methods_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SingleThreadedAgentRuntime, "_process_publish")

    with pytest.raises(PluginError, match=r"SingleThreadedAgentRuntime\._process_publish does not exist"):
        AutoGenIntegration().attach()


def test_an_autogen_whose_envelopes_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(runtime_module, "get_telemetry_envelope_metadata")

    with pytest.raises(PluginError, match="get_telemetry_envelope_metadata is not the function it was"):
        AutoGenIntegration().attach()


CHANGED = """\
import logging, sys
from spangrad_autogen import AutoGenIntegration
import autogen_core
AutoGenIntegration().attach()
import autogen_agentchat.base._chat_agent as base

class AssistantAgent(base.ChatAgent):
    __module__ = "autogen_agentchat.agents._assistant_agent"

print(AutoGenIntegration().describe()["agents"])
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def test_a_changed_class_that_is_imported_later_is_told_once_and_does_not_stop_the_program() -> None:
    lenient = python(CHANGED, SPANGRAD_STRICT="0")
    strict = python(CHANGED, SPANGRAD_STRICT="1")

    assert lenient.returncode == 0, lenient.stderr
    assert "AssistantAgent.on_messages does not exist" in lenient.stdout
    assert lenient.stderr.count("Agents, tools or teams of AutoGen are not recorded") == 1
    assert strict.returncode == 1
    assert "PluginError" in strict.stderr


ABSENT = """\
import sys
sys.modules["autogen_core"] = None
from spangrad_autogen import AutoGenIntegration
from spangrad.errors import PluginError
import spangrad_autogen.plugin
print(AutoGenIntegration().describe()["autogen"])
try:
    AutoGenIntegration().attach()
except PluginError as error:
    print(error)
"""


def test_a_missing_autogen_is_an_error_with_a_cure() -> None:
    done = python(ABSENT)

    assert done.stdout.splitlines() == [
        "autogen-core is not installed",
        f"autogen-core is not installed. {cure()}",
    ], done.stderr


LATER = """\
import sys
from spangrad.plugins import load_plugins

# autogen-core is imported, and so hooked, in the middle of the import of autogen-agentchat.
with load_plugins().attached():
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.teams import RoundRobinGroupChat
    marked = [AssistantAgent.on_messages_stream, AssistantAgent.run, RoundRobinGroupChat.run_stream]
    print([hasattr(method, "__spangrad__") for method in marked])
print([hasattr(method, "__spangrad__") for method in (AssistantAgent.run, RoundRobinGroupChat.run_stream)])
"""


def test_attaching_while_autogen_agentchat_is_half_imported_hooks_all_of_it() -> None:
    done = python(LATER)

    assert done.stdout.splitlines() == ["[True, True, True]", "[False, False]"], done.stderr


def test_importing_the_package_and_describing_it_imports_no_agent_framework() -> None:
    done = python("import sys, spangrad_autogen.plugin; print('autogen_core' in sys.modules)")

    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.usefixtures("attached")
async def test_outside_autogen_the_running_code_is_nowhere(stage: Stage) -> None:
    with stage.rollout():
        await stage.client().create([UserMessage(content="hello", source="user")])
        assert current_site() is None
