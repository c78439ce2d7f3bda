"""Agent functions that start an event loop for each run, which LangChain's shared HTTP client does not bear, and the cures.

In a process of their own, for what the failing ones leave open would trouble other tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AGENT = """
import asyncio
import httpx
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

async def asynchronous(task, **options):
    agent = create_agent(ChatOpenAI(model="policy", **options), [])
    result = await agent.ainvoke({"messages": [("user", task["question"])]})
    return result["messages"][-1].content

def a_loop_for_each(task):
    return asyncio.run(asynchronous(task, max_retries=0))  # which hide it with openai 2

async def with_its_own_client(task):
    async with httpx.AsyncClient() as client:
        return await asynchronous(task, http_async_client=client)

def a_client_for_each_loop(task):
    return asyncio.run(with_its_own_client(task))
"""
PROGRAM = """
import asyncio, json, os, sys
from pathlib import Path
from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.plugins import load_plugins
from spangrad.rollouts import RolloutJob, Runner, Task, load_agent
from spangrad.store import open_store
from spangrad.testing import ByteChatFormat, ScriptedSampler
import agent

TASKS = [{"question": str(number)} for number in range(3)]

def without_spangrad(function):
    found = []
    for task in TASKS:
        try:
            found.append(function(task))
        except Exception as error:
            found.append(str(error))
    return found

async def in_rollouts(function, gateway, store):
    with load_plugins({"SPANGRAD_PLUGINS": "openai,langchain"}).attached():
        runner = Runner(load_agent(function, Path()), None, gateway, store, concurrency=1, timeout=60)
        jobs = [RolloutJob(f"r{i}", 1, "g", Task("t", task), "train", 1) for i, task in enumerate(TASKS)]
        return [result.output or result.error for result in await runner.run(jobs)]

function, how = getattr(agent, sys.argv[1]), sys.argv[2]
engine = TokenEngine(ScriptedSampler(lambda prompt: f"said {prompt.last}"), ByteChatFormat(), "scripted")
store = open_store(Path("spangrad.db"))
with Gateway(store, [Route("policy", engine, "policy")]) as gateway:
    os.environ |= {"OPENAI_BASE_URL": f"{gateway.base_url}/v1", "OPENAI_API_KEY": "mine"}
    if how == "alone":
        print(json.dumps(without_spangrad(function)))
    else:
        print(json.dumps(asyncio.run(in_rollouts(function, gateway, store))))
store.close()
"""


def run(folder: Path, function: str, how: str) -> Any:
    """What three runs of the agent's function come to."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", function, how]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", ["alone", "in rollouts"])
def test_a_loop_for_each_run_fails_at_the_second_with_and_without_spangrad(tmp_path: Path, how: str) -> None:
    first, second, _ = run(tmp_path, "a_loop_for_each", how)

    assert first == "said 0"
    assert "Event loop is closed" in second or "Connection error" in second  # openai 2 wraps it


@pytest.mark.parametrize("function", ["asynchronous", "a_client_for_each_loop"])
def test_an_asynchronous_function_and_a_client_of_its_own_are_cures(tmp_path: Path, function: str) -> None:
    assert run(tmp_path, function, "in rollouts") == ["said 0", "said 1", "said 2"]
