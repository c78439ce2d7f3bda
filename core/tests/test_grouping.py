"""Who is compared with whom: agents kept apart, and what counts once in a mean. Numbers by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.lightningrl import (
    GRPO,
    NO_GROUP,
    UNNAMED,
    AdvantageEstimator,
    Comparison,
    DrGRPO,
    Grouping,
    Identical,
    LastCall,
    LightningRL,
    ReinforcePlusPlus,
)
from spangrad.transitions import Reason, TransitionBatch

MakeBatch = Callable[..., TransitionBatch]
W, C = "writer", "critic"


@pytest.fixture(scope="module")
def team_batch(make_transition_batch: MakeBatch) -> TransitionBatch:
    """Three rollouts of a task, with rewards 3, 0 and 0. The writer is called 3, 1 and 1 times; the critic only in the
    first two.
    """
    return make_transition_batch(
        [("a", 3, [1, 1, 1, 1]), ("a", 0, [1, 1]), ("a", 0, [1])],
        agents={(0, 0): W, (0, 1): W, (0, 2): W, (0, 3): C, (1, 0): W, (1, 1): C, (2, 0): W},
    )


def applied(grouping: Grouping, batch: TransitionBatch, among: str = "task") -> Comparison:
    (comparison,) = grouping.applied(Identical().comparisons(batch), batch, among=among)  # type: ignore[arg-type]  # of a list
    return comparison


def advantages(estimator: AdvantageEstimator, grouping: Grouping, batch: TransitionBatch) -> list[float]:
    made: list[float] = LightningRL(Identical(), estimator, grouping=grouping).compute(batch).advantages.tolist()
    return made


def test_by_default_all_calls_of_a_task_are_compared_and_a_rollout_counts_once(team_batch: TransitionBatch) -> None:
    # mean of 3, 0, 0 = 1
    assert advantages(DrGRPO(), Grouping(), team_batch) == [2, 2, 2, 2, -1, -1, -1]


def test_per_agent_a_rollout_counts_once_in_the_mean_of_each_agent_called_in_it(team_batch: TransitionBatch) -> None:
    # writer: 3, 0, 0, mean 1; critic: 3, 0, mean 1.5
    assert advantages(DrGRPO(), Grouping(per_agent=True), team_batch) == [2, 2, 2, 1.5, -1, -1.5, -1]
    # writer: std sqrt((4 + 1 + 1) / 2) = sqrt(3); critic: std sqrt(2 * 2.25) = 1.5 * sqrt(2)
    w, c = 1 / sqrt(3), 1 / sqrt(2)
    expected = [2 * w, 2 * w, 2 * w, c, -w, -c, -w]
    assert advantages(GRPO(eps=1e-12), Grouping(per_agent=True), team_batch) == pytest.approx(expected)


def test_per_agent_over_calls_is_dr_mas_as_published(team_batch: TransitionBatch) -> None:
    # arXiv 2602.08847: mean and deviation over the agent's calls. Writer: 3, 3, 3, 0, 0, mean 1.8, unbiased
    # std sqrt((3 * 1.44 + 2 * 3.24) / 4) = sqrt(2.7); critic as above
    grouping = Grouping(per_agent=True, statistics="call")
    w, c = 1 / sqrt(2.7), 1 / sqrt(2)
    expected = [1.2 * w, 1.2 * w, 1.2 * w, c, -1.8 * w, -c, -1.8 * w]
    assert advantages(GRPO(eps=1e-12), grouping, team_batch) == pytest.approx(expected)


def test_over_calls_without_agents_long_rollouts_weigh_more(team_batch: TransitionBatch) -> None:
    # 3 four times and 0 three times: mean 12 / 7
    expected = [9 / 7] * 4 + [-12 / 7] * 3
    assert advantages(DrGRPO(), Grouping(statistics="call"), team_batch) == pytest.approx(expected)


def test_per_agent_over_the_whole_batch_keeps_tasks_together(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch(
        [("a", 3, [1, 1]), ("b", 1, [1, 1])], agents={(0, 0): W, (0, 1): C, (1, 0): W, (1, 1): W}
    )
    report = LightningRL(Identical(), ReinforcePlusPlus(eps=1e-12), grouping=Grouping(per_agent=True)).compute(batch)
    # writer: 3 and 1, mean 2, std sqrt(2); the critic is alone
    one = 1 / sqrt(2)
    assert report.advantages == pytest.approx([one, 0, -one, -one])
    assert report.reasons == (Reason.TRAINED, Reason.SINGLETON_GROUP, Reason.TRAINED, Reason.TRAINED)


def test_an_agent_called_in_one_rollout_only_has_nothing_to_be_compared_with(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1, [1, 1]), ("a", 0, [1])], agents={(0, 0): W, (0, 1): C, (1, 0): W})
    report = LightningRL(Identical(), GRPO(), grouping=Grouping(per_agent=True)).compute(batch)
    assert report.reasons == (Reason.TRAINED, Reason.SINGLETON_GROUP, Reason.TRAINED)
    assert report.warnings == ("1 of 2 groups of calls have fewer than 2 members; nothing was learnt from them",)


def test_calls_without_an_agents_name_are_one_agents(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 3, [1, 1]), ("a", 1, [1])], agents={(0, 0): W})
    # the writer is alone; the others: 3 and 1, mean 2
    assert advantages(DrGRPO(), Grouping(per_agent=True), batch) == [0, 1, -1]


def test_what_an_assigner_compares_with_none_stays_apart(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 1, [1, 1]), ("a", 0, [1])])
    for among in ("task", "batch", "agent"):
        for grouping in (Grouping(), Grouping(per_agent=True), Grouping(statistics="call")):
            (comparison,) = grouping.applied(LastCall().comparisons(batch), batch, among=among)
            assert comparison.groups[0] == NO_GROUP
            assert comparison.groups[1] == comparison.groups[2] != NO_GROUP


def test_among_agents_each_has_one_group_whatever_the_task_and_it_has_a_name(make_transition_batch: MakeBatch) -> None:
    batch = make_transition_batch([("a", 3, [1, 1]), ("b", 1, [1, 1])], agents={(0, 0): W, (1, 1): W})
    comparison = applied(Grouping(), batch, "agent")
    assert comparison.groups.tolist() == [0, 1, 1, 0]
    assert comparison.names == (W, UNNAMED, UNNAMED, W)
    assert applied(Grouping(per_agent=True), batch, "task").names == ()


def test_each_agents_returns_and_advantages_stand_in_the_metrics(team_batch: TransitionBatch) -> None:
    report = LightningRL(Identical(), DrGRPO(), grouping=Grouping(per_agent=True)).compute(team_batch)
    found = {name: value for name, value in report.metrics.items() if name.startswith("agent/")}
    assert found == pytest.approx(
        {
            "agent/writer/transitions": 5,
            "agent/writer/rollouts": 3,
            "agent/writer/return_mean": 1.0,
            "agent/writer/return_std": sqrt(3),
            "agent/writer/trained_transitions": 5,
            "agent/writer/advantage_mean": (2 + 2 + 2 - 1 - 1) / 5,
            "agent/writer/advantage_abs_mean": (2 + 2 + 2 + 1 + 1) / 5,
            "agent/critic/transitions": 2,
            "agent/critic/rollouts": 2,
            "agent/critic/return_mean": 1.5,
            "agent/critic/return_std": sqrt(4.5),
            "agent/critic/trained_transitions": 2,
            "agent/critic/advantage_mean": 0.0,
            "agent/critic/advantage_abs_mean": 1.5,
        }
    )


def test_an_agent_that_is_not_trained_this_step_has_no_advantages_in_the_metrics(
    make_transition_batch: MakeBatch,
) -> None:
    batch = make_transition_batch([("a", 1, [1, 1]), ("a", 0, [1])], agents={(0, 0): W, (1, 0): W})
    report = LightningRL(Identical(), GRPO(), grouping=Grouping(per_agent=True)).compute(batch)
    assert report.metrics[f"agent/{UNNAMED}/trained_transitions"] == 0
    assert report.metrics[f"agent/{UNNAMED}/return_mean"] == 1.0
    assert f"agent/{UNNAMED}/advantage_mean" not in report.metrics
    assert f"agent/{UNNAMED}/return_std" not in report.metrics


rollouts = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.integers(-8, 8).map(float), st.lists(st.sampled_from("xyz"), min_size=1, max_size=3)
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("statistics", ["rollout", "call"])
@given(rollouts=rollouts, data=st.data())
def test_another_agents_calls_change_nothing(
    make_transition_batch: MakeBatch, statistics: str, rollouts: list[tuple[str, float, list[str]]], data: st.DataObject
) -> None:
    grouping = Grouping(per_agent=True, statistics=statistics)  # type: ignore[arg-type]  # of the two above

    def of_agent(agent: str, shapes: list[tuple[str, float, list[str]]]) -> list[list[float]]:
        batch = make_transition_batch(
            [(task, reward, [1] * len(agents)) for task, reward, agents in shapes],
            agents={(r, c): name for r, (_, _, agents) in enumerate(shapes) for c, name in enumerate(agents)},
        )
        found = zip(batch.transitions, advantages(GRPO(), grouping, batch), strict=True)
        per_rollout: dict[str, list[float]] = {key: [] for key, _ in batch.rollout_keys}
        for transition, advantage in found:
            if transition.agent == agent:
                per_rollout[transition.rollout_id].append(advantage)
        return list(per_rollout.values())

    chosen = data.draw(st.integers(0, len(rollouts) - 1))
    task, reward, agents = rollouts[chosen]
    more = [*rollouts[:chosen], (task, reward, [*agents, "other", "other"]), *rollouts[chosen + 1 :]]
    for agent in "xyz":
        for before, after in zip(of_agent(agent, rollouts), of_agent(agent, more), strict=True):
            assert after == pytest.approx(before, abs=1e-12)
