"""Many writers at once, and writers that die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event

from spangrad.errors import StoreError
from spangrad.store import RewardRecord, open_store
from spangrad.store._sql_store import SqlStore, _replacement
from spangrad.transitions import Call, CallStatus, Choice

PRELUDE = """
import os, signal, sys, threading
signal.alarm(60)  # a hanging process ends by itself
from pathlib import Path
from spangrad.errors import StoreError
from spangrad.store import open_store
from spangrad.transitions import Call, CallStatus, Choice

def call(call_id, rollout_id="r"):
    choice = Choice(0, tuple(range(100)), (-0.5,) * 100, "stop", {"role": "assistant", "content": call_id})
    return Call(call_id, rollout_id, 1, call_id, 0, 1.0, 2.0, "m", "p", 1, "e", None, CallStatus.OK, "",
                tuple(range(500)), 1.0, 1.0, 0, {"messages": [call_id]}, (choice,))
"""


def call(call_id: str, rollout_id: str = "r") -> Call:
    return Call(
        call_id=call_id,
        rollout_id=rollout_id,
        attempt=1,
        request_key=call_id,
        retry=0,
        received_at=1.0,
        finished_at=2.0,
        model="m",
        policy="p",
        policy_version=1,
        endpoint="e",
        agent=None,
        status=CallStatus.OK,
        reason="",
        prompt_ids=(1, 2, 3),
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        request={"messages": [call_id]},
        choices=(Choice(0, (4,), (-0.5,), "stop", {"content": call_id}),),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spangrad.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqlStore]:
    opened = open_store(path)
    assert isinstance(opened, SqlStore)
    yield opened
    opened.close()


@contextmanager
def paused(store: SqlStore) -> Iterator[None]:
    """Keeps the store's writing thread from its connection, so that writes queue."""
    connection = store._writer._engine.connect()
    yield
    connection.close()


def run(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PRELUDE + script, str(path)], stdout=subprocess.PIPE, text=True)


def test_of_200_threads_writing_at_once_no_write_is_lost_or_doubled(store: SqlStore) -> None:
    start = threading.Barrier(200)
    errors: list[BaseException] = []

    def agent(number: int) -> None:
        rollout_id = f"r{number}"
        try:
            start.wait()
            for turn in range(3):
                store.submit_call(call(f"{rollout_id}-{turn}", rollout_id)).result()
                assert len(store.calls(rollout_id)) == turn + 1
            store.add_reward(RewardRecord(rollout_id, 1, None, "reward", float(number), "scope", 1.0))
        except BaseException as exc:  # noqa: BLE001 - told to the test, which fails with it
            errors.append(exc)

    threads = [threading.Thread(target=agent, args=(n,)) for n in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert store.counts()["calls"] == 600
    for number in range(200):
        rollout_id = f"r{number}"
        assert [c.call_id for c in store.calls(rollout_id)] == [f"{rollout_id}-{turn}" for turn in range(3)]
        assert [r.value for r in store.rewards(rollout_id)] == [float(number)]


def test_writes_that_wait_together_are_committed_together(store: SqlStore) -> None:
    commits: list[object] = []
    event.listen(store._writer._engine, "commit", commits.append)
    with paused(store):
        futures = [store.submit_call(call(f"c{n}")) for n in range(100)]
    for future in futures:
        future.result()
    # The writing thread may have taken the first of them before the others came.
    assert 1 <= len(commits) <= 2


def test_a_call_written_twice_is_an_error_and_its_neighbours_are_kept(store: SqlStore) -> None:
    with paused(store):
        futures = [store.submit_call(call(call_id)) for call_id in ("a", "b", "a", "c")]
    outcomes = [future.exception() for future in futures]
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), StoreError, type(None)]
    assert "Cannot save call a" in str(outcomes[2])
    assert "has it already" in str(outcomes[2])
    with pytest.raises(StoreError, match="has it already"):
        store.submit_call(call("b")).result()
    assert [(c.call_id, len(c.choices)) for c in store.calls("r")] == [("a", 1), ("b", 1), ("c", 1)]


def test_writes_take_effect_in_the_order_they_were_submitted(store: SqlStore) -> None:
    with paused(store):
        futures = []
        for number in range(20):
            futures.append(store.submit_call(call(f"c{number}")))
            futures.append(store._submit(_replacement("note", "notes", [{"key": "last", "value": str(number)}])))
    for future in futures:
        future.result()
    assert store.note("last") == 19
    assert store.counts()["calls"] == 20


async def test_an_agent_that_stops_waiting_does_not_take_its_call_back(store: SqlStore) -> None:
    with paused(store):
        waiting = asyncio.wrap_future(store.submit_call(call("c1")))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.wrap_future(store.submit_call(call("c2")))
    assert [c.call_id for c in store.calls("r")] == ["c1", "c2"]


def test_a_callback_that_would_wait_for_itself_is_told_so(store: SqlStore) -> None:
    told: Future[Exception | None] = Future()

    def callback(_done: Future[None]) -> None:
        try:
            store.set_note("k", 1)
        except StoreError as exc:
            told.set_result(exc)
        else:
            told.set_result(None)

    with paused(store):
        store.submit_call(call("c1")).add_done_callback(callback)
    assert "would wait for itself" in str(told.result(timeout=10))


def test_closing_writes_what_is_queued_and_refuses_what_comes_later(store: SqlStore, path: Path) -> None:
    futures = [store.submit_call(call(f"c{n}")) for n in range(200)]
    store.close()
    store.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(StoreError, match="is closed"):
        store.submit_call(call("late")).result(timeout=10)
    for use in (store.counts, lambda: store.set_note("k", 1), lambda: store.calls("r")):
        with pytest.raises(StoreError, match=rf"{path} is closed"):
            use()
    assert sorted(p.name for p in path.parent.iterdir()) == ["spangrad.db"]
    with closing(open_store(path, create=False)) as again:
        assert again.counts()["calls"] == 200


def test_two_stores_on_one_file_see_each_others_writes(store: SqlStore, path: Path) -> None:
    with closing(open_store(path, create=False)) as other:
        store.submit_call(call("c1")).result()
        assert [c.call_id for c in other.calls("r")] == ["c1"]
        other.submit_call(call("c2")).result()
        assert [c.call_id for c in store.calls("r")] == ["c1", "c2"]


def test_a_process_killed_while_writing_loses_no_call_it_was_told_is_durable(path: Path) -> None:
    script = """
store = open_store(sys.argv[1])
def agent(number):
    for turn in range(1_000_000):
        call_id = f"{number}-{turn}"
        store.submit_call(call(call_id)).result()
        os.write(1, f"{call_id}\\n".encode())
for number in range(8):
    threading.Thread(target=agent, args=(number,)).start()
"""
    with run(script, path) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(100)]
        os.kill(process.pid, signal.SIGKILL)
        told += process.stdout.readlines()
    acknowledged = {line.strip() for line in told if line.endswith("\n")}

    with closing(open_store(path)) as store:
        found = {c.call_id: c for c in store.calls("r")}
        store.submit_call(call("afterwards")).result()
    assert len(acknowledged) >= 100
    assert acknowledged <= found.keys()
    # Whole calls only, and no more than the one each thread was waiting for.
    assert all(c.choices[0].message == {"role": "assistant", "content": c.call_id} for c in found.values())
    assert len(found) <= len(acknowledged) + 8


def test_a_program_that_forgets_to_close_its_store_loses_nothing(path: Path) -> None:
    script = """
store = open_store(sys.argv[1])
for number in range(300):
    store.submit_call(call(f"c{number}"))
"""
    with run(script, path) as process:
        assert process.wait(timeout=60) == 0
    with closing(open_store(path, create=False)) as store:
        assert store.counts()["calls"] == 300


def test_a_forked_child_is_told_to_open_its_own_store_and_leaves_the_parents_alone(path: Path) -> None:
    script = """
store = open_store(sys.argv[1])
store.submit_call(call("before")).result()
child = os.fork()
if child == 0:
    signal.alarm(20)
    for use in (lambda: store.submit_call(call("x")).result(), store.counts):
        try:
            use()
        except StoreError as exc:
            assert "opened by another process" in str(exc)
        else:
            raise AssertionError("the child used the store")
    store.close()
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
store.submit_call(call("after")).result()
store.close()
"""
    with run(script, path) as process:
        assert process.wait(timeout=60) == 0
    with closing(open_store(path)) as store:
        assert [c.call_id for c in store.calls("r")] == ["after", "before"]


def test_processes_that_make_one_store_at_once_all_succeed(path: Path) -> None:
    script = """
sys.stdin.readline()
store = open_store(sys.argv[1])
store.submit_call(call(f"c{os.getpid()}")).result()
store.close()
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", PRELUDE + script, str(path)], stdin=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    with closing(open_store(path)) as store:
        assert store.counts()["calls"] == 4


def test_commits_wait_for_the_disk_and_readers_for_nobody(store: SqlStore) -> None:
    with store._writer._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        connection.exec_driver_sql("DELETE FROM notes")  # the write lock is held from here on
        assert store.counts()["notes"] == 0
