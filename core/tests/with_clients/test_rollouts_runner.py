"""The runner: agents of every kind, many at once, each in its own rollout."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from spangrad.capture import Rollout, current_scope, tracer_provider
from spangrad.errors import ConfigError, StoreError
from spangrad.gateway import Gateway, SamplingOverride
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent, load_reward
from spangrad.store import RolloutStatus, Store, open_store

SCRIPT = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
assert json.loads(os.environ["SPANGRAD_TASK"]) == task
body = {"model": "echo", "messages": [{"role": "user", "content": task["text"]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print("some chatter")
print(json.dumps({"answer": answer}))
"""


def make_jobs(number: int, **fields: Any) -> list[RolloutJob]:
    return [
        RolloutJob(f"r{i}", 1, f"g{i // 4}", Task(f"t{i // 4}", {"text": f"text {i}"}), "train", 3, **fields)
        for i in range(number)
    ]


def make_runner(
    agent: Callable[..., Any] | list[str],
    gateway: Gateway,
    store: Store,
    reward: Callable[..., Any] | None = None,
    **settings: Any,
) -> Runner:
    usual: dict[str, Any] = {"concurrency": 8, "timeout": 30}
    judge = None if reward is None else load_reward(reward, Path())
    return Runner(load_agent(agent, Path()), judge, gateway, store, **usual | settings)


async def ask_async(rollout: Rollout, text: str) -> str | None:
    async with openai.AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key) as client:
        messages: Any = [{"role": "user", "content": text}]
        return (await client.chat.completions.create(model="echo", messages=messages)).choices[0].message.content


def ask(rollout: Rollout, text: str) -> str | None:
    with openai.OpenAI(base_url=rollout.base_url, api_key=rollout.api_key) as client:
        messages: Any = [{"role": "user", "content": text}]
        return client.chat.completions.create(model="echo", messages=messages).choices[0].message.content


def rewarded(output: Any, task: Any) -> bool:
    """One for an agent that got its own text back."""
    return bool(output["answer"] == task["text"])


def check_calls(store: Store, results: list[RolloutResult], *, calls: int) -> None:
    """Every rollout succeeded with its own calls and no others."""
    assert [result.status for result in results] == [RolloutStatus.SUCCEEDED] * len(results)
    assert [result.reward for result in results] == [1.0] * len(results)
    for result in results:
        text = result.job.task.data["text"]
        said = [call.request["messages"][-1]["content"] for call in store.calls(result.job.rollout_id)]
        assert said == [text] * calls
        record = store.rollout(result.job.rollout_id)
        assert record == result.record
    assert store.calls(None) == []


async def test_async_agents_each_own_exactly_their_calls(echo_gateway: Gateway, echo_store: Store) -> None:
    threads = set()

    async def agent(task: Any, rollout: Rollout) -> dict[str, Any]:
        threads.add(threading.current_thread().name)
        await ask_async(rollout, task["text"])
        return {"answer": await ask_async(rollout, task["text"])}

    results = await make_runner(agent, echo_gateway, echo_store, rewarded).run(make_jobs(20))
    check_calls(echo_store, results, calls=2)
    assert threads == {"spangrad-agents"}
    assert [result.job.rollout_id for result in results] == [f"r{i}" for i in range(20)]


async def test_plain_agents_run_in_threads_of_their_own_at_once(echo_gateway: Gateway, echo_store: Store) -> None:
    together = threading.Barrier(4, timeout=20)

    def agent(task: Any, rollout: Rollout) -> dict[str, Any]:
        together.wait()
        return {"answer": ask(rollout, task["text"])}

    results = await make_runner(agent, echo_gateway, echo_store, rewarded, concurrency=4).run(make_jobs(8))
    check_calls(echo_store, results, calls=1)


async def test_commands_get_task_identity_and_url(echo_gateway: Gateway, echo_store: Store, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(SCRIPT)
    runner = make_runner([sys.executable, str(script)], echo_gateway, echo_store, rewarded, concurrency=2)
    check_calls(echo_store, await runner.run(make_jobs(4)), calls=1)


async def test_no_more_rollouts_than_allowed_are_under_way(echo_gateway: Gateway, echo_store: Store) -> None:
    running, most = 0, 0

    async def agent(task: Any, rollout: Rollout) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await ask_async(rollout, task["text"])
        running -= 1
        return 1

    await make_runner(agent, echo_gateway, echo_store, concurrency=3).run(make_jobs(9))
    assert most == 3


async def test_each_agent_sees_the_scope_of_its_own_rollout(echo_gateway: Gateway, echo_store: Store) -> None:
    seen: dict[str, list[str | None]] = {}

    def scope_id() -> str | None:
        scope = current_scope()
        return None if scope is None else scope.rollout_id

    async def agent(task: Any, rollout: Rollout) -> int:
        del task
        await asyncio.sleep(0)
        seen[rollout.id] = [scope_id(), await asyncio.to_thread(scope_id)]
        return 1

    await make_runner(agent, echo_gateway, echo_store).run(make_jobs(8))
    assert seen == {f"r{i}": [f"r{i}", f"r{i}"] for i in range(8)}
    assert current_scope() is None


async def test_environment_is_pointed_at_the_gateway_and_restored(
    echo_gateway: Gateway, echo_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://users.own/v1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    before = dict(os.environ)

    async def agent(task: Any) -> int:
        async with openai.AsyncOpenAI() as client:
            await client.chat.completions.create(model="echo", messages=[{"role": "user", "content": task["text"]}])
        return 1

    (result,) = await make_runner(agent, echo_gateway, echo_store).run(make_jobs(1))
    assert dict(os.environ) == before
    assert result.status is RolloutStatus.NO_CALL  # no client patch is attached, so the call names no rollout
    assert "base_url" in result.error
    assert len(echo_store.calls(None)) == 1


async def test_spans_of_a_rollout_are_in_the_store_when_it_ends(echo_gateway: Gateway, echo_store: Store) -> None:
    async def agent(task: Any, rollout: Rollout) -> int:
        with tracer_provider().get_tracer("test").start_as_current_span(f"think {rollout.id}"):
            await ask_async(rollout, task["text"])
        return 1

    found: dict[str, list[str]] = {}

    def look(result: RolloutResult) -> None:
        rollout_id = result.job.rollout_id
        found[rollout_id] = [span.name for span in echo_store.spans(rollout_id)]

    await make_runner(agent, echo_gateway, echo_store).run(make_jobs(4), on_result=look)
    assert found == {f"r{i}": [f"think r{i}"] for i in range(4)}


async def test_the_rollouts_sampling_override_reaches_its_calls(echo_gateway: Gateway, echo_store: Store) -> None:
    async def agent(task: Any, rollout: Rollout) -> int:
        await ask_async(rollout, task["text"])
        return 1

    jobs = make_jobs(1, sampling=SamplingOverride(temperature=0.5))
    await make_runner(agent, echo_gateway, echo_store).run(jobs)
    assert [call.temperature for call in echo_store.calls("r0")] == [0.5]


async def test_an_agent_that_changes_its_task_changes_it_for_nobody_else(
    echo_gateway: Gateway, echo_store: Store
) -> None:
    task = Task("t", {"text": "x", "seen": []})

    async def agent(data: Any, rollout: Rollout) -> int:
        await ask_async(rollout, "x")
        data["seen"].append(rollout.id)
        return len(data["seen"])

    jobs = [RolloutJob(f"r{i}", 1, "g", task, "train", 1) for i in range(4)]
    results = await make_runner(agent, echo_gateway, echo_store).run(jobs)
    assert [result.reward for result in results] == [1.0] * 4
    assert task.data["seen"] == []


async def test_a_store_that_cannot_be_written_stops_the_run(echo_gateway: Gateway, tmp_path: Path) -> None:
    closed = open_store(tmp_path / "other.db")
    closed.close()
    with pytest.raises(StoreError):
        await make_runner(lambda task: len(task), echo_gateway, closed).run(make_jobs(4))  # noqa: PLW0108 - a plain function


@pytest.mark.parametrize("settings", [{"concurrency": 0}, {"timeout": 0}, {"timeout": -1}])
def test_numbers_that_cannot_be_are_refused(echo_gateway: Gateway, echo_store: Store, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_runner(lambda task: 1, echo_gateway, echo_store, **settings)  # noqa: ARG005 - an agent takes a task
