"""docs/estimators.md says what the estimators do: its lists, its worked example, and the links into its sections."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from spangrad.lightningrl import GAE, Identical, LightningRL, builtin_estimators, requirements_table
from spangrad.transitions import Transition, TransitionBatch

TEXT = (Path(__file__).parents[2] / "docs/estimators.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]
NEEDS = {row[0].split("`")[1]: set(row[2].split("; ")) for row in ROWS if len(row) == 3 and "](#" in row[0]}
EXAMPLE = {row[0].strip("`"): [float(cell) for cell in row[1:]] for row in ROWS if len(row) == 5 and "`" in row[0]}


def rollout(number: int, task: str, reward: float) -> Transition:
    return Transition(
        rollout_id=f"rollout-{number}",
        attempt=0,
        group_id=task,
        call_id=f"call-{number}",
        choice=0,
        index=0,
        agent=None,
        policy="policy",
        policy_version=0,
        prompt_ids=(1,),
        action_ids=(2,),
        logprobs=(-1.0,),
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        reward=None,
        rollout_reward=reward,
    )


def test_every_estimator_has_a_row_an_example_and_a_section() -> None:
    names = set(builtin_estimators())

    assert set(NEEDS) == names
    assert set(EXAMPLE) == names
    assert names <= set(re.findall(r"^## (\w+)$", TEXT, flags=re.MULTILINE))


@pytest.mark.parametrize("name", sorted(builtin_estimators()))
def test_its_needs_are_those_it_declares(name: str) -> None:
    of_every_estimator = "a backend that takes one advantage per transition"

    assert NEEDS[name] | {of_every_estimator} == set(requirements_table()[name])


def test_the_options_of_gae_are_listed_with_their_defaults() -> None:
    defaults = {row[0].strip("`"): row[1] for row in ROWS if len(row) == 3 and "](#" not in row[0] and "`" in row[0]}
    calls, tokens = GAE(), GAE(level="token")

    assert defaults == {
        "level": f'"{calls.level}"',
        "gamma": f'{calls.discounts[0]}, with "token" {tokens.discounts[0]}',
        "lam": f'{calls.discounts[1]}, with "token" {tokens.discounts[1]}',
        "whiten": str(calls.whiten).lower(),
        "eps": "1e-6",
    }
    assert set(defaults) == {field.name for field in dataclasses.fields(GAE)}


@pytest.mark.parametrize("name", sorted(builtin_estimators()))
def test_its_advantages_of_the_worked_example_are_those_of_the_table(name: str) -> None:
    shapes = [("1", reward) for reward in (1.0, 0.0, 1.0, 0.0)] + [("2", reward) for reward in (1.0, 0.0, 0.0, 0.0)]
    batch = TransitionBatch(tuple(rollout(number, task, reward) for number, (task, reward) in enumerate(shapes)))
    report = LightningRL(Identical(), builtin_estimators()[name]()).compute(
        batch, memory={"0/(unnamed)": 0.4}, values=[np.full(1, 0.4)] * len(batch)
    )
    solved, failed, rare, common = EXAMPLE[name]

    assert report.advantages == pytest.approx([solved, failed, solved, failed, rare, *[common] * 3], abs=5e-5)
