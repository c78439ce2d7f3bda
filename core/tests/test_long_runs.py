"""What a long run remembers stays as large as it is: objects are counted, for memory itself is the allocator's affair."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad._latest import Latest
from spangrad.capture import current_scope, tracer_provider
from spangrad.errors import GatewayError
from spangrad.gateway import Gateway
from spangrad.gateway import _access as access_module
from spangrad.gateway._access import AccessBook, Entry
from spangrad.gateway._exchange import Exchange
from spangrad.rollouts import RolloutJob, Runner, Task, load_agent
from spangrad.rollouts import _runner as runner_module
from spangrad.store import Store, open_store
from spangrad.store._writer import Write
from spangrad.transitions import Call

MakeGateway = Callable[..., Gateway]
EVALUATOR = {"authorization": "Bearer evaluator"}


@given(st.integers(1, 4), st.lists(st.integers(0, 9)))
def test_the_latest_keys_are_those_added_last(most: int, keys: list[int]) -> None:
    latest = Latest[int](most)
    kept: list[int] = []  # the same by hand: in the order of their first adding since they were last forgotten
    for key in keys:
        forgotten = kept[0] if key not in kept and len(kept) == most else None
        if forgotten is not None:
            kept.pop(0)
        if key not in kept:
            kept.append(key)
        assert latest.add(key) == forgotten
    assert len(latest) == len(kept)
    assert [key for key in range(10) if key in latest] == sorted(kept)


def test_a_closed_attempt_is_forgotten_after_many_others_and_an_open_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "MOST_CLOSED", 3)
    book = AccessBook()
    still = book.add("http://x", "open", 1, None)
    closed = [book.add("http://x", f"r{i}", 1, None) for i in range(5)]
    for entry in closed:
        book.retire(entry)
    assert book.entries() == [still, *closed[2:]]
    assert [book.by_key(entry.access.api_key) for entry in closed] == [None, None, *closed[2:]]
    assert [book.find(f"r{i}", 1) for i in range(5)] == [None, None, *closed[2:]]


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch, make_gateway: MakeGateway) -> tuple[Gateway, dict[str, Any]]:
    """A gateway and a rollout of it, finished so long ago that only the store knows."""
    monkeypatch.setattr(access_module, "MOST_CLOSED", 2)
    gateway = make_gateway(lambda _: "hello", evaluator_key="evaluator")
    rollout: dict[str, Any] = post(gateway, "/rollouts", {"task_id": "t", "rollout_id": "r"}).json()
    chat(rollout)
    assert post(gateway, "/rollouts/r/attempts/1/finish", {}).status_code == 200
    for number in range(2):
        gateway.open_rollout(f"other-{number}", 1)
        gateway.close_rollout(f"other-{number}", 1).result()
    return gateway, rollout


def post(gateway: Gateway, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(gateway.base_url + path, json=body, headers=EVALUATOR, trust_env=False)


def chat(rollout: dict[str, Any]) -> httpx.Response:
    headers = {"authorization": f"Bearer {rollout['api_key']}"}
    body = {"model": "model", "messages": [{"role": "user", "content": "hi"}]}
    return httpx.post(f"{rollout['base_url']}/chat/completions", json=body, headers=headers, trust_env=False)


def test_the_key_of_a_forgotten_attempt_opens_nothing(forgotten: tuple[Gateway, dict[str, Any]]) -> None:
    gateway, rollout = forgotten
    answer = chat(rollout)
    assert answer.status_code == 401
    assert "closed long ago" in answer.json()["error"]["message"]
    assert not gateway.remembers("r", 1)
    with pytest.raises(GatewayError, match="closed long ago"):
        gateway.close_rollout("r", 1)


def test_a_forgotten_attempt_can_still_be_rewarded_and_finished_again(
    forgotten: tuple[Gateway, dict[str, Any]], gateway_store: Store
) -> None:
    gateway, _ = forgotten
    assert post(gateway, "/rollouts/r/attempts/1/rewards", {"value": 0.5}).status_code == 201
    assert [reward.value for reward in gateway_store.rewards("r")] == [0.5]
    assert gateway.late.counts()["rewards"] == 1
    again = post(gateway, "/rollouts/r/attempts/1/finish", {"status": "failed"})
    # It had no reward when it ended, and got one since: that is what made it succeed, and what it stays.
    assert (again.status_code, again.json()["status"]) == (200, "succeeded")
    assert post(gateway, "/rollouts/r/attempts/2/finish", {}).status_code == 404


def test_ended_rollouts_leave_nothing_but_the_latest_behind(
    monkeypatch: pytest.MonkeyPatch, echo_gateway: Gateway, echo_store: Store
) -> None:
    """Sixty rollouts of two calls and a span each; what may be left is what four of them need."""
    monkeypatch.setattr(access_module, "MOST_CLOSED", 4)
    monkeypatch.setattr(runner_module, "_MOST_PAST", 4)

    def agent(task: dict[str, str]) -> float:
        scope = current_scope()
        assert scope is not None
        for _ in range(2):
            body = {"model": "echo", "messages": [{"role": "user", "content": task["text"]}]}
            headers = {"authorization": f"Bearer {scope.api_key}"}
            with tracer_provider().get_tracer("test").start_as_current_span("turn"):
                url = f"{scope.base_url}/chat/completions"
                httpx.post(url, json=body, headers=headers, trust_env=False).raise_for_status()
        return 1.0

    async def run() -> Runner:
        runner = Runner(load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=4, timeout=30)
        jobs = [RolloutJob(f"r{i}", 1, "g", Task("t", {"text": f"{i}"}), "train", 1) for i in range(60)]
        assert {result.reward for result in await runner.run(jobs)} == {1.0}
        return runner

    gateway_closed = Latest[Entry](4)
    echo_gateway._state.book._closed = gateway_closed  # the gateway was made before the limit was lowered
    before = alive(Entry), alive(Exchange), alive(Write), alive(Call)  # other tests may hold some
    runner = asyncio.run(run())
    assert (len(runner._running), len(runner._past), len(runner._ended)) == (0, 4, 4)
    assert len(gateway_closed) == 4
    assert (alive(Entry) - 4, alive(Exchange), alive(Write), alive(Call)) == before
    assert echo_store.counts()["calls"] == 120
    assert echo_store.counts()["spans"] >= 120


def test_a_store_holds_on_to_nothing_it_has_written(tmp_path: Path, make_call: Callable[..., Call]) -> None:
    store = open_store(tmp_path / "x.db")
    before = alive(Write), alive(Call)
    for number in range(20):
        store.submit_call(make_call(number)).result()
    assert (alive(Write), alive(Call)) == before
    store.close()


def alive(kind: type) -> int:
    """How many objects of a kind there are, but for what the garbage collector has yet to find."""
    gc.collect()
    return sum(
        issubclass(type(found), kind) for found in gc.get_objects()
    )  # isinstance asks some objects for their class
