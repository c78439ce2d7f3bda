"""Hooking in, out, twice and at once; and an SDK that is not as expected."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, Runner, function_tool
from agents.models import openai_provider
from agents.tool_context import ToolContext
from agents.tracing.processors import BatchTraceProcessor
from agents.tracing.span_data import FunctionSpanData
from agents.tracing.spans import NoOpSpan, SpanImpl
from integrations.openai_agents.tests.conftest import hooked_in, tool_call
from openai._base_client import AsyncAPIClient

from spangrad.errors import PluginError
from spangrad.plugins import load_plugins
from spangrad_openai_agents import OpenAIAgentsIntegration
from spangrad_openai_agents._hooks import HOOKS, _Hooks

if TYPE_CHECKING:
    from integrations.openai_agents.tests.conftest import Stage

HOOKED: list[tuple[Any, str]] = [
    (SpanImpl, "start"),
    (SpanImpl, "finish"),
    (NoOpSpan, "start"),
    (NoOpSpan, "finish"),
    (NoOpSpan, "set_error"),
    (ToolContext, "from_agent_context"),
    (BatchTraceProcessor, "on_trace_start"),
    (BatchTraceProcessor, "on_span_end"),
    (openai_provider, "shared_http_client"),
    (AsyncAPIClient, "_prepare_options"),
]


def lying_there() -> list[object]:
    return [vars(owner)[name] for owner, name in HOOKED]


@function_tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def run(stage: Stage, rollout_id: str | None) -> None:
    """One run with a tool, inside a rollout or outside."""
    stage.answers(tool_call("add", a=1, b=1), "2")
    agent = Agent(name="solver", tools=[add])
    if rollout_id is None:
        await Runner.run(agent, "1+1?")
        return
    with stage.rollout(rollout_id):
        await Runner.run(agent, "1+1?")


# in and out


def test_detaching_puts_back_exactly_what_was_there() -> None:
    before = lying_there()

    with hooked_in():
        during = lying_there()

    assert all(now is not then for now, then in zip(during, before, strict=True))
    assert all(now is then for now, then in zip(lying_there(), before, strict=True))


def test_attaching_twice_hooks_once_and_the_last_detach_counts() -> None:
    before = lying_there()
    first = OpenAIAgentsIntegration().attach()
    hooked = lying_there()
    second = OpenAIAgentsIntegration().attach()

    assert lying_there() == hooked
    first()
    first()
    assert lying_there() == hooked
    second()
    assert lying_there() == before


def test_attaching_from_many_threads_leaves_nothing_behind() -> None:
    before = lying_there()
    barrier = threading.Barrier(8)

    def attach_and_detach(_: int) -> None:
        barrier.wait()
        for _ in range(20):
            OpenAIAgentsIntegration().attach()()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(attach_and_detach, range(8)))

    assert lying_there() == before
    assert not HOOKS.attached


async def test_what_somebody_wrapped_on_top_stays_and_ours_beneath_does_nothing(stage: Stage) -> None:
    plain = vars(SpanImpl)["finish"]
    ended: list[str] = []
    with hooked_in():
        ours = vars(SpanImpl)["finish"]

        def theirs(span: SpanImpl[Any], *args: Any, **kwargs: Any) -> None:
            ended.append(span.span_data.type)
            ours(span, *args, **kwargs)

        type.__setattr__(SpanImpl, "finish", theirs)

    assert vars(SpanImpl)["finish"] is theirs
    await run(stage, "one")
    assert stage.tree("one") == []
    assert "agent" in ended

    with hooked_in():
        await run(stage, "two")
        type.__setattr__(SpanImpl, "finish", ours)  # they take theirs away
    assert stage.tree("two") == ["invoke_agent solver", "  execute_tool add"]
    assert vars(SpanImpl)["finish"] is plain


def test_it_says_what_is_hooked() -> None:
    integration = OpenAIAgentsIntegration(keep_vendor_export=True)
    before = integration.describe()
    with hooked_in(integration):
        during = integration.describe()

    assert before["agents"] == "not attached"
    assert before["client"] == "not attached"
    assert (during["agents"], during["client"]) == ("hooked", "patched")
    assert during["export to the vendor"] == "as the program has it"
    assert during["openai-agents"] == before["openai-agents"] != ""
    assert integration.describe() == before


def test_the_plug_in_is_found_under_its_name() -> None:
    assert isinstance(load_plugins({}).integrations.get("openai-agents"), OpenAIAgentsIntegration)


# an SDK that is not as expected


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda patch: patch.delattr(NoOpSpan, "set_error"), "NoOpSpan.set_error"),
        (lambda patch: patch.setattr(SpanImpl, "start", lambda _span, _current: None), "SpanImpl.start"),
        (lambda patch: patch.delattr(ToolContext, "from_agent_context"), "ToolContext.from_agent_context"),
        (lambda patch: patch.delattr("agents.tracing.processors.BatchTraceProcessor"), "BatchTraceProcessor"),
        (lambda patch: patch.delattr(openai_provider, "shared_http_client"), "shared_http_client"),
        (lambda patch: patch.setattr(FunctionSpanData, "__init__", lambda _data, _title: None), "FunctionSpanData"),
    ],
)
def test_an_sdk_that_has_changed_is_refused_whole_with_a_cure(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None], what: str
) -> None:
    prepare_options = vars(AsyncAPIClient)["_prepare_options"]
    change(monkeypatch)

    with pytest.raises(PluginError, match=what) as caught:
        OpenAIAgentsIntegration().attach()

    assert "pip install" in caught.value.cure
    assert caught.value.what.startswith("openai-agents ")
    assert vars(AsyncAPIClient)["_prepare_options"] is prepare_options
    assert not HOOKS.attached


def test_a_second_copy_of_the_package_is_refused() -> None:
    with hooked_in(), pytest.raises(PluginError, match="another copy"):
        _Hooks().apply()


def python(code: str, folder: Path) -> str:
    """What a program of its own, started in that folder, prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


ATTACH = """
from spangrad.errors import PluginError
from spangrad_openai_agents import OpenAIAgentsIntegration
try:
    OpenAIAgentsIntegration().attach()
except PluginError as error:
    print(error)
"""
MISSING = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name == "agents":
            raise ModuleNotFoundError("No module named 'agents'", name="agents")
sys.meta_path.insert(0, Gone())
"""


def test_without_the_sdk_there_is_one_message_with_the_cure(tmp_path: Path) -> None:
    said = python(MISSING + ATTACH, tmp_path)

    assert said.startswith('openai-agents is not installed. pip install "openai-agents')


@pytest.mark.parametrize(
    "files",
    [
        {"agents.py": "AGENTS = ['mine']"},
        {"agents/__init__.py": "", "agents/tracing.py": "raise SystemExit('imported, and nobody asked for it')"},
        {"agents/__init__.py": "Runner = 'mine, too'"},
    ],
)
def test_a_package_of_the_programs_own_called_agents_is_not_taken_for_the_sdk(
    tmp_path: Path, files: Mapping[str, str]
) -> None:
    for name, code in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{code}\n")

    said = python(ATTACH, tmp_path)

    assert said.startswith(f"The package agents found here is not the OpenAI Agents SDK ({tmp_path}/agents")
    assert said.endswith("If your agent uses the SDK, give that package another name; if not, all is well")


WAITING = """
from spangrad.plugins import load_plugins
with load_plugins({"SPANGRAD_PLUGINS": "openai,openai-agents", "SPANGRAD_STRICT": "1"}).attached():
    from agents.tracing.spans import SpanImpl
    from openai._base_client import AsyncAPIClient
    print(hasattr(SpanImpl.start, "__wrapped__"), hasattr(AsyncAPIClient._prepare_options, "__wrapped__"))
print(hasattr(SpanImpl.start, "__wrapped__"), hasattr(AsyncAPIClient._prepare_options, "__wrapped__"))
"""


def test_it_is_attached_when_the_program_comes_to_import_the_sdk(tmp_path: Path) -> None:
    assert python(WAITING, tmp_path).splitlines() == ["True True", "False False"]


def test_importing_the_package_imports_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys, spangrad_openai_agents.plugin; print({'agents', 'openai', 'opentelemetry.sdk'} & set(sys.modules))"
    )

    assert python(code, tmp_path) in {"set()", "{'opentelemetry.sdk'}"}
