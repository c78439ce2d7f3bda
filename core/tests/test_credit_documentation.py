"""The numbers of docs/credit.md are those the assigners give."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spangrad.lightningrl import GAE, CreditAssigner, DrGRPO, Identical, LightningRL, builtin_credit_assigners
from spangrad.plugins import load_plugins
from spangrad.training._config import AlgorithmTable
from spangrad.training._credit import credit_assigner
from spangrad.transitions import TransitionBatch

MakeBatch = Callable[..., TransitionBatch]

TEXT = (Path(__file__).parents[2] / "docs/credit.md").read_text(encoding="utf-8")
RETURNS, ADVANTAGES, LEARNT = (
    [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\| `.*$", table, flags=re.MULTILINE)]
    for table in re.findall(r"^\| (?:credit|estimator) \|.*\n(?:\|.*\n)+", TEXT, flags=re.MULTILINE)
)


@pytest.fixture
def example(make_transition_batch: MakeBatch) -> TransitionBatch:
    """Three calls with rewards 0.5, none and 1.0; a second rollout of the task with one call and nothing."""
    return make_transition_batch(
        [("task", 0.0, [1, 1, 1]), ("task", 0.0, [1])],
        call_rewards={(0, 0): 0.5, (0, 2): 1.0},
        agents={(0, 0): "writer", (0, 1): "reviewer", (0, 2): "writer", (1, 0): "writer"},
        states={(0, 0): "lobby", (0, 1): "hall", (0, 2): "lobby", (1, 0): "lobby"},
        scores={(0, 0): 0.0, (0, 1): 0.5, (0, 2): 0.5, (1, 0): 0.0},
        # only `progress` looks at components, so the score is none of the rewards here
        rollout_components={0: {"score": 1.0}},
    )


@pytest.fixture
def documented(tmp_path: Path) -> Callable[[str], CreditAssigner]:
    """Makes the assigner that a cell of the tables names as a train.toml would."""
    (function,) = re.findall(r"```python\n(def own_reward.*?)```", TEXT, flags=re.DOTALL)
    (tmp_path / "my_credit.py").write_text(function)

    def make(cell: str) -> CreditAssigner:
        table = AlgorithmTable.model_validate(tomllib.loads(f"credit = {cell.strip('`')}"))
        return credit_assigner(table.credit, load_plugins({"SPANGRAD_PLUGINS": ""}), tmp_path)

    return make


def name_in(cell: str) -> str:
    return re.sub(r'^`(?:\{ name = )?"(\w+)".*', r"\1", cell)


@pytest.mark.parametrize("row", RETURNS, ids=lambda row: f"{name_in(row[0])} {row[1]}")
def test_the_returns_of_the_worked_example(
    row: list[str], example: TransitionBatch, documented: Callable[[str], CreditAssigner]
) -> None:
    cell, part, *numbers = row
    comparisons = documented(cell).comparisons(example)
    assert len(comparisons) == sum(other[0] == cell for other in RETURNS)
    comparison = comparisons[int(part) - 1]
    assert comparison.compared.tolist() == [number != "-" for number in numbers]
    expected = [0.0 if number == "-" else float(number) for number in numbers]
    assert comparison.returns == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("row", ADVANTAGES, ids=lambda row: name_in(row[0]))
def test_the_advantages_of_the_worked_example(
    row: list[str], example: TransitionBatch, documented: Callable[[str], CreditAssigner]
) -> None:
    cell, *numbers = row
    report = LightningRL(documented(cell), DrGRPO()).compute(example)
    assert report.advantages == pytest.approx([float(number) for number in numbers], abs=5e-5)
    unused = [warning for warning in report.warnings if warning.startswith("Rewards of calls are unused (0.5)")]
    assert bool(unused) == (name_in(cell) == "last_call")


@pytest.mark.parametrize("row", LEARNT, ids=lambda row: row[0])
def test_the_advantages_by_a_learnt_value(row: list[str], example: TransitionBatch) -> None:
    cell, *numbers = row
    table = AlgorithmTable.model_validate(tomllib.loads(f"estimator = {cell.strip('`')}")).estimator
    estimator = GAE(**table.options, gamma=1.0, whiten=False)
    values = [np.array([value]) for value in (0.9, 0.6, 0.5, 0.4)]
    report = LightningRL(Identical(), estimator).compute(example, values=values)
    assert report.advantages == pytest.approx([float(number) for number in numbers])


def test_every_assigner_is_in_both_tables_and_has_a_section() -> None:
    names = set(builtin_credit_assigners())
    assert {name_in(row[0]) for row in RETURNS} == names
    assert {name_in(row[0]) for row in ADVANTAGES} == names
    assert set(re.findall(r"^## (\w+)$", TEXT, flags=re.MULTILINE)) == names
