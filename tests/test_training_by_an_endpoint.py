"""Training on what another server sampled: it is off-policy, can be corrected, and grows stale."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from tests.conftest import Project

from spangrad.testing import ScriptedEndpoint


@pytest.fixture
def outside(project: Project) -> Iterator[Project]:
    """A project whose calls are answered by another server: "3", which is right for some tasks, or "4"."""
    answers = iter(["3", "4"] * 500)
    with ScriptedEndpoint(lambda _: next(answers)) as endpoint:
        project.edit("[training]", f'[policy]\nendpoint = "{endpoint.base_url}"\n\n[training]')
        project.edit('heldout = { bigger = "agent:heldout" }', "")
        yield project


def reasons(project: Project) -> dict[str, int]:
    with sqlite3.connect(project.path / "runs/demo/spangrad.db") as database:
        return dict(database.execute("SELECT reason, count(*) FROM ledger GROUP BY reason").fetchall())


def test_its_calls_are_trained_on(outside: Project) -> None:
    done = outside.run("train", "train.toml")

    assert done.returncode == 0, done.stderr
    assert reasons(outside)["trained"] > 0
    assert "not_trained_policy" not in reasons(outside)


def test_calls_of_a_policy_too_old_are_left_out_and_said_so(outside: Project) -> None:
    done = outside.run("train", "train.toml", "--set", "algorithm.max_staleness=0")

    assert done.returncode == 0, done.stderr
    assert reasons(outside)["stale"] > 0
    assert "answered by a policy more than 0 versions old and were left out" in done.stdout + done.stderr
    steps = [row for row in outside.metrics() if row["kind"] == "step"]
    updates = [len(row["updates"]) for row in steps]
    assert sum(updates) == 1  # the first update makes version 1; from then on all calls are of version 0
    assert sum(row["lightningrl"]["stale"] for row in steps) == reasons(outside)["stale"]


TALKING = """\
from openai import AsyncOpenAI


async def solve(task):
    client, messages, said = AsyncOpenAI(), [], ""
    for _ in range(2):
        messages.append({"role": "user", "content": f"{task['a']}+{task['b']}"})
        answer = await client.chat.completions.create(model="policy", messages=messages, max_tokens=8)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        said = answer.choices[0].message.content
    return said


"""


def test_a_server_that_is_given_tokens_goes_on_from_those_of_earlier_calls(outside: Project) -> None:
    text = (outside.path / "agent.py").read_text()
    (outside.path / "agent.py").write_text(TALKING + text[text.index("def reward") :])
    outside.edit("[policy]", '[policy]\nendpoint_model = "theirs"\nendpoint_prompts = "tokens"')
    done = outside.run("train", "train.toml", "--set", "training.steps=1")

    assert done.returncode == 0, done.stderr
    assert reasons(outside)["trained"] > 0
    (step,) = (row for row in outside.metrics() if row["kind"] == "step")
    assert step["continuation"] == {"merge_rate": 1.0, "drift_rate": {}, "calls": {"extended": 16, "first": 16}}


def test_a_server_that_is_given_messages_is_counted_as_such(outside: Project) -> None:
    done = outside.run("train", "train.toml", "--set", "training.steps=1")

    assert done.returncode == 0, done.stderr
    (step,) = (row for row in outside.metrics() if row["kind"] == "step")
    assert step["continuation"] == {"merge_rate": None, "drift_rate": {}, "calls": {"endpoint": 16}}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ('endpoint_prompts = "tokens"', "policy.endpoint_prompts: there is no endpoint; it would do nothing"),
        (
            'endpoint = "http://127.0.0.1:9/v1"\nendpoint_prompts = "tokens"',
            "policy.endpoint_prompts: tokens are sampled by one model; name it with policy.endpoint_model",
        ),
        ('endpoint_prompts = "ids"', "policy.endpoint_prompts"),
    ],
)
def test_prompts_of_tokens_need_an_endpoint_and_its_model(project: Project, policy: str, words: str) -> None:
    project.edit("[training]", f"[policy]\n{policy}\n\n[training]")
    done = project.run("train", "train.toml", "--dry-run")

    assert done.returncode != 0
    assert words in " ".join(done.stderr.split())
