"""GiGPO and HGPO: calls made in the same state, against numbers worked out by hand from the papers' formulas."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest

from spangrad.errors import ConfigError
from spangrad.lightningrl import GRPO, HGPO, DrGRPO, GiGPO, LightningRL, ReinforcePlusPlus
from spangrad.transitions import Reason, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]


@pytest.fixture
def maze(make_transition_batch: MakeBatch) -> TransitionBatch:
    """Two rollouts of a task, the first solved: door, hall, door; and door, cellar."""
    return make_transition_batch(
        [("a", 1.0, [1, 1, 1]), ("a", 0.0, [1, 1])],
        states={(0, 0): "door", (0, 1): "hall", (0, 2): "door", (1, 0): "door", (1, 1): "cellar"},
    )


def test_gigpo_compares_all_visits_of_a_state(maze: TransitionBatch) -> None:
    episode, step = GiGPO(gamma=0.5).comparisons(maze)
    assert episode.returns.tolist() == [1, 1, 1, 0, 0]
    assert step.returns.tolist() == [0.25, 0.5, 1.0, 0.0, 0.0]
    # door: 0.25, 1 and 0, mean 5/12; hall and cellar were visited once
    third = 5 / 12
    expected = [0.5 + 0.25 - third, 0.5, 0.5 + 1 - third, -0.5 - third, -0.5]
    assert DrGRPO().advantages((episode, step)) == pytest.approx(expected)


def test_gigpo_with_grpo_divides_by_the_deviation_of_the_state(maze: TransitionBatch) -> None:
    # episode: +-1/sqrt(2), the deviation of 1 and 0 being sqrt(1/2). door: deviations from 5/12 are -2/12, 7/12, -5/12
    deviation = sqrt((4 + 49 + 25) / 144 / 2)
    values = GRPO(eps=1e-12).advantages(GiGPO(gamma=0.5, omega=2.0).comparisons(maze))
    one = 1 / sqrt(2)
    expected = [one - 4 / 12 / deviation, one, one + 14 / 12 / deviation, -one - 10 / 12 / deviation, -one]
    assert values == pytest.approx(expected)


def test_gigpo_may_count_a_rollout_once_however_often_it_came_back(maze: TransitionBatch) -> None:
    # door: (0.25 + 1) / 2 and 0, mean 0.3125
    values = DrGRPO().advantages(GiGPO(gamma=0.5, units="rollout").comparisons(maze))
    assert values == pytest.approx([0.5 + 0.25 - 0.3125, 0.5, 0.5 + 1 - 0.3125, -0.5 - 0.3125, -0.5])


def test_a_state_that_one_rollout_alone_came_back_to_compares_its_visits_or_nothing(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch([("a", 1.0, [1, 1]), ("a", 1.0, [1])], states={(0, 0): "x", (0, 1): "x", (1, 0): "y"})
    # The visits of x have 0.5 and 1 to come.
    assert DrGRPO().advantages(GiGPO(gamma=0.5).comparisons(batch)).tolist() == [-0.25, 0.25, 0]
    assert DrGRPO().advantages(GiGPO(gamma=0.5, units="rollout").comparisons(batch)).tolist() == [0, 0, 0]


def test_states_of_two_tasks_are_two_states(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1.0, [1]), ("b", 0.0, [1])], states={(0, 0): "door", (1, 0): "door"})
    report = LightningRL(GiGPO(), GRPO()).compute(batch)
    assert report.reasons == (Reason.SINGLETON_GROUP,) * 2


def test_where_the_agent_named_no_state_an_equal_prompt_is_an_equal_state(make_transition_batch: MakeBatch) -> None:
    shape = [("a", 1.0, [1, 1]), ("a", 0.0, [1, 1])]
    batch = make_transition_batch(shape, prompts={(0, 0): (1,), (1, 0): (1,), (0, 1): (1, 2), (1, 1): (1, 3)})
    # the first calls share a prompt, with returns 0.5 and 0
    assert DrGRPO().advantages(GiGPO(gamma=0.5).comparisons(batch)).tolist() == [0.75, 0.5, -0.75, -0.5]


def test_hgpo_weighs_longer_common_pasts_more(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1, 1]), ("a", 0.0, [1, 1]), ("a", 0.5, [1, 1])],
        states={(0, 0): "x", (1, 0): "x", (2, 0): "y", (0, 1): "z", (1, 1): "z", (2, 1): "z"},
    )
    values = DrGRPO().advantages(HGPO(gamma=1, history=1, alpha=1).comparisons(batch))
    # Level 0: x has 1 and 0; y is alone; z has 1, 0 and 0.5. Level 1: x with no past the same, z after x has 1 and 0.
    # Weights 1/3 and 2/3. x: 0.5 at both levels. z after x: 0.5 at both. z after y: level 0 alone, 0.5 - 0.5.
    assert values == pytest.approx([0.5, 0.5, -0.5, -0.5, 0, 0])


def test_hgpo_by_hand_where_the_levels_differ(maze: TransitionBatch) -> None:
    level_0, level_1, level_2 = HGPO(gamma=0.5, history=2).comparisons(maze)
    assert level_0.returns.tolist() == [0.25, 0.5, 1.0, 0.0, 0.0]
    # Level 0: the three calls at the door. Levels 1 and 2: the two with no past; the third came from the hall.
    assert level_0.weight == pytest.approx([1 / 6, 0, 1, 1 / 6, 0])
    assert level_1.weight == pytest.approx([2 / 6, 0, 0, 2 / 6, 0])
    assert level_2.weight == pytest.approx([3 / 6, 0, 0, 3 / 6, 0])
    # around 5/12 at level 0, around 1/8 above
    expected = [(0.25 - 5 / 12) / 6 + 0.125 * 5 / 6, 0, 1 - 5 / 12, (-5 / 12) / 6 - 0.125 * 5 / 6, 0]
    assert DrGRPO().advantages((level_0, level_1, level_2)) == pytest.approx(expected)


def test_hgpo_with_alpha_zero_weighs_all_levels_the_same(maze: TransitionBatch) -> None:
    weights = [level.weight for level in HGPO(gamma=0.5, history=2, alpha=0).comparisons(maze)]
    assert weights[0] == pytest.approx([1 / 3, 0, 1, 1 / 3, 0])
    assert weights[2] == pytest.approx([1 / 3, 0, 0, 1 / 3, 0])


def test_hgpo_skips_a_level_whose_returns_are_all_the_same(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1, 1]), ("a", 1.0, [1, 1]), ("a", 0.0, [1, 1])],
        states={(0, 0): "x", (1, 0): "x", (2, 0): "y", (0, 1): "z", (1, 1): "z", (2, 1): "z"},
    )
    values = DrGRPO().advantages(HGPO(gamma=1, history=1).comparisons(batch))
    # z after x has 1 and 1, so level 0 counts alone: 1, 1 and 0 around 2/3
    assert values == pytest.approx([0, 1 / 3, 0, 1 / 3, 0, -2 / 3])


def test_a_call_that_hgpo_can_compare_with_none_is_not_trained(maze: TransitionBatch) -> None:
    report = LightningRL(HGPO(), GRPO()).compute(maze)
    assert [reason is Reason.NO_CREDIT for reason in report.reasons] == [False, True, False, False, True]
    assert report.ledger(1)[1].detail == "the credit assigner compares it with no other call"
    assert report.warnings == ()


def test_the_states_of_calls_made_side_by_side_are_one_past_in_whatever_order(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1, 1, 1]), ("a", 0.0, [1, 1, 1])],
        depths={(r, c): min(c, 1) if c == 0 else c // 2 for r in range(2) for c in range(3)},
        states={(0, 0): "l", (0, 1): "r", (0, 2): "z", (1, 0): "r", (1, 1): "l", (1, 2): "z"},
    )
    level_1 = HGPO(gamma=1, history=1).comparisons(batch)[1]
    assert level_1.groups[2] == level_1.groups[5]


@pytest.mark.parametrize("credit", [GiGPO(), HGPO()], ids=lambda credit: type(credit).__name__)
def test_an_estimator_that_compares_the_whole_batch_would_undo_the_states_and_is_refused(credit: GiGPO | HGPO) -> None:
    LightningRL(credit, GRPO()).check(rollouts_per_task=8)
    with pytest.raises(ConfigError, match="compares calls made in the same state, but reinforce_pp would"):
        LightningRL(credit, ReinforcePlusPlus()).check(rollouts_per_task=8)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: GiGPO(gamma=2), "gamma is 2"),
        (lambda: GiGPO(omega=0), "omega is 0"),
        (lambda: GiGPO(units="row"), "units is 'row'"),  # type: ignore[arg-type]  # what a configuration may hold
        (lambda: HGPO(history=0), "history is 0"),
        (lambda: HGPO(history=True), "history is True"),
        (lambda: HGPO(alpha=-1), "alpha is -1"),
        (lambda: HGPO(alpha=float("inf")), "alpha is inf"),
    ],
)
def test_wrong_options_are_refused(make: Callable[[], object], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        make()
