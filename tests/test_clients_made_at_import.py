"""Clients that an agent's module makes when it is imported reach the gateway, whatever the shell's own key and address."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.conftest import Project

SYNC = """\
from openai import OpenAI

client = OpenAI()


def solve(task):
    messages = [{"role": "user", "content": f"{task['a']}+{task['b']}"}]
    return client.chat.completions.create(model="policy", messages=messages).choices[0].message.content
"""

ASYNC = """\
from openai import AsyncOpenAI

client = AsyncOpenAI()


async def solve(task):
    messages = [{"role": "user", "content": f"{task['a']}+{task['b']}"}]
    return (await client.chat.completions.create(model="policy", messages=messages)).choices[0].message.content
"""

LANGCHAIN = """\
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

agent = create_agent(ChatOpenAI(model="gpt-4o-mini"), tools=[])


def solve(task):
    return agent.invoke({"messages": [("user", f"{task['a']}+{task['b']}")]})["messages"][-1].content
"""

AUTOGEN = """\
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

agent = AssistantAgent("adder", OpenAIChatCompletionClient(model="gpt-4o-mini"))


async def solve(task):
    await agent.on_reset(None)
    return (await agent.run(task=f"{task['a']}+{task['b']}")).messages[-1].content
"""

REST = """

def reward(task, output):
    return float(output == str(task["a"] + task["b"]))


def train():
    return [{"task_id": f"{a}+{b}", "a": a, "b": b} for a in range(4) for b in range(4)]


def heldout():
    return [{"task_id": f"{a}+{b}", "a": a, "b": b} for a in range(10, 18) for b in range(2)]
"""


@pytest.fixture
def way_out() -> Iterator[socket.socket]:
    """A proxy that every request to another machine would go through; nobody answers there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def as_a_shell(project: Project, way_out: socket.socket, key: str) -> None:
    """Gives the command the environment of somebody who uses OpenAI, or who does not."""
    proxy = "http://{}:{}".format(*way_out.getsockname())
    project.environment |= {"HTTPS_PROXY": proxy, "https_proxy": proxy, "ALL_PROXY": proxy, "OPENAI_API_KEY": key}


def nobody_went_out(way_out: socket.socket) -> bool:
    try:
        way_out.accept()[0].close()
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize("key", ["", "sk-proj-0123456789abcdef"], ids=["no key", "a key of OpenAI"])
@pytest.mark.parametrize("agent", [SYNC, ASYNC, LANGCHAIN, AUTOGEN], ids=["sync", "async", "langchain", "autogen"])
def test_a_client_of_the_module_calls_the_gateway_for_its_rollout(
    project: Project, way_out: socket.socket, agent: str, key: str
) -> None:
    (project.path / "agent.py").write_text(agent + REST)
    as_a_shell(project, way_out, key)

    report = project.json_of(
        "run", "--json", "--backend", "scripted", "--tasks", "agent:train", "--reward", "agent:reward", "agent:solve"
    )

    assert [(row["status"], row["calls"], row["transitions"]) for row in report["rollouts"]] == [
        ("succeeded", 1, 1)
    ] * 16
    assert nobody_went_out(way_out)


def test_so_it_does_in_training_and_in_evaluation(project: Project, way_out: socket.socket) -> None:
    (project.path / "agent.py").write_text(SYNC + REST)
    as_a_shell(project, way_out, "sk-proj-0123456789abcdef")

    assert project.run("train", "train.toml", "--dry-run").returncode == 0
    summary = project.json_of("train", "train.toml", "--json", "--set", "training.steps=1")
    evaluation = project.json_of("eval", "train.toml", "--json")

    assert summary["steps"] == 1
    assert evaluation["evaluations"][0]["unrewarded"] == 0
    assert nobody_went_out(way_out)


def test_the_shells_key_is_still_there_for_the_judge(project: Project) -> None:
    (project.path / "agent.py").write_text(SYNC + REST)
    project.environment["OPENAI_API_KEY"] = "sk-proj-0123456789abcdef"
    judge = '{endpoint = "http://127.0.0.1:9/v1", model = "m", criteria = "c", key_env = "OPENAI_API_KEY"}'

    done = project.run("train", "train.toml", "--dry-run", "--set", f"rewards.judge={judge}")

    assert done.returncode == 0, done.stderr


def test_without_the_integration_its_calls_are_orphans_and_the_cure_is_said(project: Project) -> None:
    (project.path / "agent.py").write_text(SYNC + REST)
    project.environment["SPANGRAD_DISABLED_PLUGINS"] = "openai"

    done = project.run("run", "--backend", "scripted", "--task", '{"a": 1, "b": 2}', "agent:solve")

    assert done.returncode == 1
    assert "1 that name none came while it ran" in done.stdout
    assert 'pip install "spangrad[openai]"' in done.stdout
    assert "1 calls named no rollout" in done.stderr


def test_a_port_that_is_taken_is_said_before_anything_is_imported(project: Project) -> None:
    project.edit("CLIENT = None\n", "CLIENT = None\nopen('imported', 'w').close()\n", file="agent.py")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = project.run("train", "train.toml", "--port", port)

    assert done.returncode == 1
    assert f"Port {port} on 127.0.0.1 is in use" in done.stderr
    assert not (project.path / "imported").exists()
