"""The databases, tasks, reward and agents of examples/text_to_sql_langchain. That they learn is what its README shows."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import EXAMPLES

from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.plugins import load_plugins
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent
from spangrad.store import RolloutStatus, Store, open_store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import Reason, extract

EXAMPLE = ("text_to_sql_langchain", "agent", "database", "spider", "tasks")
FOLDER = EXAMPLES / "text_to_sql_langchain"
SETS = ("train", "heldout", "unseen_phrasings")


@pytest.fixture
def example(example: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The example's modules, with databases of their own."""
    monkeypatch.setattr(example.database, "HOME", tmp_path / "databases")
    return example


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A database that is none of the example's."""
    path = tmp_path / "people.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE person (name TEXT, age INTEGER)")
        connection.execute("CREATE TABLE pet (owner TEXT)")
        connection.executemany("INSERT INTO person VALUES (?, ?)", [("Ann", 30), ("Bob", 25), ("Cy", 30)])
        connection.commit()
    return path


@pytest.mark.parametrize("name", SETS)
def test_every_task_has_a_reference_that_gives_rows_and_a_reward_for_it_alone(
    example: SimpleNamespace, name: str
) -> None:
    made = getattr(example.tasks, name)()

    assert made == getattr(example.tasks, name)()
    assert json.loads(json.dumps(made)) == made
    assert len({task["task_id"] for task in made}) == len(made) >= 64
    for task in made:
        assert example.database.run(example.database.path_of(task["database"]), task["query"])
        assert example.agent.reward(task, {"sql": task["query"]}) == 1.0
        assert example.agent.reward(task, {"sql": "SELECT 'nothing'"}) == 0.0


def test_training_and_demonstrations_ask_nothing_about_heldout_databases(example: SimpleNamespace) -> None:
    tasks = example.tasks
    held = {task["database"] for make in (tasks.heldout, tasks.unseen_phrasings) for task in make()}
    trained = {task["database"] for seed in range(3) for task in tasks.train(seed=seed)}
    shown = " ".join(conversation["messages"][0]["content"] for conversation in tasks.demonstrations())

    assert held == {table.name for table in example.database.HELDOUT}
    assert trained == {table.name for table in example.database.TRAINED}
    assert not [name for name in held if f"{name}(" in shown]


def test_unseen_phrasings_are_in_no_other_set(example: SimpleNamespace) -> None:
    kinds = example.tasks.KINDS
    trained = {phrasing for kind in kinds for phrasing in kind.phrasings}

    assert all(len(kind.phrasings) == 4 and len(kind.unseen) == 2 for kind in kinds)
    assert not trained & {phrasing for kind in kinds for phrasing in kind.unseen}


def test_demonstrations_are_right_where_they_say_right_and_wrong_where_they_say_wrong(
    example: SimpleNamespace,
) -> None:
    tasks, agent = example.tasks, example.agent
    rng = tasks.random.Random(0)
    for task in tasks.train(count=50):
        write, right, wrong, rewrite = (conversation for conversation in tasks.worked(task, rng))
        assert agent.reward(task, {"sql": write[-1]["content"]}) == 1.0
        assert agent.reward(task, {"sql": rewrite[-1]["content"]}) == 1.0
        assert (right[-1]["content"], wrong[-1]["content"]) == ("ok", "wrong")
        assert agent.reward(task, {"sql": right[1]["content"].split("\n")[1]}) == 1.0
        assert agent.reward(task, {"sql": wrong[1]["content"].split("\n")[1]}) == 0.0


@pytest.mark.parametrize(
    ("sql", "reference", "same"),
    [
        ("SELECT name FROM person", "SELECT name FROM person ORDER BY name", True),
        ("SELECT name FROM person ORDER BY name DESC", "SELECT name FROM person ORDER BY name", False),
        ("SELECT name FROM person ORDER BY name DESC", "SELECT name FROM person", True),
        ("SELECT DISTINCT age FROM person", "SELECT age FROM person", False),  # rows count as often as they occur
        ("SELECT 3", "SELECT count(*) FROM person", True),
        ("SELECT nothing FROM person", "SELECT count(*) FROM person", False),
        ("", "SELECT count(*) FROM person", False),
        ("SELECT 1; SELECT 2", "SELECT count(*) FROM person", False),
        ("SELECT '\0'", "SELECT count(*) FROM person", False),
        ("SELECT \ud800", "SELECT count(*) FROM person", False),
    ],
)
def test_queries_are_compared_by_their_rows(
    example: SimpleNamespace, people: Path, sql: str, reference: str, same: bool
) -> None:
    assert example.database.same_rows(people, sql, reference) is same


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM person",
        "DROP TABLE person",
        "CREATE TABLE other (a)",
        "PRAGMA journal_mode = DELETE",
        "ATTACH '/tmp/other.sqlite' AS other",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    ],
)
def test_a_query_can_neither_write_nor_run_for_ever(example: SimpleNamespace, people: Path, sql: str) -> None:
    before = people.read_bytes()

    assert example.database.outcome(people, sql).startswith("error: ")
    assert people.read_bytes() == before


def test_outcomes_and_schemas_are_short_lines(example: SimpleNamespace, people: Path) -> None:
    database = example.database

    assert database.schema(people) == "person(name, age)\npet(owner)"
    assert database.outcome(people, "SELECT name FROM person WHERE age = 30") == "2 rows: Ann, Cy"
    assert database.outcome(people, "SELECT age, name FROM person LIMIT 1") == "1 rows: (30, 'Ann')"
    assert database.outcome(people, "SELECT x FROM person") == "error: no such column: x"
    assert database.outcome(people, "SELECT * FROM pet") == "0 rows: "
    assert len(database.outcome(people, "SELECT name || hex(zeroblob(99)) FROM person")) == database.LONGEST_SHOWN


def spider(folder: Path, **changes: Any) -> Path:
    """Spider's layout with one question; an entry as published, which has further fields."""
    entry: dict[str, Any] = {
        "db_id": "people",
        "question": "How old is Ann?",
        "query": "SELECT age FROM person WHERE name = 'Ann'",
    }
    entry |= {"query_toks": ["SELECT"], "sql": {"except": None}, **changes}
    kept = {name: value for name, value in entry.items() if value is not None}
    (folder / "train_spider.json").write_text(json.dumps([kept]))
    return folder


def test_spiders_own_files_are_read_as_published(
    example: SimpleNamespace, people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "database" / "people" / "people.sqlite"
    target.parent.mkdir(parents=True)
    people.rename(target)
    monkeypatch.setenv("SPIDER", str(spider(tmp_path)))

    (task,) = example.spider.train()

    assert (task["task_id"], task["question"]) == ("train_spider-0", "How old is Ann?")
    assert example.agent.reward(task, {"sql": "SELECT 30"}) == 1.0


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda _: None, "SPIDER is not set"),
        (lambda folder: folder, "there is no train_spider.json"),
        (lambda folder: spider(folder, query=None), "entry 0 has no query"),
        (spider, "asks about people, but there is no"),
    ],
)
def test_spider_files_that_are_not_there_are_named(
    example: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Path], Path | None],
    said: str,
) -> None:
    monkeypatch.delenv("SPIDER", raising=False)
    if (folder := prepare(tmp_path)) is not None:
        monkeypatch.setenv("SPIDER", str(folder))

    with pytest.raises(example.spider.SpiderError, match=said):
        example.spider.train()


def test_the_settings_of_the_papers_scale_are_valid(people: Path, tmp_path: Path) -> None:
    target = tmp_path / "database" / "people" / "people.sqlite"
    target.parent.mkdir(parents=True)
    people.rename(target)
    home = spider(tmp_path)
    (home / "dev.json").write_text((home / "train_spider.json").read_text())
    options = ["--dry-run", "--set", "training.tasks_per_step=1"]
    command = [sys.executable, "-m", "spangrad", "train", str(FOLDER / "train.gpu.toml"), *options]
    environment = {**os.environ, "SPIDER": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr


async def played(
    example: SimpleNamespace, tmp_path: Path, task: Mapping[str, Any], script: Callable[[ScriptedPrompt], str]
) -> tuple[RolloutResult, Store]:
    """One rollout of the example's agents, attached as `spangrad train` attaches them."""
    example.agent.MAX_TOKENS = 400  # here a token is a byte
    store = open_store(tmp_path / "store.db")
    engine = TokenEngine(ScriptedSampler(script), ByteChatFormat(), "scripted")
    agent, reward = load_agent(example.agent.solve, tmp_path), None

    async def solve(data: Any) -> float:
        return float(example.agent.reward(data, await example.agent.solve(data)))

    agent = load_agent(solve, tmp_path)
    with Gateway(store, [Route("*", engine, "policy")]) as gateway, load_plugins().attached():
        runner = Runner(agent, reward, gateway, store, concurrency=1, timeout=30)
        (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", dict(task)), "train", 1)])
    return result, store


async def test_a_right_query_is_checked_and_kept(example: SimpleNamespace, tmp_path: Path) -> None:
    (task,) = example.tasks.train(count=1)
    write, check, _, _ = example.tasks.worked(task, example.tasks.random.Random(0))

    def script(prompt: ScriptedPrompt) -> str:
        return "ok" if "ok or wrong" in prompt.messages[0]["content"] else str(task["query"])

    result, store = await played(example, tmp_path, task, script)
    calls = store.calls("r")
    store.close()

    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 1.0)
    assert [call.agent for call in calls] == ["writer", "checker"]
    form = ByteChatFormat()
    assert [call.prompt_ids for call in calls] == [form.render(write[:-1]), form.render(check[:-1])]


async def test_a_wrong_query_is_rewritten_and_only_writer_and_rewriter_are_trained(
    example: SimpleNamespace, tmp_path: Path
) -> None:
    (task,) = example.tasks.train(count=1)
    rng = example.tasks.random.Random(0)
    write, _, check, rewrite = example.tasks.worked(task, rng)
    wrong = check[1]["content"].split("\n")[1]

    def script(prompt: ScriptedPrompt) -> str:
        system = prompt.messages[0]["content"]
        if "ok or wrong" in system:
            return "wrong"
        return f"```sql\n{task['query']};\n```" if "is wrong" in system else wrong

    result, store = await played(example, tmp_path, task, script)
    calls, spans = store.calls("r"), store.spans("r")
    extraction = extract(result.record, calls, result.rewards, spans, trained_agents={"policy": {"writer", "rewriter"}})
    store.close()

    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 1.0)
    form = ByteChatFormat()
    assert [call.prompt_ids for call in calls] == [form.render(one[:-1]) for one in (write, check, rewrite)]
    assert [(t.agent, t.rollout_reward) for t in extraction.transitions] == [("writer", 1.0), ("rewriter", 1.0)]
    assert [entry.reason for entry in extraction.entries] == [Reason.NOT_TRAINED_AGENT]
