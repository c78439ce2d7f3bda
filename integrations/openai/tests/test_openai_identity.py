"""Which requests become a rollout's own, and what their URL and headers then say."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from spangrad.capture import AgentState, RolloutScope
from spangrad_openai._identity import own_headers, own_url

OWN = "http://127.0.0.1:8000/rollouts/train-1/attempts/2/v1"


def scope(
    *,
    gateway_url: str = "http://127.0.0.1:8000",
    base_url: str = OWN,
    agent: str | None = None,
    rollout_id: str = "train-1",
) -> RolloutScope:
    return RolloutScope(
        rollout_id=rollout_id,
        attempt=2,
        task_id="task",
        base_url=base_url,
        api_key="sk-spangrad-secret",
        gateway_url=gateway_url,
        agent=agent,
    )


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1/chat/completions",
        "http://localhost:8000/v1/chat/completions",
        "http://127.0.0.1:8000/rollouts/another/attempts/1/v1/chat/completions",
        "http://127.0.0.1:8000/rollouts/an%20other/attempts/1/v1/chat/completions",
        "http://127.0.0.1:8000/rollouts/train-1/attempts/2/v1/chat/completions",
    ],
)
def test_every_url_of_the_gateway_becomes_the_rollouts_own(url: str) -> None:
    assert own_url(url, scope()) == OWN + "/chat/completions"


def test_the_query_is_kept() -> None:
    assert own_url("http://127.0.0.1:8000/v1/models?limit=2", scope()) == OWN + "/models?limit=2"


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1/chat/completions",
        "http://127.0.0.1:8001/v1/chat/completions",
        "https://127.0.0.1:8000/v1/chat/completions",
        "http://127.0.0.1.example.org:8000/v1/chat/completions",
        "http://user@example.org:8000/v1/chat/completions",
        "http://127.0.0.1:8000/v1beta/chat/completions",
        "http://127.0.0.1:8000/health",
        "http://127.0.0.1:8000/other/v1/chat/completions",
        "http://127.0.0.1:8000/rollouts/a/b/attempts/1/v1/chat/completions",
    ],
)
def test_every_other_url_is_nobodys(url: str) -> None:
    assert own_url(url, scope()) is None


def test_a_gateway_below_a_path_owns_only_what_is_below_that_path() -> None:
    below = scope(
        gateway_url="https://host.example/spangrad/",
        base_url="https://host.example/spangrad/rollouts/train-1/attempts/2/v1",
    )

    assert own_url("https://host.example/spangrad/v1/models", below) == below.base_url + "/models"
    assert own_url("https://host.example:443/spangrad/v1/models", below) == below.base_url + "/models"
    assert own_url("https://host.example/v1/models", below) is None
    assert own_url("https://host.example/spangrad2/v1/models", below) is None


def test_without_a_gateway_url_the_base_url_tells_where_the_gateway_is() -> None:
    assert own_url("http://127.0.0.1:8000/v1/models", scope(gateway_url="")) == OWN + "/models"
    assert own_url("http://127.0.0.1:9000/v1/models", scope(gateway_url="")) is None


def test_identity_and_key_replace_what_the_request_had_whatever_its_spelling() -> None:
    headers = {"authorization": "Bearer mine", "X-Spangrad-Rollout": "another", "x-spangrad-call": "c0", "X-Trace": "t"}

    assert own_headers(headers, scope(), call_id="c1", request_key="r1") == {
        "X-Trace": "t",
        "x-spangrad-rollout": "train-1",
        "x-spangrad-attempt": "2",
        "x-spangrad-call": "c1",
        "x-spangrad-request": "r1",
        "Authorization": "Bearer sk-spangrad-secret",
    }


def test_the_scopes_agent_is_named_unless_the_request_names_one() -> None:
    named = own_headers({}, scope(agent="solver"), call_id="c", request_key="r")
    renamed = own_headers({"X-Spangrad-Agent": "critic"}, scope(agent="solver"), call_id="c", request_key="r")

    assert named["x-spangrad-agent"] == "solver"
    assert renamed["X-Spangrad-Agent"] == "critic"
    assert "x-spangrad-agent" not in renamed


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("writer", "writer"),
        ("löser", "l%C3%B6ser"),
        ("two\nlines", "two%0Alines"),
        (" padded", "%20padded"),
        ("100%", "100%25"),
        ("a/b:c", "a/b:c"),
    ],
)
def test_the_agents_name_is_percent_encoded_where_a_header_cannot_carry_it(name: str, sent: str) -> None:
    headers = own_headers({}, scope(agent=name), call_id="c", request_key="r")

    assert headers["x-spangrad-agent"] == sent
    assert unquote(sent) == name


@pytest.mark.parametrize("rollout_id", ["löser", "two\nlines", " padded"])
def test_a_rollouts_name_that_no_header_can_carry_is_left_to_the_url(rollout_id: str) -> None:
    headers = own_headers({}, scope(rollout_id=rollout_id), call_id="c", request_key="r")

    assert "x-spangrad-rollout" not in headers
    assert headers["Authorization"].startswith("Bearer ")


def test_the_agents_state_is_told_with_its_score() -> None:
    state = AgentState(("train-1", 2), "küche", 0.25)
    headers = own_headers({}, scope(), call_id="c", request_key="r", state=state)

    assert (headers["x-spangrad-state"], headers["x-spangrad-score"]) == ("k%C3%BCche", "0.25")
    assert not {"x-spangrad-state", "x-spangrad-score"} & own_headers({}, scope(), call_id="c", request_key="r").keys()


@pytest.mark.parametrize("name", ["X-Spangrad-State", "x-spangrad-score"])
def test_a_state_that_the_request_names_itself_is_left_alone_as_a_whole(name: str) -> None:
    state = AgentState(("train-1", 2), "kitchen", 0.25)
    headers = own_headers({name: "7"}, scope(), call_id="c", request_key="r", state=state)

    assert {
        key: value for key, value in headers.items() if key.lower() in {"x-spangrad-state", "x-spangrad-score"}
    } == {name: "7"}


def test_the_given_headers_are_not_changed() -> None:
    headers = {"authorization": "Bearer mine"}

    own_headers(headers, scope(), call_id="c", request_key="r")

    assert headers == {"authorization": "Bearer mine"}
