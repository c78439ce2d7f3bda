"""The state an agent names: what it may be, how long it holds, and for whose calls."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from urllib.parse import unquote

import numpy as np
import pytest
from opentelemetry import context as otel_context

from spangrad.capture import AgentState, Rollout, RolloutScope, current_state
from spangrad.errors import StateError


def scope(rollout_id: str = "r1", attempt: int = 1) -> RolloutScope:
    return RolloutScope(rollout_id, attempt, "t", "http://127.0.0.1:1/v1", "key")


def named(rollout: Rollout) -> tuple[str | None, float | None] | None:
    state = current_state(rollout.scope)
    return None if state is None else (state.key, state.score)


def in_a_fresh_context(work: Callable[[], None]) -> None:
    """What a test names must not hold in the next one."""
    contextvars.Context().run(work)


@pytest.mark.parametrize(
    ("key", "score", "expected"),
    [
        ("kitchen", None, ("kitchen", None)),
        ("kitchen", 1, ("kitchen", 1.0)),
        ("küche ☕\n", np.float32(0.5), ("küche ☕\n", 0.5)),
        ("x" * 1000, True, ("x" * 1000, 1.0)),
        (None, None, (None, None)),
    ],
)
def test_a_state_is_a_text_with_or_without_a_score(
    key: str | None, score: float | None, expected: tuple[str | None, float | None]
) -> None:
    def work() -> None:
        rollout = Rollout(scope())
        rollout.state(key, score)
        assert named(rollout) == expected

    in_a_fresh_context(work)


@pytest.mark.parametrize(
    ("key", "score", "complaint"),
    [
        ("", None, "is an empty text"),
        (17, None, "int 17 is no text"),
        ("x" * 1001, None, "has 1001 characters, more than 1000"),
        ("half \ud83d", None, "half of a surrogate pair"),
        ("kitchen", float("nan"), "is nan, not a finite number"),
        ("kitchen", float("inf"), "is inf, not a finite number"),
        ("kitchen", "0.5", "is str '0.5', not a finite number"),
        (None, 0.5, "without a state"),
    ],
)
def test_what_cannot_be_recorded_is_refused_and_the_state_before_it_holds(
    key: str | None, score: float | None, complaint: str
) -> None:
    def work() -> None:
        rollout = Rollout(scope())
        rollout.state("before", 0.25)
        with pytest.raises(StateError, match=complaint):
            rollout.state(key, score)
        assert named(rollout) == ("before", 0.25)

    in_a_fresh_context(work)


async def test_parallel_tasks_begin_with_the_state_of_their_parent_and_go_their_own_ways() -> None:
    rollout = Rollout(scope())
    seen: dict[str, list[object]] = {}

    async def branch(name: str) -> None:
        seen[name] = [named(rollout)]
        rollout.state(name)
        await asyncio.sleep(0)
        seen[name].append(named(rollout))

    async def agent() -> None:
        rollout.state("root", 0.5)
        await asyncio.gather(branch("left"), branch("right"))
        seen["root"] = [named(rollout), await asyncio.to_thread(named, rollout)]

    await asyncio.create_task(agent())
    assert seen == {
        "left": [("root", 0.5), ("left", None)],
        "right": [("root", 0.5), ("right", None)],
        "root": [("root", 0.5), ("root", 0.5)],
    }


def test_a_thread_that_is_given_opentelemetrys_context_begins_with_the_state() -> None:
    rollout = Rollout(scope())
    seen: list[object] = []

    def work() -> None:
        rollout.state("before the thread")
        given = otel_context.get_current()

        def in_thread() -> None:
            otel_context.attach(given)
            seen.append(named(rollout))
            rollout.state("in the thread")
            seen.append(named(rollout))

        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        seen.append(named(rollout))

    in_a_fresh_context(work)
    assert seen == [("before the thread", None), ("in the thread", None), ("before the thread", None)]


def test_a_state_says_nothing_of_another_rollout_or_attempt() -> None:
    def work() -> None:
        Rollout(scope()).state("mine")
        assert current_state(scope()) == AgentState(("r1", 1), "mine", None)
        assert current_state(scope(attempt=2)) is None
        assert current_state(scope("r2")) is None

    in_a_fresh_context(work)


@pytest.mark.parametrize("key", ["kitchen", "küche ☕", "two\nlines", " padded ", "100%", "a/b?c=d"])
def test_any_text_fits_into_a_header_and_comes_back_out_of_it(key: str) -> None:
    headers = AgentState(("r", 1), key, 0.1).headers()
    assert headers["x-spangrad-state"].isascii()
    assert headers["x-spangrad-state"].isprintable()
    assert unquote(headers["x-spangrad-state"]) == key
    assert float(headers["x-spangrad-score"]) == 0.1


def test_no_state_is_no_header() -> None:
    assert AgentState(("r", 1), None, None).headers() == {}
    assert AgentState(("r", 1), "s", None).headers() == {"x-spangrad-state": "s"}
