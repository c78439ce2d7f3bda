"""Commands are ended with all they started, and an interrupted run leaves nothing running and nothing unrecorded."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from spangrad.capture import Rollout
from spangrad.gateway import Gateway
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent
from spangrad.store import RolloutStatus, Store, open_store

PlayAgent = Callable[..., Awaitable[RolloutResult]]


def dies(process: int) -> bool:
    """Whether the process is gone or a zombie, now or within ten seconds: a signal takes its time."""
    stat = Path(f"/proc/{process}/stat")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
            if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


async def test_a_command_that_fails_shows_the_end_of_its_stderr(play_agent: PlayAgent) -> None:
    result = await play_agent(
        [sys.executable, "-c", "import sys; print('x' * 9000, 'the cause', file=sys.stderr); sys.exit(7)"]
    )
    assert result.status is RolloutStatus.FAILED
    assert "exited with status 7" in result.error
    assert result.error.endswith("the cause")
    assert len(result.error) < 5_000


async def test_a_command_that_never_reads_its_input_and_prints_much_is_no_problem(play_agent: PlayAgent) -> None:
    result = await play_agent([sys.executable, "-c", "print('x' * 3_000_000); print(0.5)"])
    assert (result.status, result.output) == (RolloutStatus.NO_CALL, 0.5)


async def test_a_command_that_hangs_is_ended_with_everything_it_started(
    play_agent: PlayAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spangrad.rollouts._command._GRACE", 0.2)
    pids = tmp_path / "pids"
    program = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(60)"
    )
    result = await play_agent([sys.executable, "-c", program], timeout=3)
    assert result.status is RolloutStatus.TIMED_OUT
    assert [dies(int(pid)) for pid in pids.read_text().split()] == [True, True]


async def test_what_a_command_leaves_running_is_ended_when_it_ends(play_agent: PlayAgent, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = ["sh", "-c", f"sleep 60 & echo $! > {pids}; echo done"]
    started = time.monotonic()
    result = await play_agent(command)
    assert result.output == "done"
    assert time.monotonic() - started < 15
    assert dies(int(pids.read_text()))


async def test_a_cancelled_run_records_what_was_under_way_as_lost(echo_gateway: Gateway, echo_store: Store) -> None:
    ended, under_way = asyncio.Event(), threading.Barrier(3, timeout=20)

    async def agent(task: Any, rollout: Rollout) -> float:
        if task["text"] == "wait":
            await asyncio.to_thread(under_way.wait)
        async with openai.AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key) as client:
            await client.chat.completions.create(model="echo", messages=[{"role": "user", "content": task["text"]}])
        return 1.0

    jobs = [
        RolloutJob(f"r{i}", 1, "g", Task("t", {"text": text}), "train", 1)
        for i, text in enumerate(["x", "wait", "wait"])
    ]
    runner = Runner(load_agent(agent, Path()), None, echo_gateway, echo_store, concurrency=2, timeout=None)
    run = asyncio.create_task(runner.run(jobs, on_result=lambda _: ended.set()))
    await ended.wait()
    await asyncio.to_thread(under_way.wait)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert {r.rollout_id: r.status for r in echo_store.rollouts()} == {
        "r0": RolloutStatus.SUCCEEDED,
        "r1": RolloutStatus.LOST,
        "r2": RolloutStatus.LOST,
    }


INTERRUPTED = """
import asyncio, signal, sys
from pathlib import Path
from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.rollouts import RolloutJob, Runner, Task, load_agent
from spangrad.store import open_store
from spangrad.testing import ByteChatFormat, ScriptedSampler

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs in the background with Ctrl-C ignored
folder = Path(sys.argv[1])
store = open_store(folder / "run.db")
agent = load_agent([sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); open('pid', 'w').write(str(os.getpid())); time.sleep(60)"], folder)
with Gateway(store, [Route("m", TokenEngine(ScriptedSampler(lambda p: "x"), ByteChatFormat(), "e"), "policy")]) as gateway:
    runner = Runner(agent, None, gateway, store, concurrency=1, timeout=None)
    try:
        asyncio.run(runner.run([RolloutJob("r", 1, "g", Task("t", {}), "train", 1)]))
    except KeyboardInterrupt:
        store.close()
        sys.exit(42)
"""


def test_ctrl_c_ends_the_command_and_records_the_rollout_as_lost(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    run = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    while not (pid.exists() and pid.read_text()):
        assert run.poll() is None, run.stderr and run.stderr.read()
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == 42, errors
    assert errors == ""
    assert dies(int(pid.read_text()))
    store = open_store(tmp_path / "run.db")
    assert [record.status for record in store.rollouts()] == [RolloutStatus.LOST]
    store.close()
