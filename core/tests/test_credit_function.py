"""Credit by the user's function, and assigners as a train.toml names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spangrad.errors import ConfigError, PluginError
from spangrad.lightningrl import DrGRPO, Function, GiGPO, LastCall, Sum
from spangrad.plugins import load_plugins
from spangrad.training._config import NamedTable
from spangrad.training._credit import credit_assigner
from spangrad.transitions import Transition, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]


def positions(transitions: tuple[Transition, ...]) -> list[float]:
    return [float(number) for number, _ in enumerate(transitions)]


def gives(answer: object) -> Callable[..., Any]:
    def give(_transitions: tuple[Transition, ...]) -> object:
        return answer

    return give


def fails(transitions: tuple[Transition, ...]) -> list[float]:
    raise KeyError(transitions[0].call_id)


def read(folder: Path, **table: Any) -> Any:
    return credit_assigner(NamedTable.model_validate(table), load_plugins({"SPANGRAD_PLUGINS": ""}), folder)


def test_the_function_gets_each_rollouts_calls_in_order_whatever_the_order_of_the_rows(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1, 1]), ("a", 0.0, [1])])
    shuffled = TransitionBatch(tuple(batch.transitions[row] for row in (2, 3, 0, 1)))
    (comparison,) = Function(positions).comparisons(shuffled)
    assert comparison.returns.tolist() == [2, 0, 0, 1]
    # the rollouts' means are 1 and 0
    assert DrGRPO().advantages((comparison,)).tolist() == [1.5, -0.5, -0.5, 0.5]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (fails, r"fails failed on rollout rollout-0: KeyError: 'call-0-0'"),
        (gives([1.0]), r"gave 1 numbers for the 2 transitions of rollout rollout-0"),
        (gives([1.0, float("nan")]), r"gave \[1.0, nan\] for the transitions of rollout rollout-0"),
        (gives([1.0, None]), r"gave \[1.0, None\] for the transitions of rollout rollout-0"),
        (gives(["one", 1.0]), r"failed on rollout rollout-0: ValueError: could not convert"),
        (gives(None), r"failed on rollout rollout-0: TypeError"),
    ],
)
def test_a_function_that_gives_no_number_for_each_call_is_named(
    make_transition_batch: MakeBatch, function: Callable[..., Any], problem: str
) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1])])
    with pytest.raises(PluginError, match=f"The credit function {__name__}:.*{problem}"):
        Function(function).comparisons(batch)


def test_a_function_that_is_none_or_async_is_refused() -> None:
    async def later(transitions: tuple[Transition, ...]) -> list[float]:
        return positions(transitions)

    for wrong in ("my_credit:assign", later):
        with pytest.raises(ConfigError, match="The credit function is"):
            Function(wrong)  # type: ignore[arg-type]  # what a configuration may hold


def test_a_configuration_names_the_function_beside_it(tmp_path: Path, make_transition_batch: MakeBatch) -> None:
    (tmp_path / "credit_of_users.py").write_text("def assign(transitions):\n    return [2.0] * len(transitions)\n")
    credit = read(tmp_path, name="function", call="credit_of_users:assign")
    assert credit.comparisons(make_transition_batch([("a", 1.0, [1, 1])]))[0].returns.tolist() == [2, 2]


def test_a_configuration_makes_a_sum_of_names_and_tables(tmp_path: Path) -> None:
    credit = read(
        tmp_path, name="sum", of=["gigpo", {"name": "last_call", "weight": 0.5}, {"name": "gigpo", "gamma": 1}]
    )
    assert credit == Sum([(GiGPO(), 1.0), (LastCall(), 0.5), (GiGPO(gamma=1), 1.0)])


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"name": "function", "call": "nowhere:assign"}, "The credit function's module 'nowhere' is neither in"),
        ({"name": "function", "call": "assign"}, "does not have the form module:function"),
        ({"name": "function", "call": 3}, "has call = 3"),
        ({"name": "function"}, "missing a required argument: 'call'"),
        ({"name": "sum", "of": []}, "A sum of no credit assigners"),
        ({"name": "sum", "of": "gigpo"}, "has of = 'gigpo'"),
        ({"name": "sum", "of": [3]}, "has 3 among its parts"),
        ({"name": "sum", "of": [{"weight": 1.0}]}, "among its parts"),
        ({"name": "sum", "of": [{"name": "gigpo", "weight": -1}]}, "weight is -1"),
        ({"name": "sum", "of": [{"name": "gigpo", "omgea": 1}]}, "'omgea'"),
    ],
)
def test_what_a_configuration_gets_wrong_is_said(tmp_path: Path, table: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read(tmp_path, **table)


def test_an_unknown_part_of_a_sum_is_named(tmp_path: Path) -> None:
    wrong = ["gigop", "identical", {"name": "discounted", "gamma": 1.5}, {"name": "last_call", "weight": 0}]
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, name="sum", of=wrong)
    for said in ("of.0: Unknown credit assigner 'gigop'", "of.2: gamma is 1.5", "of.3: weight is 0"):
        assert said in str(caught.value)
    assert "of.1" not in str(caught.value)
