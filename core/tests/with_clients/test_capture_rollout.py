"""`spangrad.rollout()`: three lines around the user's code, inside a runner or on its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import openai
import pytest

import spangrad
from spangrad.capture import current_scope, tracer_provider
from spangrad.errors import GatewayError, RewardError, TaskError
from spangrad.gateway import Gateway
from spangrad.rollouts import RolloutJob, Runner, Task, load_agent
from spangrad.store import RolloutStatus, Store


@pytest.fixture(autouse=True)
def no_gateway_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SPANGRAD_"):
            monkeypatch.delenv(name)


@pytest.fixture
def served(echo_gateway: Gateway, echo_store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store behind the gateway that SPANGRAD_URL and SPANGRAD_KEY name."""
    monkeypatch.setenv("SPANGRAD_URL", echo_gateway.base_url)
    monkeypatch.setenv("SPANGRAD_KEY", echo_gateway.evaluator_key)
    return echo_store


def ask(rollout: spangrad.Rollout, text: str = "x") -> str | None:
    with openai.OpenAI(base_url=rollout.base_url, api_key=rollout.api_key) as client:
        messages: Any = [{"role": "user", "content": text}]
        return client.chat.completions.create(model="echo", messages=messages).choices[0].message.content


def test_a_rollout_on_its_own_is_recorded_with_calls_rewards_and_spans(served: Store) -> None:
    with spangrad.rollout(task_id="gsm8k/17") as r:
        with tracer_provider().get_tracer("test").start_as_current_span("think"):
            answer = ask(r, "four")
        r.reward(answer == "four")
        r.reward(0.25, "format")
    record = served.rollout(r.id)
    assert record is not None
    assert (record.status, record.task_id, record.group_id) == (RolloutStatus.SUCCEEDED, "gsm8k/17", "gsm8k/17")
    assert record.finished_at is not None
    assert [call.request["messages"] for call in served.calls(r.id)] == [[{"role": "user", "content": "four"}]]
    assert {(reward.name, reward.value) for reward in served.rewards(r.id)} == {("reward", 1.0), ("format", 0.25)}
    assert [span.name for span in served.spans(r.id)] == ["think", "openai.chat"]


async def test_concurrent_async_rollouts_keep_their_calls_and_rewards_apart(served: Store) -> None:
    async def one(number: int) -> str:
        async with spangrad.rollout(task_id="t") as r:
            assert (scope := current_scope()) is not None
            assert scope.rollout_id == r.id
            await asyncio.to_thread(ask, r, f"text {number}")
            r.reward(number)
        return r.id

    ids = await asyncio.gather(*map(one, range(6)))
    assert current_scope() is None
    for number, rollout_id in enumerate(ids):
        assert [call.request["messages"][0]["content"] for call in served.calls(rollout_id)] == [f"text {number}"]
        assert [reward.value for reward in served.rewards(rollout_id)] == [float(number)]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyError("mine"), RolloutStatus.FAILED),
        (spangrad.InfrastructureError("the database is down"), RolloutStatus.INFRASTRUCTURE),
        (KeyboardInterrupt(), RolloutStatus.LOST),
    ],
)
def test_an_exception_passes_through_unchanged_and_is_recorded(
    served: Store, error: BaseException, status: RolloutStatus
) -> None:
    r: spangrad.Rollout | None = None

    def fail() -> None:
        nonlocal r
        with spangrad.rollout() as r:
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    assert r is not None
    record = served.rollout(r.id)
    assert record is not None
    assert record.status is status
    assert type(error).__name__ in record.error
    assert record.task_id == r.task_id == "ad-hoc"


async def test_a_cancelled_rollout_is_recorded_as_lost(served: Store) -> None:
    entered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def one() -> None:
        async with spangrad.rollout() as r:
            entered.set_result(r.id)
            await asyncio.sleep(60)

    task = asyncio.create_task(one())
    rollout_id = await entered
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = served.rollout(rollout_id)
    assert record is not None
    assert record.status is RolloutStatus.LOST


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        ({"task_id": "\ud800"}, r"The task_id '\\ud800' holds half of a surrogate pair"),
        ({"task_id": "x" * 201}, "The task_id 'xxx.* has 201 characters, more than 200"),
        ({"task_id": "t", "group_id": ""}, "The group_id '' is empty"),
    ],
)
def test_an_id_that_cannot_be_one_is_refused_before_anything_is_asked(
    served: Store, names: dict[str, str], wrong: str
) -> None:
    with pytest.raises(TaskError, match=wrong), spangrad.rollout(**names):
        pass
    assert served.rollouts() == []


def test_a_rollout_that_gave_no_reward_or_made_no_call_is_no_success(served: Store) -> None:
    with spangrad.rollout() as unrewarded:
        ask(unrewarded)
    with spangrad.rollout() as silent:
        silent.reward(1)
    statuses = [record.status for r in (unrewarded, silent) if (record := served.rollout(r.id)) is not None]
    assert statuses == [RolloutStatus.NO_REWARD, RolloutStatus.NO_CALL]


def test_an_inner_rollout_joins_the_outer_one(served: Store) -> None:
    with spangrad.rollout(task_id="outer") as outer, spangrad.rollout(task_id="inner") as inner:
        ask(inner)
        inner.reward(1)
    assert (inner.id, inner.task_id) == (outer.id, "outer")
    assert [record.rollout_id for record in served.rollouts()] == [outer.id]


def test_a_reward_after_the_block_is_refused(served: Store) -> None:
    del served
    with spangrad.rollout() as r:
        pass
    with pytest.raises(RewardError, match="has ended"):
        r.reward(1)


@pytest.mark.parametrize("reward", [None, "1", float("nan")])
def test_a_bad_reward_is_refused_where_it_is_given(served: Store, reward: object) -> None:
    del served
    with spangrad.rollout() as r, pytest.raises(RewardError, match="of rollout"):
        r.reward(reward)


async def test_inside_the_runner_a_block_joins_the_runners_rollout(echo_gateway: Gateway, echo_store: Store) -> None:
    async def agent(task: Any) -> None:
        async with spangrad.rollout(task_id="ignored here") as r:
            await asyncio.to_thread(ask, r, task["text"])
            r.reward(0.5)

    runner = Runner(load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=2, timeout=30)
    jobs = [RolloutJob(f"r{i}", 1, "g", Task(f"t{i}", {"text": f"{i}"}), "train", 1) for i in range(2)]
    results = await runner.run(jobs)
    assert [(result.status, result.reward) for result in results] == [(RolloutStatus.SUCCEEDED, 0.5)] * 2
    assert [record.rollout_id for record in echo_store.rollouts()] == ["r0", "r1"]


async def test_inside_a_command_of_the_runner_a_block_joins_but_cannot_reward(
    echo_gateway: Gateway, echo_store: Store, tmp_path: Path
) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        "import json, spangrad\n"
        "from spangrad.capture import tracer_provider\n"
        "with spangrad.rollout() as r:\n"
        "    with tracer_provider().get_tracer('test').start_as_current_span('in the command'):\n"
        "        pass\n"
        "    try:\n"
        "        r.reward(1)\n"
        "    except spangrad.SpangradError as error:\n"
        "        refused = str(error)\n"
        "print(json.dumps([r.id, r.attempt, r.task_id, refused]))\n"
    )
    runner = Runner(
        load_agent([sys.executable, str(program)], tmp_path), None, echo_gateway, echo_store, concurrency=1, timeout=60
    )
    (result,) = await runner.run([RolloutJob("r", 4, "g", Task("t", {}), "train", 1)])
    assert result.output[:3] == ["r", 4, "t"], result.error
    assert "cannot reward itself" in result.output[3]
    assert [span.name for span in echo_store.spans("r")] == ["in the command"]


def test_without_a_gateway_the_error_says_how_to_get_one() -> None:
    with pytest.raises(GatewayError, match=r"spangrad gateway.*SPANGRAD_URL"), spangrad.rollout():
        pass


def test_a_gateway_that_is_not_there_is_an_error_before_the_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("SPANGRAD_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
        ran = []
        with pytest.raises(GatewayError, match="No gateway answers"), spangrad.rollout():
            ran.append(True)
        assert ran == []


@pytest.mark.parametrize("url", ["127.0.0.1:1", "http://[::1", "not a url"])
def test_a_url_that_is_none_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("SPANGRAD_URL", url)
    with pytest.raises(GatewayError, match="SPANGRAD_URL"), spangrad.rollout():
        pass


def test_a_server_that_is_no_gateway_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("SPANGRAD_URL", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(GatewayError, match="no spangrad gateway"), spangrad.rollout():
            pass


@pytest.mark.parametrize("key", ["", "wrong"])
def test_a_wrong_key_is_an_error_that_names_the_key(served: Store, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("SPANGRAD_KEY", key)
    with pytest.raises(GatewayError, match="evaluator"), spangrad.rollout():
        pass
    assert served.rollouts() == []


def test_a_gateway_that_went_away_does_not_hide_the_users_error(
    echo_gateway: Gateway, served: Store, caplog: pytest.LogCaptureFixture
) -> None:
    del served

    def fail() -> None:
        with spangrad.rollout():
            echo_gateway.stop()
            raise ValueError("mine")

    with caplog.at_level(logging.WARNING, "spangrad"), pytest.raises(ValueError, match="mine"):
        fail()
    assert "is not recorded" in caplog.text


def test_a_gateway_that_went_away_is_an_error_where_the_block_went_well(echo_gateway: Gateway, served: Store) -> None:
    del served
    with pytest.raises(GatewayError, match="No gateway answers"), spangrad.rollout():
        echo_gateway.stop()


def test_the_users_http_proxy_does_not_get_requests_for_this_machine(served: Store) -> None:
    program = "import json, spangrad\nwith spangrad.rollout() as r:\n    print(json.dumps(r.id))\n"
    environment = os.environ | {"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert served.rollout(json.loads(ran.stdout)) is not None
