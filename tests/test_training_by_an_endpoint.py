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
