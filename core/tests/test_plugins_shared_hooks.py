"""Hooks that are applied once for however many attachments."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spangrad.plugins import SharedHooks


def recorded(events: list[str]) -> SharedHooks:
    return SharedHooks(lambda: events.append("apply"), lambda: events.append("revert"))


def test_the_first_attachment_applies_and_the_last_detach_reverts() -> None:
    events: list[str] = []
    hooks = recorded(events)

    first, second = hooks.attach(), hooks.attach()
    first()
    assert (events, hooks.attached) == (["apply"], True)
    second()
    assert (events, hooks.attached) == (["apply", "revert"], False)
    hooks.attach()()
    assert events == ["apply", "revert"] * 2


def test_a_detach_counts_once() -> None:
    events: list[str] = []
    hooks = recorded(events)
    first, second = hooks.attach(), hooks.attach()

    first()
    first()
    assert hooks.attached
    second()
    assert events == ["apply", "revert"]


def test_an_apply_that_raises_is_reverted_and_may_be_tried_again() -> None:
    events: list[str] = []
    fails = [True]

    def apply() -> None:
        events.append("apply")
        if fails:
            raise KeyError("half-way")

    hooks = SharedHooks(apply, lambda: events.append("revert"))
    with pytest.raises(KeyError):
        hooks.attach()
    assert (events, hooks.attached) == (["apply", "revert"], False)
    fails.clear()
    hooks.attach()()
    assert events == ["apply", "revert", "apply", "revert"]


def test_an_apply_that_makes_the_same_hooks_attach_again_does_not_hang() -> None:
    events: list[str] = []
    inner: list[Callable[[], None]] = []

    def apply() -> None:
        events.append("apply")
        inner.append(hooks.attach())

    hooks = SharedHooks(apply, lambda: events.append("revert"))
    outer = hooks.attach()
    outer()
    assert events == ["apply"]
    inner[0]()
    assert events == ["apply", "revert"]


def test_attaching_from_many_threads_applies_and_reverts_in_turns() -> None:
    events: list[str] = []
    hooks = recorded(events)

    def use() -> None:
        for _ in range(200):
            detach = hooks.attach()
            assert hooks.attached
            detach()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not hooks.attached
    assert len(events) % 2 == 0
    assert set(events[::2]) == {"apply"}
    assert set(events[1::2]) == {"revert"}
