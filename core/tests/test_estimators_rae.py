"""RAE: a moving average of each agent's returns, remembered from step to step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.errors import ConfigError
from spangrad.lightningrl import (
    RAE,
    UNNAMED,
    Discounted,
    Grouping,
    Identical,
    LastCall,
    LightningRL,
    RememberingEstimator,
)
from spangrad.transitions import Reason, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]


def remembered(rae: RAE, batch: TransitionBatch, memory: Mapping[str, float]) -> Mapping[str, float]:
    compared = Grouping().applied(Identical().comparisons(batch), batch, among="agent")
    return rae.memory_after(compared, memory)


def test_it_is_an_estimator_that_remembers() -> None:
    assert isinstance(RAE(), RememberingEstimator)
    assert RAE().requirements.memory


def test_each_agent_has_its_own_baseline_that_of_before_the_step(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [2, 2]), ("b", 0.0, [2])], agents={(0, 0): "writer", (0, 1): "critic", (1, 0): "writer"}
    )
    report = LightningRL(Identical(), RAE(alpha=0.5)).compute(batch, memory={"0/writer": 0.75, "0/critic": -1.0})
    assert report.advantages.tolist() == [0.25, 2.0, -0.75]
    # writer, two rollouts with the mean 0.5: 0.25 * 0.75 + 0.75 * 0.5; critic, one rollout: 0.5 * -1 + 0.5 * 1
    assert report.memory == pytest.approx({"0/writer": 0.5625, "0/critic": 0.0})
    assert report.recalled == {"0/writer": 0.75, "0/critic": -1.0}
    assert report.metrics["memory/0/writer"] == pytest.approx(0.5625)


def test_the_published_decay_is_the_default_and_baselines_begin_at_zero(make_transition_batch: MakeBatch) -> None:
    report = LightningRL(Identical(), RAE()).compute(make_transition_batch([("a", 2.0, [1])]))
    assert report.advantages.tolist() == [2.0]
    # 0.95 * 0 + 0.05 * 2
    assert report.memory == pytest.approx({f"0/{UNNAMED}": 0.1})


def test_a_baseline_may_begin_elsewhere(make_transition_batch: MakeBatch) -> None:
    report = LightningRL(Identical(), RAE(alpha=0.5, initial=1.0)).compute(make_transition_batch([("a", 2.0, [1])]))
    assert report.advantages.tolist() == [1.0]
    assert report.memory == {f"0/{UNNAMED}": 1.5}


def test_equal_rollouts_one_after_the_other_move_the_baseline_as_much_as_together(
    make_transition_batch: MakeBatch,
) -> None:
    one = make_transition_batch([("a", 1.0, [1])])
    rae, memory = RAE(), {f"0/{UNNAMED}": 0.25}
    after: Mapping[str, float] = memory
    for _ in range(3):
        after = remembered(rae, one, after)
    together = make_transition_batch([("a", 1.0, [1]), ("a", 1.0, [1, 1, 1]), ("b", 1.0, [1])])
    assert remembered(rae, together, memory) == pytest.approx(after, rel=1e-12)


def test_a_task_of_one_rollout_and_a_step_of_equal_returns_are_trained_on(make_transition_batch: MakeBatch) -> None:
    algorithm = LightningRL(Identical(), RAE())
    algorithm.check(rollouts_per_task=1)
    report = algorithm.compute(make_transition_batch([("a", 1.0, [1]), ("b", 1.0, [1])]))
    assert report.reasons == (Reason.TRAINED, Reason.TRAINED)
    assert report.metrics["zero_variance_groups"] == 0
    assert report.warnings == ()


def test_an_agent_that_was_not_called_keeps_its_baseline(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1])], agents={(0, 0): "writer"})
    report = LightningRL(Identical(), RAE(alpha=0.5)).compute(batch, memory={"0/critic": 3.0})
    assert report.memory == {"0/critic": 3.0, "0/writer": 0.5}
    assert LightningRL(Identical(), RAE()).compute(TransitionBatch(()), memory={"0/critic": 3.0}).memory == {
        "0/critic": 3.0
    }


def test_a_rollout_counts_once_by_the_mean_of_its_calls(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1]), ("a", 0.0, [1])])
    report = LightningRL(Discounted(gamma=0.5), RAE(alpha=0.5)).compute(batch)
    assert report.advantages.tolist() == [0.5, 1.0, 0.0]
    # rollouts 0.75 and 0: 0.25 * 0 + 0.75 * 0.375
    assert report.memory == pytest.approx({f"0/{UNNAMED}": 0.28125})


def test_calls_that_are_compared_with_none_neither_learn_nor_count(make_transition_batch: MakeBatch) -> None:
    report = LightningRL(LastCall(), RAE(alpha=0.5)).compute(make_transition_batch([("a", 1.0, [1, 1])]))
    assert report.reasons == (Reason.NO_CREDIT, Reason.TRAINED)
    assert report.advantages.tolist() == [0.0, 1.0]
    assert report.memory == {f"0/{UNNAMED}": 0.5}


def test_a_step_that_is_not_trained_on_is_not_remembered(make_transition_batch: MakeBatch) -> None:
    report = LightningRL(Identical(), RAE()).compute(
        make_transition_batch([("a", 1.0, [1])]), memory={f"0/{UNNAMED}": 0.5}
    )
    given_up = report.without_update(Reason.BATCH_FAILED)
    assert report.memory != report.recalled
    assert given_up.memory == {f"0/{UNNAMED}": 0.5}
    assert given_up.metrics[f"memory/0/{UNNAMED}"] == 0.5


@given(
    rewards=st.lists(st.integers(-8, 8), min_size=1, max_size=6),
    before=st.integers(-8, 8),
    shift=st.integers(-8, 8),
)
def test_shifting_rewards_and_baseline_together_changes_no_advantage(
    make_transition_batch: MakeBatch, rewards: list[int], before: int, shift: int
) -> None:
    algorithm = LightningRL(Identical(), RAE())
    shapes = [("a", float(reward), [1]) for reward in rewards]
    moved = [("a", float(reward + shift), [1]) for reward in rewards]
    first = algorithm.compute(make_transition_batch(shapes), memory={f"0/{UNNAMED}": before})
    second = algorithm.compute(make_transition_batch(moved), memory={f"0/{UNNAMED}": before + shift})
    assert second.advantages == pytest.approx(first.advantages, abs=1e-9)
    # an average of what it was and of what came
    assert min([before, *rewards]) - 1e-9 <= first.memory[f"0/{UNNAMED}"] <= max([before, *rewards]) + 1e-9


@pytest.mark.parametrize("alpha", [-0.1, 1, 1.5, float("nan"), "0.95", True])
def test_a_decay_that_is_no_number_from_0_to_below_1_is_refused(alpha: object) -> None:
    with pytest.raises(ConfigError, match="alpha is"):
        RAE(alpha=alpha)  # type: ignore[arg-type]  # what a configuration may hold


@pytest.mark.parametrize("initial", [float("nan"), float("inf"), "0", True])
def test_a_first_baseline_that_is_no_finite_number_is_refused(initial: object) -> None:
    with pytest.raises(ConfigError, match="initial is"):
        RAE(initial=initial)  # type: ignore[arg-type]  # what a configuration may hold
