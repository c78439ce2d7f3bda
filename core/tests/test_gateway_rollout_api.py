"""Rollouts over HTTP: an agent in another process opens, is rewarded, sends spans and finishes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from spangrad.gateway import Gateway
from spangrad.store import RolloutStatus, Store

EVALUATOR = {"authorization": "Bearer evaluator"}


@pytest.fixture
def gateway(make_gateway: Callable[..., Gateway]) -> Gateway:
    return make_gateway(lambda prompt: f"seed {prompt.params.seed is not None}", evaluator_key="evaluator")


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.base_url, trust_env=False) as client:
        yield client


def opened(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post("/rollouts", json=fields, headers=EVALUATOR)
    assert response.status_code == 201, response.text
    body: dict[str, Any] = response.json()
    return body


def key(rollout: dict[str, Any]) -> dict[str, str]:
    return {"authorization": f"Bearer {rollout['api_key']}"}


def chat(http: httpx.Client, rollout: dict[str, Any]) -> httpx.Response:
    body = {"model": "model", "messages": [{"role": "user", "content": "x"}]}
    return http.post(f"{rollout['base_url']}/chat/completions", json=body, headers=key(rollout))


def test_a_rollout_from_opening_to_its_end(http: httpx.Client, gateway_store: Store) -> None:
    rollout = opened(http, task_id="t/1", group_id="g")
    assert rollout["rollout_id"].startswith("t-1-")
    assert rollout["attempt"] == 1
    running = gateway_store.rollout(rollout["rollout_id"])
    assert running is not None
    assert (running.task_id, running.group_id, running.phase, running.status) == (
        "t/1",
        "g",
        "collect",
        RolloutStatus.RUNNING,
    )
    assert chat(http, rollout).status_code == 200
    path = rollout["base_url"].removesuffix("/v1")
    given = http.post(f"{path}/rewards", json={"value": 0.5, "name": "exact"}, headers=EVALUATOR)
    assert given.status_code == 201
    ended = http.post(f"{path}/finish", json={"output": {"answer": 4}}, headers=EVALUATOR).json()
    assert (ended["status"], ended["calls"], ended["open"]) == ("succeeded", 1, False)
    assert ended["rewards"] == [{"name": "exact", "value": 0.5, "call_id": None, "source": "http"}]
    record = gateway_store.rollout(rollout["rollout_id"])
    assert record is not None
    assert (record.status, record.output) == (RolloutStatus.SUCCEEDED, '{"answer": 4}')
    assert record.finished_at is not None
    assert chat(http, rollout).status_code == 409


def test_the_caller_may_choose_the_ids_and_the_sampling(http: httpx.Client, gateway_store: Store) -> None:
    rollout = opened(http, rollout_id="mine", attempt=3, sampling={"temperature": 0, "seed": 4})
    assert (rollout["rollout_id"], rollout["attempt"]) == ("mine", 3)
    assert chat(http, rollout).json()["choices"][0]["message"]["content"] == "seed True"
    assert gateway_store.calls("mine")[0].temperature == 0
    again = http.post("/rollouts", json={"rollout_id": "mine", "attempt": 3}, headers=EVALUATOR)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "rollout_exists")


@pytest.mark.parametrize(
    ("calls", "rewarded", "sent", "status"),
    [
        (1, True, "succeeded", "succeeded"),
        (1, False, "succeeded", "no_reward"),
        (0, True, "succeeded", "no_call"),
        (1, True, "failed", "failed"),
        (0, False, "timed_out", "timed_out"),
        (1, True, "infrastructure", "infrastructure"),
    ],
)
def test_success_needs_a_call_and_a_reward(
    http: httpx.Client, calls: int, rewarded: bool, sent: str, status: str
) -> None:
    rollout = opened(http)
    path = rollout["base_url"].removesuffix("/v1")
    for _ in range(calls):
        chat(http, rollout)
    if rewarded:
        http.post(f"{path}/rewards", json={"value": 1}, headers=EVALUATOR)
    assert http.post(f"{path}/finish", json={"status": sent}, headers=EVALUATOR).json()["status"] == status
    assert http.post(f"{path}/finish", json={"status": "lost"}, headers=EVALUATOR).json()["status"] == status
    assert http.get(f"/rollouts/{rollout['rollout_id']}").json()["status"] == status


def test_a_reward_after_the_end_still_counts(http: httpx.Client) -> None:
    rollout = opened(http)
    path = rollout["base_url"].removesuffix("/v1")
    chat(http, rollout)
    assert http.post(f"{path}/finish", headers=EVALUATOR).json()["status"] == "no_reward"
    http.post(f"{path}/rewards", json={"value": True, "call_id": "some-call"}, headers=EVALUATOR)
    shown = http.get(f"/rollouts/{rollout['rollout_id']}", headers=key(rollout)).json()
    assert shown["status"] == "succeeded"
    assert shown["rewards"] == [{"name": "reward", "value": 1.0, "call_id": "some-call", "source": "http"}]


@pytest.mark.parametrize("status", ["failed", "timed_out", "infrastructure", "lost"])
def test_a_reward_after_an_end_that_was_not_the_rollouts_own_is_refused_and_what_came_before_stays(
    http: httpx.Client, gateway: Gateway, gateway_store: Store, status: str
) -> None:
    rollout = opened(http)
    path = rollout["base_url"].removesuffix("/v1")
    chat(http, rollout)
    assert http.post(f"{path}/rewards", json={"value": 0.25}, headers=EVALUATOR).status_code == 201
    http.post(f"{path}/finish", json={"status": status}, headers=EVALUATOR)

    late = http.post(f"{path}/rewards", json={"value": 5}, headers=EVALUATOR)

    assert (late.status_code, late.json()["error"]["code"]) == (409, "rollout_closed")
    assert [reward.value for reward in gateway_store.rewards(rollout["rollout_id"])] == [0.25]
    assert gateway.late.counts() == {"calls": 0, "spans": 0, "rewards": 1}


def test_to_finish_a_rollout_again_as_failed_refuses_no_reward(http: httpx.Client) -> None:
    rollout = opened(http)
    path = rollout["base_url"].removesuffix("/v1")
    chat(http, rollout)
    http.post(f"{path}/finish", headers=EVALUATOR)
    http.post(f"{path}/finish", json={"status": "lost"}, headers=EVALUATOR)

    assert http.post(f"{path}/rewards", json={"value": 1}, headers=EVALUATOR).status_code == 201
    assert http.get(f"/rollouts/{rollout['rollout_id']}").json()["status"] == "succeeded"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"value": NaN}', "not JSON"),
        ('{"value": Infinity}', "not JSON"),
        ('{"value": 1e999}', "The reward is inf"),
        ('{"value": null}', "is None"),
        ('{"value": "1"}', "not a number"),
        ('{"value": [1]}', "not a number"),
        ("{}", "value"),
        ('{"value": 1, "nmae": "x"}', "nmae"),
        ("", "value"),
    ],
)
def test_a_reward_that_is_no_finite_number_is_refused(
    http: httpx.Client, gateway_store: Store, content: str, words: str
) -> None:
    rollout = opened(http)
    path = rollout["base_url"].removesuffix("/v1")
    response = http.post(f"{path}/rewards", content=content, headers=EVALUATOR)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    assert gateway_store.rewards(rollout["rollout_id"]) == []


def test_a_rollouts_own_key_cannot_open_reward_or_finish(http: httpx.Client, gateway_store: Store) -> None:
    rollout = opened(http)
    path = rollout["base_url"].removesuffix("/v1")
    for url, body in (("/rollouts", {}), (f"{path}/rewards", {"value": 1}), (f"{path}/finish", {})):
        for headers, status in ((key(rollout), 403), ({}, 401), ({"authorization": "Bearer wrong"}, 401)):
            response = http.post(url, json=body, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (status, "evaluator_key_needed")
    assert gateway_store.rewards(rollout["rollout_id"]) == []
    record = gateway_store.rollout(rollout["rollout_id"])
    assert record is not None
    assert record.status is RolloutStatus.RUNNING


def test_a_key_shows_its_own_rollout_only(http: httpx.Client) -> None:
    own, other = opened(http), opened(http)
    assert http.get(f"/rollouts/{own['rollout_id']}", headers=key(own)).json()["open"] is True
    assert http.get(f"/rollouts/{other['rollout_id']}", headers=key(own)).status_code == 403
    assert http.get(f"/rollouts/{other['rollout_id']}", headers=EVALUATOR).status_code == 200
    assert http.get("/rollouts/nobody", headers=EVALUATOR).status_code == 404
    assert http.post("/rollouts/nobody/attempts/1/finish", headers=EVALUATOR).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"task": "x"},
        {"task_id": ""},
        {"task_id": "x" * 201},
        {"rollout_id": "x" * 201},
        {"group_id": "\ud800"},
        {"attempt": -1},
        {"sampling": {"temp": 1}},
        {"sampling": {"top_p": 0}},
    ],
)
def test_a_rollout_with_wrong_fields_is_refused(http: httpx.Client, gateway_store: Store, body: dict[str, Any]) -> None:
    headers = {**EVALUATOR, "content-type": "application/json"}
    response = http.post("/rollouts", content=json.dumps(body), headers=headers)
    assert response.status_code == 400
    assert gateway_store.rollouts() == []


def trace(rollout_id: str | None = None, span_id: str = "b7ad6b7169203331") -> dict[str, Any]:
    attributes = [{"key": "spangrad.rollout.id", "value": {"stringValue": rollout_id}}] if rollout_id else []
    span = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": span_id,
        "name": "agent",
        "startTimeUnixNano": "1000",
        "endTimeUnixNano": "2000",
        "attributes": attributes,
    }
    return {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "test"}, "spans": [span]}]}]}


def test_spans_belong_to_the_rollout_whose_key_sent_them(http: httpx.Client, gateway_store: Store) -> None:
    rollout = opened(http)
    assert http.post("/v1/traces", json=trace(), headers=key(rollout)).json() == {"partialSuccess": {}}
    url = rollout["base_url"] + "/traces"
    assert http.post(url, json=trace(rollout["rollout_id"], "b7ad6b7169203332")).status_code == 200
    spans = gateway_store.spans(rollout["rollout_id"])
    assert [(span.name, span.attempt) for span in spans] == [("agent", 1), ("agent", 1)]


def test_spans_of_another_rollout_are_refused(http: httpx.Client, gateway_store: Store) -> None:
    own, other = opened(http), opened(http)
    response = http.post("/v1/traces", json=trace(other["rollout_id"]), headers=key(own))
    assert (response.status_code, response.json()["error"]["code"]) == (403, "wrong_rollout")
    assert gateway_store.spans(other["rollout_id"]) == []


def test_traces_that_are_no_otlp_json_are_refused(http: httpx.Client) -> None:
    rollout = opened(http)
    assert http.post("/v1/traces", json={"resourceSpans": 1}, headers=key(rollout)).status_code == 400
    protobuf = http.post(
        "/v1/traces", content=b"\x0a", headers=key(rollout) | {"content-type": "application/x-protobuf"}
    )
    assert protobuf.status_code == 415
    assert "http/json" in protobuf.json()["error"]["message"]
