"""Whose call it is: keys, URLs and headers, and what happens when they disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from spangrad.errors import GatewayError
from spangrad.gateway import Gateway
from spangrad.gateway._access import AccessBook
from spangrad.gateway._engine import EngineError
from spangrad.gateway._identity import Doorkeeper
from spangrad.store import Store
from spangrad.testing import ScriptedPrompt
from spangrad.transitions import CallStatus

BODY = {"model": "model", "messages": [{"role": "user", "content": "x"}]}


def echo(prompt: ScriptedPrompt) -> str:
    return f"you said {prompt.last}"


@pytest.fixture
def gateway(make_gateway: Callable[..., Gateway]) -> Gateway:
    return make_gateway(echo)


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.base_url, trust_env=False) as client:
        yield client


def bearer(key: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in headers.items()}}


def test_the_key_alone_names_the_rollout(gateway: Gateway, http: httpx.Client, gateway_store: Store) -> None:
    gateway.open_rollout("other", 1)
    access = gateway.open_rollout("r", 2)
    response = http.post("/v1/chat/completions", json=BODY, headers=bearer(access.api_key))
    assert response.status_code == 200
    (call,) = gateway_store.calls("r")
    assert call.attempt == 2


def test_a_rollout_id_with_slashes_and_spaces_has_a_url_of_its_own(
    gateway: Gateway, http: httpx.Client, gateway_store: Store
) -> None:
    access = gateway.open_rollout("gsm8k/17 é a?b%2F", 1)
    response = http.post(f"{access.base_url}/chat/completions", json=BODY, headers=bearer(access.api_key))
    assert response.status_code == 200
    assert len(gateway_store.calls("gsm8k/17 é a?b%2F")) == 1


def test_the_url_alone_names_the_rollout_on_this_machine(
    gateway: Gateway, http: httpx.Client, gateway_store: Store
) -> None:
    access = gateway.open_rollout("r", 1)
    assert http.post(f"{access.base_url}/chat/completions", json=BODY).status_code == 200
    assert http.post(f"{access.base_url}/chat/completions", json=BODY, headers=bearer("sk-none")).status_code == 200
    assert len(gateway_store.calls("r")) == 2


@pytest.mark.parametrize(("rollout_id", "header"), [("r", "r"), ("a%2Fb", "a%2Fb"), ("é/1", "%C3%A9%2F1")])
def test_headers_name_the_rollout_too(
    gateway: Gateway, http: httpx.Client, gateway_store: Store, rollout_id: str, header: str
) -> None:
    key = gateway.open_rollout(rollout_id, 1).api_key
    headers = {"x-spangrad-rollout": header, "x-spangrad-attempt": "1", "x-spangrad-agent": "s%C3%B6lver"}
    for authorization in ({}, bearer(key)):
        assert http.post("/v1/chat/completions", json=BODY, headers=headers | authorization).status_code == 200
    assert [call.agent for call in gateway_store.calls(rollout_id)] == ["sölver", "sölver"]


def test_a_call_that_names_no_rollout_is_an_orphan(gateway: Gateway, http: httpx.Client, gateway_store: Store) -> None:
    gateway.open_rollout("r", 1)
    assert http.post("/v1/chat/completions", json=BODY).status_code == 200
    assert gateway_store.calls("r") == []
    (orphan,) = gateway_store.calls(None)
    assert (orphan.rollout_id, orphan.status) == (None, CallStatus.OK)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/rollouts/b/attempts/1/v1", {}),
        ("/rollouts/a/attempts/2/v1", {}),
        ("/v1", {"x-spangrad-rollout": "b", "x-spangrad-attempt": "1"}),
        ("/rollouts/a/attempts/1/v1", {"x-spangrad-rollout": "b", "x-spangrad-attempt": "1"}),
    ],
)
def test_a_key_used_for_another_rollout_is_refused(
    gateway: Gateway, http: httpx.Client, gateway_store: Store, path: str, headers: dict[str, str]
) -> None:
    key = gateway.open_rollout("a", 1).api_key
    gateway.open_rollout("a", 2)
    gateway.open_rollout("b", 1)
    response = http.post(f"{path}/chat/completions", json=BODY, headers=bearer(key) | headers)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "wrong_rollout"
    assert gateway_store.counts()["calls"] == 0


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/v1", bearer("sk-spangrad-unknown"), (401, "invalid_api_key")),
        ("/rollouts/nobody/attempts/1/v1", {}, (404, "rollout_not_found")),
        ("/v1", {"x-spangrad-rollout": "r"}, (400, None)),
        ("/v1", {"x-spangrad-rollout": "r", "x-spangrad-attempt": "first"}, (400, None)),
        ("/rollouts/r/attempts/1/v1", {"x-spangrad-rollout": "s", "x-spangrad-attempt": "1"}, (403, "wrong_rollout")),
    ],
)
def test_a_name_or_key_that_is_not_known_is_refused(
    gateway: Gateway, http: httpx.Client, path: str, headers: dict[str, str], expected: tuple[int, str | None]
) -> None:
    gateway.open_rollout("r", 1)
    gateway.open_rollout("s", 1)
    response = http.post(f"{path}/chat/completions", json=BODY, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == expected


def test_a_gateway_without_anonymous_calls_wants_a_key(make_gateway: Callable[..., Gateway]) -> None:
    gateway = make_gateway(echo, allow_anonymous=False)
    access = gateway.open_rollout("r", 1)
    with httpx.Client(trust_env=False) as http:
        for url in (f"{gateway.base_url}/v1", access.base_url):
            refused = http.post(f"{url}/chat/completions", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            served = http.post(f"{url}/chat/completions", json=BODY, headers=bearer(access.api_key))
            assert served.status_code == 200


@pytest.mark.parametrize(("host", "admitted"), [("127.0.0.1", True), ("::1", True), ("10.0.0.8", False), (None, False)])
def test_only_clients_on_this_machine_may_be_anonymous(host: str | None, admitted: bool) -> None:
    door = Doorkeeper(AccessBook(), "evaluator", allow_anonymous=True)
    scope: dict[str, Any] = {"path_params": {}, "client": (host, 5000) if host else None}
    if admitted:
        assert door.identify(scope, {}).entry is None
    else:
        with pytest.raises(EngineError, match="wants a key"):
            door.identify(scope, {})
    assert door.identify(scope, bearer("evaluator")).evaluator


def test_calls_after_closing_are_refused_and_recorded_as_late(
    gateway: Gateway, http: httpx.Client, gateway_store: Store
) -> None:
    access = gateway.open_rollout("r", 1)
    http.post("/v1/chat/completions", json=BODY, headers=bearer(access.api_key))
    tally = gateway.close_rollout("r", 1).result(timeout=10)
    assert (tally.calls, tally.answered, tally.sampled, tally.broken) == (1, 1, 1, "")
    late = http.post("/v1/chat/completions", json=BODY, headers=bearer(access.api_key))
    assert (late.status_code, late.json()["error"]["code"]) == (409, "rollout_closed")
    assert late.headers["x-should-retry"] == "false"
    on_time, too_late = gateway_store.calls("r")
    assert (on_time.status, too_late.status) == (CallStatus.OK, CallStatus.LATE)
    assert "closed" in too_late.reason
    assert gateway.close_rollout("r", 1).result(timeout=10).answered == 1


def test_an_attempt_is_opened_once_and_the_next_one_has_its_own_key(gateway: Gateway) -> None:
    first, second = gateway.open_rollout("r", 1), gateway.open_rollout("r", 2)
    assert first.api_key != second.api_key
    assert len(first.api_key) > 40
    with pytest.raises(GatewayError, match="opened before"):
        gateway.open_rollout("r", 1)
    with pytest.raises(GatewayError, match="never opened"):
        gateway.close_rollout("r", 3)
    with pytest.raises(GatewayError, match="not empty"):
        gateway.open_rollout("", 1)


def test_a_call_id_used_twice_is_refused(gateway: Gateway, http: httpx.Client, gateway_store: Store) -> None:
    key = gateway.open_rollout("r", 1).api_key
    headers = bearer(key, x_spangrad_call="call-1")
    statuses = [http.post("/v1/chat/completions", json=BODY, headers=headers).status_code for _ in range(2)]
    assert statuses == [200, 400]
    first, second = gateway_store.calls("r")
    assert first.call_id == "call-1"
    assert second.call_id != "call-1"
    assert "used before" in second.reason


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"", "not JSON"), (b"{", "not JSON"), (b"[1]", "not a JSON object"), (b'{"n": NaN}', "not JSON")],
)
def test_a_body_that_is_no_json_object_is_refused_and_recorded(
    gateway: Gateway, http: httpx.Client, gateway_store: Store, body: bytes, words: str
) -> None:
    key = gateway.open_rollout("r", 1).api_key
    response = http.post("/v1/chat/completions", content=body, headers=bearer(key))
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    (call,) = gateway_store.calls("r")
    assert (call.status, call.request) == (CallStatus.ERROR, {})


@pytest.mark.parametrize("prefix", ["", "/rollouts/r/attempts/1"])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/embeddings"), ("GET", "/v1/responses/resp_1"), ("POST", "/v1/responses/compact")]
)
def test_a_path_that_is_not_served_says_where_to_go(http: httpx.Client, prefix: str, method: str, path: str) -> None:
    response = http.request(method, prefix + path)
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert f"There is no {method} {prefix}{path} here" in message
    assert "POST /v1/chat/completions and POST /v1/responses" in message


def test_a_method_that_a_path_does_not_have_is_not_allowed(http: httpx.Client) -> None:
    assert http.get("/v1/chat/completions").status_code == 405
    assert http.get("/v1/responses").status_code == 405
