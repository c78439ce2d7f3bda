"""Hooking all integrations in for the length of a block."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest

from spangrad.errors import PluginError
from spangrad.plugins import Kinds, Plugins, Register


class Recorded:
    framework = "recorded"

    def __init__(self, name: str, events: list[str], *, broken: bool = False) -> None:
        self._name = name
        self._events = events
        self._broken = broken

    def attach(self) -> Callable[[], None]:
        if self._broken:
            raise PluginError("The framework is missing")
        self._events.append(f"attach {self._name}")
        return lambda: self._events.append(f"detach {self._name}")

    def describe(self) -> Mapping[str, str]:
        return {}


def plugins(events: list[str], *, strict: bool) -> Plugins:
    kinds = Kinds()
    register = Register(kinds, plugin="test", distribution="test")
    register.integration("a", Recorded("a", events))
    register.integration("b", Recorded("b", events, broken=True))
    register.integration("c", Recorded("c", events))
    return Plugins(kinds, (), strict=strict)


def test_integrations_are_attached_for_the_block_and_a_broken_one_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []

    with caplog.at_level(logging.WARNING), plugins(events, strict=False).attached():
        events.append("block")

    assert events == ["attach a", "attach c", "block", "detach c", "detach a"]
    assert "'b' is left out: The framework is missing" in caplog.text


def test_an_error_in_the_block_detaches_them_and_passes_through() -> None:
    events: list[str] = []

    with pytest.raises(KeyError), plugins(events, strict=False).attached():
        raise KeyError("x")

    assert events[-2:] == ["detach c", "detach a"]


def test_under_strict_a_broken_one_is_an_error_and_nothing_stays_attached() -> None:
    events: list[str] = []

    with pytest.raises(PluginError, match="The framework is missing"), plugins(events, strict=True).attached():
        events.append("block")

    assert events == ["attach a", "detach a"]
