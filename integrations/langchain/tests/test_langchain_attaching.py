"""Hooking in, in either way, and leaving LangChain as it was."""

from __future__ import annotations

import copy
import gc
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from langchain.agents import create_agent
from langchain_core import callbacks
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda, config
from langchain_core.tracers import context

from spangrad.capture import current_site, use_scope
from spangrad.errors import PluginError
from spangrad.plugins import load_plugins
from spangrad_langchain import LangChainIntegration, SpangradCallbackHandler
from spangrad_langchain._work import WORK
from spangrad_openai import OpenAIIntegration

if TYPE_CHECKING:
    from integrations.langchain.tests.conftest import Stage

SOLVED = ["invoke_agent solver", "  invoke_node model", "    call solver"]


def ask(stage: Stage, **settings: Any) -> Any:
    agent: Any = create_agent(stage.model(), tools=[], name="solver")
    return agent.invoke({"messages": [HumanMessage("hello")]}, settings)


def hooks() -> list[object]:
    return list(context._configure_hooks)


def test_attaching_twice_hooks_in_once_and_the_last_detach_restores() -> None:
    before = hooks()
    first, second = LangChainIntegration().attach(), LangChainIntegration().attach()
    assert len(hooks()) == len(before) + 1
    first()
    first()
    assert len(hooks()) == len(before) + 1
    assert LangChainIntegration().describe()["callbacks"] == "hooked"
    second()
    assert hooks() == before
    assert LangChainIntegration().describe()["callbacks"] == "not attached"
    assert LangChainIntegration().describe()["client"] == "not attached"


def test_hooks_of_others_stay_in_their_order() -> None:
    class Theirs(BaseCallbackHandler):
        pass

    before = hooks()
    earlier: ContextVar[Any] = ContextVar("earlier", default=None)
    later: ContextVar[Any] = ContextVar("later", default=None)
    try:
        context.register_configure_hook(earlier, inheritable=True)
        detach = LangChainIntegration().attach()
        context.register_configure_hook(later, True, Theirs)
        detach()
        assert hooks() == [*before, (earlier, True, None, None), (later, True, Theirs, None)]
    finally:
        context._configure_hooks[:] = before  # type: ignore[assignment]


def test_threads_may_attach_and_detach_as_they_like() -> None:
    before = hooks()

    def come_and_go(_number: int) -> None:
        LangChainIntegration().attach()()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, range(64)))
    assert hooks() == before


@pytest.mark.usefixtures("attached")
def test_outside_a_rollout_nothing_is_recorded(stage: Stage) -> None:
    assert ask(stage)["messages"][-1].content == "You said: hello"

    assert stage.kept("rollout") == []
    assert [call.agent for call in stage.store.calls(None)] == [None]
    assert WORK._runs == {}
    assert current_site() is None


def test_the_handler_alone_tells_agents_apart(stage: Stage) -> None:
    detach = OpenAIIntegration().attach()
    try:
        with stage.rollout():
            ask(stage, callbacks=[SpangradCallbackHandler()])
    finally:
        detach()

    assert stage.trained() == ["solver"]
    assert stage.tree() == SOLVED


def test_the_handler_alone_is_enough_for_a_model_with_the_rollouts_own_address(stage: Stage) -> None:
    scope = stage.open("rollout")
    model = stage.model(base_url=scope.base_url, api_key=scope.api_key)
    with use_scope(scope):
        create_agent(model, tools=[], name="solver").invoke(
            {"messages": [HumanMessage("hello")]}, {"callbacks": [SpangradCallbackHandler()]}
        )

    assert len(stage.trained()) == 1
    assert stage.tree()[:2] == SOLVED[:2]


@pytest.mark.usefixtures("attached")
def test_the_handler_beside_the_integration_doubles_nothing(stage: Stage) -> None:
    handler = SpangradCallbackHandler()
    with stage.rollout():
        ask(stage, callbacks=[handler, SpangradCallbackHandler(), copy.deepcopy(handler)])
        stage.model(callbacks=[handler]).invoke("hello")

    assert stage.trained() == ["solver", None]
    assert stage.tree() == [*SOLVED, "call None"]
    assert not any((span.attributes or {}).get("spangrad.incomplete") for span in stage.kept())


@pytest.mark.usefixtures("attached")
def test_a_run_has_one_handler_of_ours() -> None:
    given = CallbackManager.configure([SpangradCallbackHandler()])
    assert [type(handler) for handler in given.handlers] == [SpangradCallbackHandler]
    assert len(CallbackManager.configure().inheritable_handlers) == 1


def test_handlers_that_are_gone_leave_no_probe_behind(stage: Stage) -> None:
    handler = SpangradCallbackHandler()
    del handler
    gc.collect()

    with stage.rollout():
        WORK.chain_started(run := _uuid(), None, "solver", metadata={"lc_agent_name": "solver"})
        site: Any = RunnableLambda(lambda _: current_site())
        assert site.invoke(1) is None
        WORK.ended(run)


def _uuid() -> Any:
    import uuid  # noqa: PLC0415

    return uuid.uuid4()


@pytest.mark.usefixtures("attached")
def test_nothing_is_kept_of_a_rollout_that_is_over(stage: Stage) -> None:
    with stage.rollout():
        WORK.chain_started(_uuid(), None, "left open", metadata={"lc_agent_name": "left open"})
        WORK.model_started(_uuid(), None, None)
        assert len(WORK._runs) == 2

    assert WORK._runs == {}
    assert stage.said("invoke_agent left open")["spangrad.incomplete"] is True


def test_a_framework_that_changed_is_refused_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hooks()

    def on_tool_start(self: Any, tool: Any, **kwargs: Any) -> None:
        """Another shape."""

    monkeypatch.setattr(BaseCallbackHandler, "on_tool_start", on_tool_start)
    with pytest.raises(
        PluginError, match=r"langchain-core .*: BaseCallbackHandler.on_tool_start has another"
    ) as caught:
        LangChainIntegration().attach()
    assert caught.value.cure.startswith('pip install "langchain-core')
    assert hooks() == before
    assert OpenAIIntegration().describe()["client"] == "not attached"
    assert "on_tool_start" in LangChainIntegration().describe()["langchain-core"]


@pytest.mark.parametrize(
    ("module", "name", "other", "what"),
    [
        (context, "_configure_hooks", (), "_configure_hooks has another shape"),
        (context, "_configure_hooks", None, "langchain_core.tracers.context._configure_hooks does not exist"),
        (context, "register_configure_hook", lambda: None, "register_configure_hook has another shape"),
        (config, "var_child_runnable_config", {}, "var_child_runnable_config has another shape"),
        (callbacks, "BaseCallbackManager", RunnableLambda, "BaseCallbackManager has another shape"),
    ],
)
def test_each_part_that_is_hooked_is_checked(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, other: object, what: str
) -> None:
    if other is None:
        monkeypatch.delattr(module, name)
    else:
        monkeypatch.setattr(module, name, other)
    with pytest.raises(PluginError) as caught:
        LangChainIntegration().attach()
    assert what in caught.value.what


def test_without_langchain_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "langchain_core"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [_Missing("langchain_core"), *sys.meta_path])

    with pytest.raises(PluginError, match="langchain-core is not installed") as caught:
        LangChainIntegration().attach()
    assert caught.value.cure.startswith('pip install "langchain-core')
    assert LangChainIntegration().describe() == {"langchain-core": "langchain-core is not installed"}


def test_a_langchain_that_cannot_be_imported_is_told_from_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "langchain_core"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [_Missing("langchain_core.callbacks"), *sys.meta_path])

    with pytest.raises(PluginError, match=r"the module langchain_core.callbacks does not exist"):
        LangChainIntegration().attach()


class _Missing:
    """Makes one module impossible to find."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(self, name: str, *_: Any) -> None:
        if name == self._module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_the_plugin_registers_the_integration_without_importing_langchain() -> None:
    plugins = load_plugins({"SPANGRAD_PLUGINS": "langchain,openai"})
    assert plugins.integrations.get("langchain").framework == "langchain_core"

    script = (
        "import sys, spangrad_langchain.plugin;"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'langchain_core', 'langgraph', 'openai', 'torch'}))"
    )
    listed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert listed.stdout.strip() == "[]"


def test_an_agent_that_imports_langchain_later_is_attached_then() -> None:
    script = """
import sys
from spangrad.plugins import load_plugins
with load_plugins({"SPANGRAD_PLUGINS": "langchain,openai"}).attached():
    assert "langchain_core" not in sys.modules
    import langgraph.graph
    from langchain_core.callbacks import CallbackManager
    print([type(handler).__name__ for handler in CallbackManager.configure().handlers])
print(CallbackManager.configure().handlers)
"""
    ran = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert (ran.stdout.splitlines(), ran.returncode) == (["['RunEvents']", "[]"], 0), ran.stderr


def test_langchain_core_alone_is_enough() -> None:
    script = """
import sys
for missing in ("langgraph", "langchain", "langchain_openai"):
    sys.modules[missing] = None
from langchain_core.language_models import FakeListChatModel
from spangrad.capture import RolloutScope, deliver_spans, flush_spans, use_scope
from spangrad_langchain import LangChainIntegration
integration = LangChainIntegration()
detach = integration.attach()
spans = []
with deliver_spans(spans.extend), use_scope(RolloutScope("rollout", 1, "task", "http://127.0.0.1:9/v1", "key")):
    model = FakeListChatModel(responses=["hello"]).with_config(run_name="poet", metadata={"lc_agent_name": "poet"})
    print(model.invoke("hi").content)
    flush_spans()
detach()
print([span.name for span in spans])
"""
    ran = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert (ran.stdout.splitlines(), ran.returncode) == (["hello", "['invoke_agent poet']"], 0), ran.stderr


@pytest.mark.usefixtures("attached")
def test_langchain_logs_no_trouble_with_the_handler(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with stage.rollout(), caplog.at_level(logging.WARNING):
        ask(stage)
    assert [record.message for record in caplog.records if "callback" in record.message] == []
