"""States and scores over HTTP, for agents in any language: two headers of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from spangrad.gateway import Gateway, RolloutAccess
from spangrad.store import Store
from spangrad.transitions import CallStatus

BODY = {"model": "model", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def access(make_gateway: Callable[..., Gateway]) -> RolloutAccess:
    return make_gateway(lambda _: "answer").open_rollout("r", 1)


@pytest.fixture
def http(access: RolloutAccess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {access.api_key}"}
    with httpx.Client(base_url=access.base_url, headers=headers, trust_env=False) as client:
        yield client


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, (None, None)),
        ({"x-spangrad-state": "kitchen"}, ("kitchen", None)),
        ({"x-spangrad-state": "k%C3%BCche%20%E2%98%95", "x-spangrad-score": "0.1"}, ("küche ☕", 0.1)),
        ({"X-Spangrad-State": "kitchen", "X-Spangrad-Score": "-3"}, ("kitchen", -3.0)),
    ],
)
def test_a_call_is_recorded_with_the_state_it_was_made_in(
    http: httpx.Client, gateway_store: Store, headers: dict[str, str], expected: tuple[str | None, float | None]
) -> None:
    assert http.post("/chat/completions", json=BODY, headers=headers).status_code == 200
    (call,) = gateway_store.calls("r")
    assert (call.state, call.score) == expected


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ({"x-spangrad-state": ""}, "The state is an empty text"),
        ({"x-spangrad-state": "x" * 1001}, "has 1001 characters, more than 1000"),
        ({"x-spangrad-state": "k%FCche"}, "holds half of a surrogate pair"),
        ({"x-spangrad-state": "s", "x-spangrad-score": "high"}, "The score of a state is str 'high'"),
        ({"x-spangrad-state": "s", "x-spangrad-score": "nan"}, "The score of a state is nan"),
        ({"x-spangrad-score": "0.5"}, "x-spangrad-score comes without x-spangrad-state"),
    ],
)
def test_a_state_that_cannot_be_recorded_is_refused_and_the_refusal_is_on_record(
    http: httpx.Client, gateway_store: Store, headers: dict[str, str], complaint: str
) -> None:
    response = http.post("/chat/completions", json=BODY, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "bad_state")
    assert complaint in error["message"]
    (call,) = gateway_store.calls("r")
    assert (call.status, call.state, call.score, call.request) == (CallStatus.ERROR, None, None, BODY)
    assert complaint in call.reason
