"""What counts for what: one test per row of the table in docs/rewards.md, which also names the rows there are."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from spangrad.capture import RewardList, Rollout, RolloutScope, reward_value
from spangrad.errors import RewardError
from spangrad.gateway import Gateway, RolloutAccess
from spangrad.lightningrl import GRPO, Identical, LightningRL, check_size
from spangrad.rollouts import Judges, RolloutJob, RolloutResult, Runner, Task, load_agent, load_reward
from spangrad.store import RewardRecord, RolloutRecord, RolloutStatus, Store, explain
from spangrad.training._step_checks import missing_rewards
from spangrad.transitions import (
    Call,
    CallStatus,
    Choice,
    Extraction,
    Reason,
    RewardWeights,
    Transition,
    TransitionBatch,
    extract,
)

DOCUMENT: Final = Path(__file__).parents[2] / "docs/rewards.md"
ROWS: Final = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text().partition("## What counts for what")[2], re.MULTILINE)


@dataclass
class World:
    """What the tests of the rows are made of."""

    rollout: Callable[..., RolloutRecord]
    reward: Callable[..., RewardRecord]
    call: Callable[..., Call]
    gateway: Gateway
    store: Store

    def extracted(self, *rewards: RewardRecord, calls: Sequence[Call] | None = None, **options: Any) -> Extraction:
        """What comes of a rollout of two calls, or of those given."""
        record = options.pop("record", self.rollout())
        return extract(record, calls or [self.call(1), self.call(2)], rewards, **options)

    def credits(self, *rewards: RewardRecord, **options: Any) -> list[tuple[float | None, float]]:
        """Each transition's own reward and its rollout's."""
        return [(t.reward, t.rollout_reward) for t in self.extracted(*rewards, **options).transitions]

    async def played(self, agent: Callable[..., Any], judges: Judges) -> RolloutResult:
        """An agent run once."""
        runner = Runner(load_agent(agent, Path()), judges, self.gateway, self.store, concurrency=1, timeout=30)
        (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", {}), "train", 1)])
        return result


Row = Callable[[World], Awaitable[None]]
CHECKS: Final[dict[str, Row]] = {}


def row(check: Row) -> Row:
    """The test of the row of its name."""
    CHECKS[check.__name__] = check
    return check


@pytest.fixture
def world(
    make_rollout_record: Callable[..., RolloutRecord],
    make_reward_record: Callable[..., RewardRecord],
    make_call: Callable[..., Call],
    echo_gateway: Gateway,
    echo_store: Store,
) -> World:
    return World(make_rollout_record, make_reward_record, make_call, echo_gateway, echo_store)


def test_every_row_has_its_test_and_every_test_its_row() -> None:
    assert ROWS
    assert sorted(CHECKS) == sorted(ROWS)


@pytest.mark.parametrize("name", ROWS)
async def test_row(name: str, world: World) -> None:
    await CHECKS[name](world)


def nothing_counted(world: World, extraction: Extraction, reward: RewardRecord) -> None:
    """The reward is reported as unmatched, and the rollout's own reward of 1 is all there is."""
    assert extraction.unmatched_rewards == (reward,)
    assert all((t.reward, t.rollout_reward) == (None, 1.0) for t in extraction.transitions)
    assert extraction.transitions
    del world


def ask(access: RolloutAccess | Rollout) -> None:
    """One call of the model."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "x"}]}
    headers = {"authorization": f"Bearer {access.api_key}"}
    httpx.post(f"{access.base_url}/chat/completions", json=body, headers=headers, trust_env=False).raise_for_status()


def way(*rewards: float, output: Any = "answer") -> Callable[[Any, Rollout], Any]:
    """An agent that is rewarded on its way."""

    def agent(_: Any, rollout: Rollout) -> Any:
        ask(rollout)
        for value in rewards:
            rollout.reward(value)
        return output

    return agent


def judged_by(function: Callable[..., Any], **options: Any) -> Judges:
    return Judges(load_reward(function, Path()), **options)


def told(result: RolloutResult) -> list[tuple[float, str]]:
    return [(reward.value, reward.source) for reward in result.rewards]


@row
async def rollout(world: World) -> None:
    assert world.credits(world.reward(value=0.75)) == [(None, 0.75), (None, 0.75)]


@row
async def call(world: World) -> None:
    rewards = [world.reward(value=1.0), world.reward(value=0.5, call_id="call-2")]
    assert world.credits(*rewards) == [(None, 1.0), (0.5, 1.0)]


@row
async def only_calls(world: World) -> None:
    assert world.credits(world.reward(value=0.5, call_id="call-2")) == [(None, 0.0), (0.5, 0.0)]


@row
async def zero(world: World) -> None:
    rewards = [world.reward(value=0.0), world.reward(value=0.0, call_id="call-1")]
    assert world.credits(*rewards) == [(0.0, 0.0), (None, 0.0)]


@row
async def boolean(world: World) -> None:
    del world
    rewards = RewardList("r")
    handle = Rollout(RolloutScope("r", 1, "t", "http://127.0.0.1:1/v1", "key", reward_sink=rewards))
    handle.reward(True)
    handle.reward(False, call_id="c")
    assert [reward.value for reward in rewards.close()] == [1.0, 0.0]


@row
async def one_name_twice(world: World) -> None:
    rewards = [world.reward(value=value, call_id=call_id) for value in (0.5, 0.25) for call_id in (None, "call-1")]
    assert world.credits(*rewards) == [(0.75, 0.75), (None, 0.75)]


@row
async def several_names(world: World) -> None:
    rewards = [world.reward(name="correct", value=1.0), world.reward(name="form", value=0.5)]
    first: Transition = world.extracted(*rewards, weights=RewardWeights({"correct": 2.0, "form": 0.5})).transitions[0]
    assert first.rollout_reward == 2.25  # 2 * 1 + 0.5 * 0.5
    assert first.rollout_components == {"correct": 1.0, "form": 0.5}


@row
async def several_choices(world: World) -> None:
    usable = tuple(Choice(i, (7,), (-0.5,), "stop", {}) for i in (1, 2))
    calls = [world.call(1, choices=(Choice(0, (), (), "stop", {}), *usable))]
    extraction = world.extracted(world.reward(value=0.5, call_id="call-1"), calls=calls)
    assert [(t.choice, t.reward) for t in extraction.transitions] == [(1, 0.5), (2, None)]


@row
async def unknown_call(world: World) -> None:
    lost = world.reward(value=5.0, call_id="no-such-call")
    nothing_counted(world, world.extracted(world.reward(), lost), lost)
    world.store.save_rollout(world.rollout())
    world.store.submit_call(world.call(1)).result()
    world.store.add_reward(lost)
    text = explain(world.store, "rollout-0", decode=str).render()
    assert "for the call no-such-call, from return_value; counts for nothing: that call gave no transition" in text


@row
async def call_of_another_rollout(world: World) -> None:
    lost = world.reward(value=5.0, call_id="call-9")
    nothing_counted(world, world.extracted(world.reward(), lost), lost)
    other = world.rollout(rollout_id="rollout-1")
    theirs = extract(other, [world.call(9, rollout_id="rollout-1")], [world.reward(rollout_id="rollout-1")])
    assert [(t.call_id, t.reward, t.rollout_reward) for t in theirs.transitions] == [("call-9", None, 1.0)]


@row
async def failed_call(world: World) -> None:
    for status, reason in ((CallStatus.ERROR, Reason.CALL_FAILED), (CallStatus.UNDELIVERED, Reason.UNDELIVERED)):
        lost = world.reward(value=5.0, call_id="call-2")
        calls = [world.call(1), world.call(2, status=status, reason="gone")]
        extraction = world.extracted(world.reward(), lost, calls=calls)
        nothing_counted(world, extraction, lost)
        assert [(entry.call_id, entry.reason, entry.reward) for entry in extraction.entries] == [
            ("call-2", reason, 5.0)
        ]


@row
async def superseded_call(world: World) -> None:
    lost = world.reward(value=5.0, call_id="call-1")
    calls = [world.call(1, request_key="k"), world.call(2, request_key="k", retry=1)]
    extraction = world.extracted(world.reward(), lost, calls=calls)
    nothing_counted(world, extraction, lost)
    assert [t.call_id for t in extraction.transitions] == ["call-2"]
    assert [entry.reason for entry in extraction.entries] == [Reason.SUPERSEDED]


@row
async def untrained_call(world: World) -> None:
    lost = world.reward(value=5.0, call_id="call-2")
    calls = [world.call(1, agent="writer"), world.call(2, agent="checker")]
    nothing_counted(
        world, world.extracted(world.reward(), lost, calls=calls, trained_agents={"policy": ["writer"]}), lost
    )
    calls = [world.call(1), world.call(2, policy=None, endpoint="https://elsewhere")]
    nothing_counted(world, world.extracted(world.reward(), lost, calls=calls), lost)


@row
async def nothing_that_counts(world: World) -> None:
    extraction = world.extracted(world.reward(value=5.0, call_id="no-such-call"))
    assert extraction.transitions == ()
    assert [(e.reason, e.detail) for e in extraction.entries] == [
        (Reason.NO_REWARD, "its only rewards are for calls that give no transition")
    ] * 2


@row
async def other_attempt(world: World) -> None:
    rewards = [world.reward(value=0.25), world.reward(value=5.0, attempt=1)]
    assert world.credits(*rewards) == [(None, 0.25)] * 2
    second = [world.call(number, attempt=1) for number in (1, 2)]
    assert world.credits(*rewards, calls=second, record=world.rollout(attempt=1)) == [(None, 5.0)] * 2


@row
async def failed_rollout(world: World) -> None:
    def agent(task: Any, handle: Rollout) -> None:
        way(0.5)(task, handle)
        raise ValueError("broken")

    result = await world.played(agent, Judges())
    assert (result.status, told(result)) == (RolloutStatus.FAILED, [(0.5, "scope")])
    extraction = extract(result.record, world.store.calls("r"), world.store.rewards("r"))
    assert (extraction.transitions, [e.reason for e in extraction.entries]) == ((), [Reason.ROLLOUT_FAILED])


@row
async def evaluation(world: World) -> None:
    extraction = world.extracted(world.reward(), record=world.rollout(phase="evaluate"))
    assert extraction.transitions == ()
    assert {entry.reason for entry in extraction.entries} == {Reason.EVALUATION}
    job = RolloutJob("rollout-0", 0, "group-0", Task("task-0", {}), "evaluate", 1)
    assert RolloutResult(job, world.rollout(phase="evaluate"), None, (world.reward(value=0.5),)).reward == 0.5


@row
async def missing(world: World) -> None:
    result = await world.played(way(), Judges())
    assert (result.status, told(result)) == (RolloutStatus.NO_REWARD, [])
    assert {entry.reason for entry in world.extracted().entries} == {Reason.NO_REWARD}


@row
async def return_value(world: World) -> None:
    result = await world.played(way(0.5, output=7), Judges())
    assert (result.status, told(result)) == (RolloutStatus.SUCCEEDED, [(0.5, "scope")])


@row
async def function_and_way(world: World) -> None:
    result = await world.played(way(0.5, 0.25), judged_by(lambda: 1.0))
    assert told(result) == [(0.5, "scope"), (0.25, "scope"), (1.0, "reward_function")]
    assert result.reward == 1.75


@row
async def function_gives_none(world: World) -> None:
    result = await world.played(way(0.5), judged_by(lambda: None))
    assert (result.status, told(result)) == (RolloutStatus.SUCCEEDED, [(0.5, "scope")])


@row
async def source_fails(world: World) -> None:
    def reward() -> float:
        raise LookupError("no such answer")

    result = await world.played(way(), judged_by(reward))
    assert (result.status, result.reward) == (RolloutStatus.NO_REWARD, None)
    assert "raised LookupError: no such answer" in result.error
    (entry,) = extract(result.record, world.store.calls("r"), []).entries
    assert (entry.reason, "no such answer" in entry.detail) == (Reason.NO_REWARD, True)


def refused(world: World, given: object, sent: Any) -> None:
    """Nowhere is it taken for a reward, and nothing is recorded."""
    rewards = RewardList("r")
    handle = Rollout(RolloutScope("r", 1, "t", "http://127.0.0.1:1/v1", "key", reward_sink=rewards))
    with pytest.raises(RewardError):
        handle.reward(given)
    assert rewards.close() == ()
    with pytest.raises(RewardError):
        reward_value(given)
    assert over_http(world, sent).status_code == 400
    assert world.store.counts()["rewards"] == 0


def over_http(world: World, value: Any, *, finish: bool = False, key: str | None = None) -> httpx.Response:
    """Opens the rollout "h" with one call, and rewards it."""
    evaluator = {"authorization": f"Bearer {world.gateway.evaluator_key}"}
    with httpx.Client(base_url=world.gateway.base_url, headers=evaluator, trust_env=False) as http:
        opened = http.post("/rollouts", json={"rollout_id": "h"}).raise_for_status().json()
        ask(RolloutAccess("h", 1, opened["base_url"], opened["api_key"]))
        path = "/rollouts/h/attempts/1"
        if finish:
            assert http.post(f"{path}/finish").json()["status"] == "no_reward"
        headers = {"authorization": f"Bearer {opened['api_key']}"} if key == "own" else {}
        return http.post(f"{path}/rewards", content=json.dumps({"value": value}), headers=headers)


@row
async def not_finite(world: World) -> None:
    refused(world, float("nan"), float("nan"))
    with pytest.raises(RewardError):
        reward_value(float("-inf"))


@row
async def not_a_number(world: World) -> None:
    refused(world, None, None)
    for given in ("1.0", [1.0]):
        with pytest.raises(RewardError):
            reward_value(given)


@row
async def huge(world: World) -> None:
    world.store.add_reward(world.reward(value=2e30))
    assert [reward.value for reward in world.store.rewards("rollout-0")] == [2e30]
    with pytest.raises(RewardError, match="too large to be compared"):
        check_size(2e30, "rollout-0")
    batch = TransitionBatch(world.extracted(world.reward(value=-2e30)).transitions)
    with pytest.raises(RewardError, match="too large to be compared"):
        LightningRL(Identical(), GRPO()).compute(batch)


@row
async def no_weight(world: World) -> None:
    result = await world.played(way(), judged_by(lambda: {"froM": 0.5}, weights=RewardWeights({"form": 1.0})))
    assert (result.status, [reward.name for reward in result.rewards]) == (RolloutStatus.NO_REWARD, ["froM"])
    assert "no weight for the reward 'froM'" in result.error
    extraction = world.extracted(world.reward(name="froM"), weights=RewardWeights({"form": 1.0}))
    assert {entry.detail for entry in extraction.entries} == {"rewards.weights has no weight for 'froM'"}


@row
async def weight_without_reward(world: World) -> None:
    job = RolloutJob("rollout-0", 0, "group-0", Task("task-0", {}), "train", 1)
    good = RolloutResult(job, world.rollout(), None, (world.reward(name="correct"), world.reward(name="form")))
    bad = replace(good, record=world.rollout(status=RolloutStatus.FAILED), rewards=(world.reward(name="never"),))
    weights = RewardWeights({"correct": 1.0, "form": 0.5, "never": 0.1})
    assert missing_rewards(weights, [good, bad]) == (
        "rewards.weights names 'never', but no rollout had such a reward; there were 'correct', 'form'"
    )
    assert missing_rewards(RewardWeights({"correct": 1.0, "form": 0.5}), [good]) == ""
    assert missing_rewards(weights, [bad]) == ""  # that all rollouts failed is said by itself


@row
async def over_http_while_it_runs(world: World) -> None:
    def agent(_: Any, handle: Rollout) -> float:
        ask(handle)
        key = {"authorization": f"Bearer {world.gateway.evaluator_key}"}
        url = f"{world.gateway.base_url}/rollouts/r/attempts/1/rewards"
        httpx.post(url, json={"value": 0.5}, headers=key, trust_env=False).raise_for_status()
        return 0.25

    result = await world.played(agent, Judges())
    assert sorted(told(result)) == [(0.25, "return_value"), (0.5, "http")]
    assert result.reward == 0.75


@row
async def late_in_process(world: World) -> None:
    handles: list[Rollout] = []

    def agent(_: Any, handle: Rollout) -> float:
        ask(handle)
        handles.append(handle)
        return 1.0

    result = await world.played(agent, Judges())
    with pytest.raises(RewardError, match="Rollout r has ended"):
        handles[0].reward(5.0)
    assert told(result) == [(1.0, "return_value")]
    assert len(world.store.rewards("r")) == 1


@row
async def late_over_http(world: World) -> None:
    response = await asyncio.to_thread(over_http, world, 0.5, finish=True)
    assert response.status_code == 201
    record = world.store.rollout("h")
    assert record is not None
    assert record.status is RolloutStatus.SUCCEEDED
    assert [reward.value for reward in world.store.rewards("h")] == [0.5]


@row
async def command(world: World) -> None:
    del world
    with pytest.raises(RewardError, match="a command cannot reward itself"):
        Rollout(RolloutScope("r", 1, "t", "http://127.0.0.1:1/v1", "key")).reward(1.0)


@row
async def wrong_key(world: World) -> None:
    assert over_http(world, 1.0, key="own").status_code == 403
    assert world.store.counts()["rewards"] == 0
