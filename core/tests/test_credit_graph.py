"""Graph credit, against numbers worked out by hand from the paper's equation 4."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest

from spangrad.errors import ConfigError
from spangrad.lightningrl import GRPO, DrGRPO, Graph, LightningRL
from spangrad.transitions import Reason, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]


def test_a_call_earns_by_how_much_nearer_it_leads(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1, 1, 1]), ("a", 0.0, [1, 1])],
        states={(0, 0): "s", (0, 1): "m", (0, 2): "t", (1, 0): "s", (1, 1): "x"},
    )
    # d: t 1, m 2, s 3; from x nobody got there, so 4. s -> x: 4 + 1 - 3 = 2 calls lost; x -> its end: 4 + 1 - 4 = 1.
    episode, graph = Graph(gamma=0.5).comparisons(batch)
    assert episode.returns.tolist() == [1, 1, 1, 0, 0]
    assert graph.returns.tolist() == [1, 1, 1, 0.25, 0.5]
    # s: 1 and 0.25 around 0.625; all others were alone
    assert DrGRPO().advantages((episode, graph)).tolist() == [0.875, 0.5, 0.5, -0.875, -0.5]


def test_a_good_step_of_a_failed_rollout_is_told_from_a_bad_one(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 1.0, [1, 1]), ("a", 0.0, [1, 1]), ("a", 0.0, [1, 1])],
        states={(0, 0): "s", (0, 1): "t", (1, 0): "s", (1, 1): "t", (2, 0): "s", (2, 1): "x"},
    )
    _, graph = Graph(gamma=0.5, omega=1.0).comparisons(batch)
    # d: t 1, s 2, x 3. s -> t: 2 - 2 = 0; s -> x: 3 + 1 - 2 = 2. t -> success 0, t -> an end: 3 + 1 - 1 = 3.
    assert graph.returns.tolist() == [1, 1, 1, 0.125, 0.25, 0.5]
    values = GRPO(eps=1e-12).advantages((graph,))
    # s: 1, 1, 0.25 around 0.75, deviation sqrt((1/16 + 1/16 + 1/4) / 2)
    deviation = sqrt(0.375 / 2)
    assert values == pytest.approx([0.25 / deviation, 1 / sqrt(2), 0.25 / deviation, -1 / sqrt(2), -0.5 / deviation, 0])


def test_the_advantages_are_those_of_the_papers_equation(make_transition_batch: MakeBatch) -> None:
    # Equation 4 with r_succ = 10, omega = 0.5, costs of 1: 10 * 0.5^(d(s') + 1), normalised among the calls made in s.
    batch = make_transition_batch(
        [("a", 10.0, [1, 1]), ("a", 10.0, [1]), ("a", 0.0, [1, 1, 1])],
        states={(0, 0): "s", (0, 1): "t", (1, 0): "s", (2, 0): "s", (2, 1): "s", (2, 2): "t"},
    )
    # d: t 1, s 1 (the second rollout went straight there); unreached 2. s has: -> t 1, -> success 0, -> s 1, -> t 1;
    # t has -> success 0 and -> an end 2.
    at_s = [2.5, 5.0, 2.5, 2.5]
    at_t = [5.0, 1.25]
    values = GRPO(eps=1e-12).advantages(Graph(goal=10.0, gamma=0.5).comparisons(batch)[1:])

    def normalised(value: float, among: list[float]) -> float:
        mean = sum(among) / len(among)
        return (value - mean) / sqrt(sum((other - mean) ** 2 for other in among) / (len(among) - 1))

    expected = [
        normalised(2.5, at_s),
        normalised(5.0, at_t),
        normalised(5.0, at_s),
        normalised(2.5, at_s),
        normalised(2.5, at_s),
        normalised(1.25, at_t),
    ]
    assert values == pytest.approx(expected)


def test_a_task_nobody_solved_has_the_episode_alone(make_transition_batch: MakeBatch) -> None:
    unsolved = [("a", 0.5, [1]), ("a", 0.0, [1])]
    states = {(0, 0): "s", (1, 0): "s", (2, 0): "s", (3, 0): "s"}
    (episode,) = Graph().comparisons(make_transition_batch(unsolved, states=states))
    assert episode.returns.tolist() == [0.5, 0]
    beside = make_transition_batch([*unsolved, ("b", 1.0, [1]), ("b", 0.0, [1])], states=states)
    _, graph = Graph().comparisons(beside)
    assert graph.compared.tolist() == [False, False, True, True]
    assert DrGRPO().advantages(Graph().comparisons(beside))[:2].tolist() == [0.25, -0.25]


def test_far_from_the_goal_the_difference_is_as_large_as_near_it(make_transition_batch: MakeBatch) -> None:
    # Both start in state 0; the second walks in place once. 30 steps before the goal 0.1^31 would be nothing beside eps.
    length = 30
    states = {(0, c): str(c) for c in range(length)} | {(1, 0): "0"} | {(1, c + 1): str(c) for c in range(length)}
    batch = make_transition_batch([("a", 1.0, [1] * length), ("a", 1.0, [1] * (length + 1))], states=states)
    report = LightningRL(Graph(), GRPO()).compute(batch)
    # state 0: on, in place, on: 1, 0.1, 1
    assert report.advantages[0] == report.advantages[length + 1] == pytest.approx(1 / sqrt(3), rel=1e-4)
    assert report.advantages[length] == pytest.approx(-2 / sqrt(3), rel=1e-4)
    assert set(report.reasons[1:length]) == {Reason.ZERO_VARIANCE}


def test_where_a_step_has_several_states_the_nearest_to_success_counts(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 0.0, [1, 1, 1]), ("a", 1.0, [1])],
        depths={(0, 0): 0, (0, 1): 1, (0, 2): 1, (1, 0): 0},
        states={(0, 0): "s", (0, 1): "far", (0, 2): "t", (1, 0): "t"},
    )
    # d: t 1, s 2. s leads to far and t: by t on a shortest way.
    assert Graph(gamma=0.5).comparisons(batch)[1].returns[0] == 1.0


def test_success_is_the_rollouts_own_reward_of_at_least_the_goal(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 2.0, [1]), ("a", 1.9, [1])], states={(0, 0): "s", (1, 0): "s"})
    assert Graph(goal=2.0, gamma=0.5).comparisons(batch)[1].returns.tolist() == [2.0, 2.0 * 0.25]
    assert len(Graph(goal=2.1).comparisons(batch)) == 1


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: Graph(goal=0), "goal is 0"),
        (lambda: Graph(goal=float("nan")), "goal is nan"),
        (lambda: Graph(gamma=0), "gamma is 0"),
        (lambda: Graph(gamma=1), "gamma is 1: all distances would earn the same"),
        (lambda: Graph(omega=-1), "omega is -1"),
    ],
)
def test_wrong_options_are_refused(make: Callable[[], object], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        make()
