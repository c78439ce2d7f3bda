"""What must hold for every credit assigner, whatever the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spangrad.lightningrl import (
    GRPO,
    HGPO,
    RLOO,
    AgentShare,
    CreditAssigner,
    Discounted,
    DrGRPO,
    Function,
    GiGPO,
    Graph,
    Identical,
    LastCall,
    LightningRL,
    Progress,
    ReturnToGo,
    Sum,
    TurnRewards,
    builtin_credit_assigners,
)
from spangrad.transitions import FloatArray, Reason, Transition, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]
Shape = tuple[str, float, list[int]]
Drawn = tuple[list[Shape], dict[str, dict[tuple[int, int], Any]]]


def own_and_rollouts_reward(transitions: tuple[Transition, ...]) -> list[float]:
    return [(t.reward or 0.0) + t.rollout_reward for t in transitions]


ASSIGNERS: Mapping[str, CreditAssigner] = {
    "agent_share": AgentShare({"writer": 1.0, "reviewer": 0.5}),
    "discounted": Discounted(gamma=0.5),
    "function": Function(own_and_rollouts_reward),
    "gigpo": GiGPO(),
    "graph": Graph(),
    "hgpo": HGPO(),
    "identical": Identical(),
    "last_call": LastCall(),
    "progress": Progress(),
    "return_to_go": ReturnToGo(),
    "sum": Sum([(GiGPO(units="rollout"), 1.0), (TurnRewards(), 0.5)]),
    "turn_rewards": TurnRewards(),
}
every_assigner = pytest.mark.parametrize("credit", ASSIGNERS.values(), ids=ASSIGNERS)
UNDISCOUNTED: Mapping[str, CreditAssigner] = {
    **ASSIGNERS,
    "discounted": Discounted(gamma=1),
    "gigpo": GiGPO(gamma=1),
    "hgpo": HGPO(gamma=1),
    "sum": Sum([(GiGPO(gamma=1, units="rollout"), 1.0), (TurnRewards(), 0.5)]),
}
"""A discount would make the size of a constant depend on how far a call is from the end."""
few = settings(max_examples=25)

quarters = st.integers(-8, 8).map(lambda n: n / 4)


@st.composite
def batches(draw: st.DrawFn) -> Drawn:
    """Rollouts of two tasks, their calls in few states, with or without rewards, scores, depths."""
    shapes: list[Shape] = draw(
        st.lists(
            st.tuples(st.sampled_from("ab"), quarters, st.lists(st.integers(1, 3), min_size=1, max_size=4)),
            min_size=1,
            max_size=6,
        )
    )
    calls = [(r, c) for r, (_, _, lengths) in enumerate(shapes) for c in range(len(lengths))]
    some = st.sampled_from
    facts: dict[str, dict[tuple[int, int], Any]] = {
        "states": {call: draw(some("xyz")) for call in calls},
        "agents": {call: draw(some(["writer", "reviewer"])) for call in calls},
        "scores": {call: draw(quarters) for call in calls},
        "call_rewards": {call: draw(quarters) for call in calls if draw(st.booleans())},
        "depths": {(r, c): c // draw(some([1, 1, 2])) for r, c in calls},
    }
    return shapes, facts


def advantages(credit: CreditAssigner, batch: TransitionBatch, eps: float = 1e-6) -> FloatArray:
    return GRPO(eps=eps).advantages(credit.comparisons(batch))


def test_every_assigner_that_comes_with_spangrad_is_tested_here() -> None:
    assert set(ASSIGNERS) == set(builtin_credit_assigners())


@every_assigner
@few
@given(drawn=batches(), data=st.data())
def test_the_order_of_the_rows_does_not_matter(
    make_transition_batch: MakeBatch, credit: CreditAssigner, drawn: Drawn, data: st.DataObject
) -> None:
    shapes, facts = drawn
    batch = make_transition_batch(shapes, **facts)
    order = data.draw(st.permutations(range(len(batch))))
    shuffled = TransitionBatch(tuple(batch.transitions[row] for row in order))
    for before, after in zip(credit.comparisons(batch), credit.comparisons(shuffled), strict=True):
        assert after.returns == pytest.approx(before.returns[order])
    whole = advantages(credit, batch)
    assert advantages(credit, shuffled) == pytest.approx(whole[order], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("credit", UNDISCOUNTED.values(), ids=UNDISCOUNTED)
@few
@given(drawn=batches(), constant=st.integers(0, 4))
def test_a_constant_added_to_all_rollout_rewards_changes_no_advantage(
    make_transition_batch: MakeBatch, credit: CreditAssigner, drawn: Drawn, constant: int
) -> None:
    shapes, facts = drawn
    moved = [(group, reward + constant, calls) for group, reward, calls in shapes]
    other = replace(credit, goal=credit.goal + constant) if isinstance(credit, Graph) else credit
    before = advantages(credit, make_transition_batch(shapes, **facts), eps=1e-12)
    after = advantages(other, make_transition_batch(moved, **facts), eps=1e-12)
    assert after == pytest.approx(before, rel=1e-5, abs=1e-6)


@every_assigner
@few
@given(drawn=batches(), factor=st.sampled_from([0.5, 4.0]))
def test_rewards_of_another_scale_give_the_same_normalised_advantages(
    make_transition_batch: MakeBatch, credit: CreditAssigner, drawn: Drawn, factor: float
) -> None:
    shapes, facts = drawn
    scaled = [(group, reward * factor, calls) for group, reward, calls in shapes]
    rewards = {call: reward * factor for call, reward in facts["call_rewards"].items()}
    other = replace(credit, goal=credit.goal * factor) if isinstance(credit, Graph) else credit
    before = advantages(credit, make_transition_batch(shapes, **facts), eps=1e-12)
    after = advantages(other, make_transition_batch(scaled, **facts | {"call_rewards": rewards}), eps=1e-12)
    assert after == pytest.approx(before, rel=1e-5, abs=1e-6)


@every_assigner
@few
@given(drawn=batches())
def test_tasks_do_not_see_each_other(make_transition_batch: MakeBatch, credit: CreditAssigner, drawn: Drawn) -> None:
    batch = make_transition_batch(drawn[0], **drawn[1])
    whole = advantages(credit, batch)
    for task in batch.group_keys:
        rows = [row for row, t in enumerate(batch.transitions) if t.group_id == task]
        alone = TransitionBatch(tuple(batch.transitions[row] for row in rows))
        assert advantages(credit, alone) == pytest.approx(whole[rows], rel=1e-6, abs=1e-9)


@every_assigner
@few
@given(drawn=batches())
def test_more_tokens_in_a_call_change_nothing(
    make_transition_batch: MakeBatch, credit: CreditAssigner, drawn: Drawn
) -> None:
    shapes, facts = drawn
    longer = [(group, reward, [tokens + 5 for tokens in calls]) for group, reward, calls in shapes]
    before = advantages(credit, make_transition_batch(shapes, **facts))
    assert np.array_equal(advantages(credit, make_transition_batch(longer, **facts)), before)


@every_assigner
@pytest.mark.parametrize("estimator", [GRPO(), DrGRPO(), RLOO()], ids=lambda e: type(e).__name__)
def test_a_single_call_has_nobody_to_be_compared_with(
    make_transition_batch: MakeBatch, credit: CreditAssigner, estimator: GRPO | DrGRPO | RLOO
) -> None:
    batch = make_transition_batch([("a", 7.0, [1])], scores={(0, 0): 1.0}, agents={(0, 0): "writer"})
    report = LightningRL(credit, estimator).compute(batch)
    assert report.advantages.tolist() == [0]
    assert report.reasons[0] in {Reason.SINGLETON_GROUP, Reason.NO_CREDIT}


@every_assigner
def test_equal_rollouts_teach_nothing(make_transition_batch: MakeBatch, credit: CreditAssigner) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1])] * 3,
        scores={(r, 0): 0.5 for r in range(3)},
        agents={(r, 0): "writer" for r in range(3)},
        states={(r, 0): "x" for r in range(3)},
        rollout_components={r: {"score": 0.5} for r in range(3)},
    )
    report = LightningRL(credit, GRPO()).compute(batch)
    assert report.advantages.tolist() == [0, 0, 0]
    assert not report.trained.any()


@every_assigner
def test_calls_without_rewards_of_their_own_are_no_different_from_calls_with_a_reward_of_nothing(
    make_transition_batch: MakeBatch, credit: CreditAssigner
) -> None:
    shape = [("a", 1.0, [1, 1]), ("a", 0.0, [1, 1])]
    calls = [(r, c) for r in range(2) for c in range(2)]
    facts = {"scores": dict.fromkeys(calls, 0.0), "agents": dict.fromkeys(calls, "writer")}
    without = make_transition_batch(shape, **facts)
    nothing = make_transition_batch(shape, **facts, call_rewards=dict.fromkeys(calls, 0.0))
    assert np.array_equal(advantages(credit, without), advantages(credit, nothing))


@every_assigner
def test_an_empty_batch_gives_empty_comparisons(credit: CreditAssigner) -> None:
    comparisons = credit.comparisons(TransitionBatch(()))
    assert all(comparison.returns.shape == comparison.groups.shape == (0,) for comparison in comparisons)
    assert DrGRPO().advantages(comparisons).shape == (0,)
    assert LightningRL(credit, GRPO()).compute(TransitionBatch(())).warnings == ()


def test_four_rollouts_of_rewards_1_0_1_0_centre_on_a_half_not_on_the_mean_of_rows(
    make_transition_batch: MakeBatch,
) -> None:
    # With 2, 1, 2 and 1 calls the mean of the rows would be 2/3.
    batch = make_transition_batch([("a", 1, [3, 3]), ("a", 0, [3]), ("a", 1, [3, 3]), ("a", 0, [3])])
    (comparison,) = Identical().comparisons(batch)
    assert comparison.group_means.tolist() == [0.5]
    assert DrGRPO().advantages((comparison,)).tolist() == [0.5, 0.5, -0.5, 0.5, 0.5, -0.5]
    # the deviation of 1, 0, 1, 0 is sqrt(4 * 0.25 / 3) = sqrt(1/3)
    assert np.abs(GRPO(eps=1e-12).advantages((comparison,))) == pytest.approx([0.5 * 3**0.5] * 6)


@few
@given(
    rewards=st.lists(quarters, min_size=2, max_size=5),
    more=st.lists(st.integers(1, 3), min_size=5, max_size=5),
)
def test_a_rollout_of_more_calls_moves_no_baseline_where_the_baseline_is_the_rollouts(
    make_transition_batch: MakeBatch, rewards: list[float], more: list[int]
) -> None:
    short = make_transition_batch([("a", reward, [1]) for reward in rewards])
    long = make_transition_batch([("a", reward, [1] * more[r]) for r, reward in enumerate(rewards)])
    first = [int(np.flatnonzero(long.rollout_index == r)[0]) for r in range(len(rewards))]
    for credit in (Identical(), ReturnToGo(), TurnRewards()):
        assert advantages(credit, long)[first] == pytest.approx(advantages(credit, short), abs=1e-9)


@few
@given(drawn=batches())
def test_sum_of_one_part_is_that_part(make_transition_batch: MakeBatch, drawn: Drawn) -> None:
    batch = make_transition_batch(drawn[0], **drawn[1])
    for credit in ASSIGNERS.values():
        assert np.array_equal(advantages(Sum([(credit, 1.0)]), batch), advantages(credit, batch))
