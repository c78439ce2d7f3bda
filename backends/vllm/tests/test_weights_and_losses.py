"""Weights that change and servers that die while answers are under way: nobody who reads one sees more than a pause."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
from pathlib import Path
from typing import NoReturn

import pytest
from backends.vllm.tests.conftest import Start, ask, drawn, expected, ids, is_alive, told, until, urls, weights
from backends.vllm.tests.fake_vllm import logprob, next_token

from spangrad.backend import SampleDelta, ServedModel
from spangrad.errors import BackendError
from spangrad_vllm import VllmServers

PROMPT = tuple(range(66, 86))
SLOW = {"token_seconds": 0.02}


def by_version(deltas: list[SampleDelta]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for delta in deltas:
        found.setdefault(delta.policy_version, []).extend(delta.token_ids)
    return found


def assert_truly_stamped(deltas: list[SampleDelta], numbers: dict[int, int], tokens: int) -> None:
    """Each token is what the weights of its version draw after all those before it, and none is missing or twice.

    Args:
        deltas: of one answer.
        numbers: the weights of each version.
        tokens: of the whole answer.
    """
    so_far = list(PROMPT)
    for delta in deltas:
        number = numbers[delta.policy_version]
        for token, value in zip(delta.token_ids, delta.logprobs, strict=True):
            assert token == next_token(so_far, number)
            assert value == logprob(number)
            so_far.append(token)
    assert len(so_far) == len(PROMPT) + tokens
    assert "".join(delta.text for delta in deltas) == bytes(so_far[len(PROMPT) :]).decode()
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]


async def under_way(servers: VllmServers, pieces: list[SampleDelta], tokens: int = 60) -> asyncio.Task[None]:
    """An answer of which some tokens are there."""

    async def read() -> None:
        async for delta in servers.policies["policy"].sample(ask(PROMPT, tokens, seed=1)):
            pieces.append(delta)  # noqa: PERF401 - they are looked at as they come

    task = asyncio.create_task(read())
    await until(lambda: len(pieces) >= 5)
    return task


@pytest.fixture
def model(model: ServedModel) -> ServedModel:
    """No token ends an answer."""
    return dataclasses.replace(model, end_ids=frozenset())


async def test_full_weights_are_exchanged_under_an_answer_whose_tokens_carry_the_version_that_drew_them(
    start: Start, model: ServedModel
) -> None:
    servers = await start(model, SLOW | {"reload_seconds": 0.2}, servers=2)
    policy = servers.policies["policy"]
    pieces: list[SampleDelta] = []
    reading = await under_way(servers, pieces)

    taking = asyncio.create_task(policy.take(weights(model.handover / "policy-3", 5), 3))
    await until(lambda: any("reload_weights" in told(url)["orders"] for url in urls(servers)))
    meanwhile = asyncio.create_task(drawn(policy, ask(PROMPT, 4)))  # is held
    await taking
    await reading

    assert policy.policy_version == 3
    assert set(by_version(pieces)) == {0, 3}
    assert_truly_stamped(pieces, {0: 0, 3: 5}, 60)
    assert by_version(await meanwhile) == {3: expected(PROMPT, 4, 5)}
    for url in urls(servers):
        assert told(url)["orders"] == ["pause abort", "reload_weights", "reset_prefix_cache", "resume"]
    seeds = [asked["seed"] for url in urls(servers) for asked in told(url)["asked"] if asked.get("seed") is not None]
    assert len(seeds) == len(set(seeds)) == 2  # a part drawn with the first one's seed would repeat its random numbers


async def test_adapters_are_exchanged_under_an_answer_and_the_old_one_goes(start: Start, model: ServedModel) -> None:
    served = dataclasses.replace(model, adapter_rank=8, policies=("policy", "other"), initial=True)
    servers = await start(served, SLOW)
    (url,) = urls(servers)
    policy, other = servers.policies["policy"], servers.policies["other"]
    await policy.take(weights(model.handover / "a", 2), 1)
    pieces: list[SampleDelta] = []
    reading = await under_way(servers, pieces)

    await other.take(weights(model.handover / "b", 3), 1)
    await policy.take(weights(model.handover / "c", 4), 2)
    await reading

    assert_truly_stamped(pieces, {1: 2, 2: 4}, 60)
    assert set(by_version(pieces)) == {1, 2}
    assert told(url)["orders"] == ["load policy@1", "load other@1", "load policy@2", "unload policy@1"]
    assert len(told(url)["asked"]) == 2  # the other policy's change was nothing to it
    assert by_version(await drawn(other, ask(PROMPT, 3))) == {1: expected(PROMPT, 3, 3)}
    assert servers.initial is not None
    assert ids(await drawn(servers.initial, ask(PROMPT, 3))) == expected(PROMPT, 3, 0)


async def test_without_adapters_each_policy_has_servers_of_its_own_and_so_has_the_initial_model(
    start: Start, model: ServedModel
) -> None:
    servers = await start(dataclasses.replace(model, policies=("policy", "other"), initial=True))
    assert servers.initial is not None

    await servers.policies["other"].take(weights(model.handover / "other-1", 7), 1)

    assert len(urls(servers)) == 3
    assert ids(await drawn(servers.policies["policy"], ask(PROMPT, 3))) == expected(PROMPT, 3, 0)
    assert ids(await drawn(servers.policies["other"], ask(PROMPT, 3))) == expected(PROMPT, 3, 7)
    assert ids(await drawn(servers.initial, ask(PROMPT, 3))) == expected(PROMPT, 3, 0)


async def test_a_server_that_dies_under_an_answer_is_replaced_and_the_answer_goes_on_where_it_was(
    start: Start, model: ServedModel
) -> None:
    servers = await start(model, SLOW)
    await servers.policies["policy"].take(weights(model.handover / "policy-1", 6), 1)
    (first,) = urls(servers)
    pieces: list[SampleDelta] = []
    reading = await under_way(servers, pieces)

    os.kill(told(first)["pid"], signal.SIGKILL)
    await reading

    (second,) = urls(servers)
    assert second != first
    assert_truly_stamped(pieces, {1: 6}, 60)  # it began with the present weights
    rest = told(second)["asked"][0]
    assert (len(rest["prompt"]) - len(PROMPT), rest["max_tokens"]) == (60 - rest["max_tokens"], rest["max_tokens"])


async def test_a_replaced_server_has_the_present_adapters_before_it_draws(start: Start, model: ServedModel) -> None:
    servers = await start(dataclasses.replace(model, adapter_rank=8), SLOW)
    policy = servers.policies["policy"]
    await policy.take(weights(model.handover / "a", 2), 1)
    os.kill(told(urls(servers)[0])["pid"], signal.SIGKILL)

    assert by_version(await drawn(policy, ask(PROMPT, 6))) == {1: expected(PROMPT, 6, 2)}
    assert told(urls(servers)[0])["orders"] == ["load policy@1"]


async def test_answers_of_a_dead_server_go_on_at_another_one_at_once(start: Start, model: ServedModel) -> None:
    servers = await start(model, SLOW, servers=2)
    pieces: list[SampleDelta] = []
    reading = await under_way(servers, pieces)
    (busy,) = [url for url in urls(servers) if told(url)["asked"]]
    (idle,) = set(urls(servers)) - {busy}

    os.kill(told(busy)["pid"], signal.SIGKILL)
    await reading

    assert_truly_stamped(pieces, {0: 0}, 60)
    assert told(idle)["asked"]


async def test_a_guard_that_is_killed_takes_its_server_with_it(start: Start, model: ServedModel) -> None:
    servers = await start(model)
    (first,) = urls(servers)
    seen = told(first)
    process = servers._pools[0]._servers[0].process
    assert process is not None

    os.kill(process.pid, signal.SIGKILL)

    await until(lambda: not is_alive(seen["pid"]))
    assert ids(await drawn(servers.policies["policy"], ask(PROMPT, 3))) == expected(PROMPT, 3)


async def test_a_server_that_is_alive_and_does_not_answer_is_replaced(
    start: Start, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spangrad_vllm._pool._HEALTH_SECONDS", 0.1)
    servers = await start(model)
    (first,) = urls(servers)
    pid = told(first)["pid"]

    told(first, {"deaf": True})
    await until(lambda: urls(servers) != [first])

    assert ids(await drawn(servers.policies["policy"], ask(PROMPT, 3))) == expected(PROMPT, 3)
    assert not is_alive(pid)


async def test_an_answer_of_which_a_server_leaves_out_a_token_goes_on_from_the_one_before(
    start: Start, model: ServedModel
) -> None:
    servers = await start(model, {"lose": 4})

    pieces = await drawn(servers.policies["policy"], ask(PROMPT, 10))

    assert_truly_stamped(pieces, {0: 0}, 10)
    asked = told(urls(servers)[0])["asked"]
    assert [one["max_tokens"] for one in asked] == [10, 7]


async def test_servers_that_die_of_every_answer_are_given_up_with_the_last_lines_of_the_log(
    start: Start, model: ServedModel
) -> None:
    servers = await start(model, {"break_after": 1})

    with pytest.raises(BackendError, match=r"lost 4 times without a whole answer in between.*exit status 3") as caught:
        await drawn(servers.policies["policy"], ask(PROMPT, 30))

    assert "the fake begins" in caught.value.cure
    with pytest.raises(BackendError, match="lost 4 times"):
        await servers.policies["policy"].take(model.folder, 1)


async def test_a_server_that_cannot_be_replaced_is_one_clear_error(start: Start, model: ServedModel) -> None:
    servers = await start(model)
    policy = servers.policies["policy"]
    (model.folder / "weights").write_text("no number")
    os.kill(told(urls(servers)[0])["pid"], signal.SIGKILL)

    with pytest.raises(
        BackendError, match=r"cannot be replaced: A vLLM server ended while starting .*: ValueError: "
    ) as caught:
        await drawn(policy, ask(PROMPT, 3))
    assert "no number" in caught.value.cure


async def test_a_lost_server_whose_folder_of_logs_is_gone_is_one_clear_error(
    start: Start, model: ServedModel, tmp_path: Path
) -> None:
    servers = await start(model, log_folder=str(tmp_path / "logs"))
    shutil.rmtree(tmp_path / "logs")
    os.kill(told(urls(servers)[0])["pid"], signal.SIGKILL)

    with pytest.raises(BackendError, match=r"cannot be replaced: A vLLM server cannot be started: .*No such file"):
        await drawn(servers.policies["policy"], ask(PROMPT, 3))


async def test_nobody_waits_for_a_server_whose_keeper_failed_by_a_fault_of_ours(
    start: Start, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = await start(model)

    def broken(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("spangrad_vllm._source.server_command", broken)
    os.kill(told(urls(servers)[0])["pid"], signal.SIGKILL)

    with pytest.raises(BackendError, match=r"cannot be looked after any more: ZeroDivisionError\('a fault'\)"):
        await drawn(servers.policies["policy"], ask(PROMPT, 3))


async def test_weights_that_a_server_refuses_are_an_error_where_they_are_published(
    start: Start, model: ServedModel
) -> None:
    servers = await start(model)
    told(urls(servers)[0], {"refuse_weights": True})

    with pytest.raises(BackendError, match=r"answered 500 to /collective_rpc: .*out of memory"):
        await servers.policies["policy"].take(weights(model.handover / "policy-1", 1), 1)


async def test_calls_that_extend_each_other_go_to_one_server_and_others_to_the_idlest(
    start: Start, model: ServedModel
) -> None:
    servers = await start(model, {"token_seconds": 0.05}, servers=2)
    policy = servers.policies["policy"]
    one, other = [66] * 40, [70] * 40

    first = [asyncio.create_task(drawn(policy, ask(prompt, 20))) for prompt in (one, other)]
    await asyncio.gather(*first)
    for prompt, task in zip((one, other, one), [*first, first[0]], strict=True):
        await drawn(policy, ask([*prompt, *ids(task.result()), 67], 2))

    openings = [[asked["prompt"][0] for asked in told(url)["asked"]] for url in urls(servers)]
    assert sorted(openings) == [[66, 66, 66], [70, 70]]
