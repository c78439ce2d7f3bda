"""Command-line agents: Python programs join the rollout they are started for by themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spangrad.capture import WorkRecorder, current_scope, tracer_provider
from spangrad.gateway import Gateway
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent
from spangrad.store import RolloutStatus, Store

Play = Callable[..., Awaitable[RolloutResult]]

CALL = """
import openai
def call(text):
    client = openai.OpenAI()
    client.chat.completions.create(model="echo", messages=[{"role": "user", "content": text}])
"""
SPAN = """
from spangrad.capture import tracer_provider
def span(name):
    tracer_provider().get_tracer("test").start_span(name).end()
"""


@pytest.fixture(autouse=True)
def nothing_of_ours_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SPANGRAD_"):
            monkeypatch.delenv(name)


@pytest.fixture
def play_program(play_agent: Play, tmp_path: Path) -> Play:
    """Runs a Python program as the agent of rollout "r"."""

    async def play(text: str, *options: str, **settings: Any) -> RolloutResult:
        program = tmp_path / "agent.py"
        program.write_text(text)
        return await play_agent([sys.executable, *options, str(program)], lambda: 1.0, **{"timeout": 60} | settings)

    return play


def names(store: Store) -> list[str]:
    return sorted(span.name for span in store.spans("r"))


async def test_a_program_that_knows_nothing_of_us_has_its_calls_recorded_with_spans(
    play_program: Play, echo_store: Store
) -> None:
    result = await play_program(f"{CALL}\ncall('hello')\nprint('4')\n")
    assert (result.status, result.output) == (RolloutStatus.SUCCEEDED, 4), result.error
    (call,) = echo_store.calls("r")
    (span,) = echo_store.spans("r")
    assert (span.name, span.rollout_id, span.attempt) == ("openai.chat", "r", 1)
    assert span.attributes["spangrad.call.id"] == call.call_id


async def test_raw_threads_and_executors_of_the_program_belong_to_the_rollout(
    play_program: Play, echo_store: Store
) -> None:
    result = await play_program(
        f"""{CALL}
import threading
from concurrent.futures import ThreadPoolExecutor
thread = threading.Thread(target=call, args=("thread",))
thread.start()
thread.join()
with ThreadPoolExecutor(2) as pool:
    list(pool.map(call, ["one", "two"]))
"""
    )
    assert result.status is RolloutStatus.SUCCEEDED, result.error
    calls = {call.call_id for call in echo_store.calls("r")}
    assert len(calls) == 3
    assert {span.attributes["spangrad.call.id"] for span in echo_store.spans("r")} == calls


async def test_a_client_library_imported_late_and_by_several_threads_at_once(
    play_program: Play, echo_store: Store
) -> None:
    result = await play_program(
        """
import threading
together = threading.Barrier(4)
def agent(number):
    together.wait()
    import openai
    openai.OpenAI().chat.completions.create(model="echo", messages=[{"role": "user", "content": str(number)}])
threads = [threading.Thread(target=agent, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    )
    assert result.status is RolloutStatus.SUCCEEDED, result.error
    assert names(echo_store) == ["openai.chat"] * 4


async def test_a_program_with_a_rollout_block_of_its_own_joins_and_nothing_is_doubled(
    play_program: Play, echo_store: Store
) -> None:
    result = await play_program(
        f"""{CALL}{SPAN}
import asyncio, json, spangrad
with spangrad.rollout(task_id="ignored") as r:
    span("first")
    call("hello")
async def main():
    async with spangrad.rollout() as again:
        span("second")
        return again.id
print(json.dumps([r.id, r.task_id, asyncio.run(main())]))
"""
    )
    assert result.output == ["r", "t", "r"], result.error
    assert names(echo_store) == ["first", "openai.chat", "second"]
    assert [record.rollout_id for record in echo_store.rollouts()] == ["r"]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("import sys; sys.exit(0)", RolloutStatus.SUCCEEDED),
        ("import sys; sys.exit(3)", RolloutStatus.FAILED),
        ("raise KeyError('mine')", RolloutStatus.FAILED),
        ("import threading; threading.Timer(0.05, span, ['late']).start()", RolloutStatus.SUCCEEDED),
        ("import atexit; atexit.register(span, 'late')", RolloutStatus.SUCCEEDED),
    ],
)
async def test_however_the_program_ends_its_spans_are_there_and_its_exit_status_is_its_own(
    play_program: Play, echo_store: Store, ending: str, status: RolloutStatus
) -> None:
    result = await play_program(f"{CALL}{SPAN}\ncall('x')\nspan('own')\n{ending}\n")
    assert result.status is status
    assert names(echo_store) == (["late"] if "late" in ending else []) + ["openai.chat", "own"]
    if status is RolloutStatus.FAILED:
        assert ("exited with status 3" if "exit" in ending else "KeyError: 'mine'") in result.error


async def test_work_that_the_program_leaves_open_is_recorded_as_incomplete(
    play_program: Play, echo_store: Store
) -> None:
    await play_program(
        f"""{CALL}
from spangrad.capture import WorkRecorder
recorder = WorkRecorder("framework")
recorder.begin(1, "writer", operation="invoke_agent", agent="writer")
call("x")
"""
    )
    (work,) = [span for span in echo_store.spans("r") if span.name == "invoke_agent writer"]
    assert work.attributes["spangrad.incomplete"] is True


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_processes_of_multiprocessing_join_too(play_program: Play, echo_store: Store, method: str) -> None:
    result = await play_program(
        f"""{CALL}
import multiprocessing
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    call("parent")
    children = [context.Process(target=call, args=(f"child {{number}}",)) for number in range(2)]
    for child in children: child.start()
    for child in children: child.join()
    print(sum(child.exitcode for child in children))
"""
    )
    assert (result.status, result.output) == (RolloutStatus.SUCCEEDED, 0), result.error
    calls = {call.call_id for call in echo_store.calls("r")}
    spans = [span.attributes["spangrad.call.id"] for span in echo_store.spans("r")]
    assert len(calls) == 3
    assert sorted(map(str, spans)) == sorted(calls)


async def test_a_forked_child_that_imports_the_client_library_first_joins_too(
    play_program: Play, echo_store: Store
) -> None:
    result = await play_program(
        f"""
import multiprocessing
def agent():
    {CALL.replace(chr(10), chr(10) + "    ")}
    call("child")
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=agent)
    child.start()
    child.join()
"""
    )
    assert result.status is RolloutStatus.SUCCEEDED, result.error
    assert names(echo_store) == ["openai.chat"]


async def test_a_python_that_the_program_starts_joins_too(play_program: Play, echo_store: Store) -> None:
    inner = f"{CALL}\ncall('inner')"
    result = await play_program(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}], cwd='/', check=True)\n"
    )
    assert result.status is RolloutStatus.SUCCEEDED, result.error
    assert names(echo_store) == ["openai.chat"]


async def test_an_isolated_python_is_recorded_without_spans(play_program: Play, echo_store: Store) -> None:
    result = await play_program(f"{CALL}\ncall('x')\n", "-I")
    assert result.status is RolloutStatus.SUCCEEDED, result.error
    assert names(echo_store) == []


async def test_a_rollout_block_of_an_isolated_python_joins_with_spans(play_program: Play, echo_store: Store) -> None:
    result = await play_program(f"{CALL}\nimport spangrad\nwith spangrad.rollout():\n    call('x')\n", "-I")
    assert result.status is RolloutStatus.SUCCEEDED, result.error
    assert names(echo_store) == ["openai.chat"]


async def test_a_gateway_that_takes_no_spans_costs_one_line_and_not_the_exit_status(
    play_program: Play, echo_store: Store
) -> None:
    result = await play_program(
        f"""{CALL}{SPAN}
import os, subprocess, sys
call("x")
inner = "{{}}\\nspan('lost')\\nprint('done')".format({SPAN!r})
environment = os.environ | {{"SPANGRAD_URL": "http://127.0.0.1:9"}}
done = subprocess.run([sys.executable, "-c", inner], env=environment, capture_output=True, text=True)
import json
print(json.dumps([done.returncode, done.stdout, done.stderr.splitlines()]))
"""
    )
    status, stdout, stderr = result.output
    assert (status, stdout) == (0, "done\n")
    (line,) = stderr
    assert line.startswith("spangrad: the last spans of rollout r are not recorded: No gateway answers")
    assert names(echo_store) == ["openai.chat"]


async def test_spans_of_an_agent_in_this_process_are_there_when_its_rollout_is_recorded(
    echo_gateway: Gateway, echo_store: Store
) -> None:
    recorder = WorkRecorder("framework")
    seen: dict[str, list[tuple[str, bool | None]]] = {}

    def agent(task: dict[str, str]) -> float:
        scope = current_scope()
        assert scope is not None
        recorder.begin(task["text"], "open", operation="x")
        recorder.begin(task["text"] + "closed", "closed", operation="x", parent=task["text"])
        recorder.end(task["text"] + "closed")
        tracer_provider().get_tracer("test").start_span("own").end()
        import openai  # noqa: PLC0415 - core's own tests do without it

        with openai.OpenAI(base_url=scope.base_url, api_key=scope.api_key) as client:
            client.chat.completions.create(model="echo", messages=[{"role": "user", "content": task["text"]}])
        return 1.0

    def look(result: RolloutResult) -> None:
        spans = echo_store.spans(result.record.rollout_id)
        seen[result.record.rollout_id] = sorted((s.name, bool(s.attributes.get("spangrad.incomplete"))) for s in spans)

    runner = Runner(load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=4, timeout=30)
    jobs = [RolloutJob(f"r{i}", 1, "g", Task(f"t{i}", {"text": f"{i}"}), "train", 1) for i in range(8)]
    with runner:
        results = await runner.run(jobs, on_result=look)
        assert [result.status for result in results] == [RolloutStatus.SUCCEEDED] * 8
    assert seen == {f"r{i}": [("own", False), ("x closed", False), ("x open", True)] for i in range(8)}
