"""Registering things under names and asking for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spangrad.errors import PluginError
from spangrad.plugins import Integration, Kind, Kinds, Register, Registered


def row(name: str, *, plugin: str = "one", distribution: str = "dist-one") -> Registered[int]:
    return Registered(name, 1, distribution, plugin)


def test_a_thing_is_found_under_its_name_with_who_brought_it() -> None:
    kind: Kind[int] = Kind("number")
    kind.add(row("b"))
    kind.add(row("a", plugin="two", distribution="dist-two"))

    assert kind.get("a") == 1
    assert kind.row("a").distribution == "dist-two"
    assert kind.names() == ("a", "b")
    assert [each.name for each in kind] == ["a", "b"]
    assert "a" in kind
    assert "c" not in kind
    assert len(kind) == 2


def test_a_name_taken_twice_is_refused_naming_both_distributions() -> None:
    kind: Kind[int] = Kind("number")
    kind.add(row("a"))

    with pytest.raises(PluginError) as raised:
        kind.add(row("a", plugin="two", distribution="dist-two"))

    assert raised.value.what == "Two plug-ins register the number 'a': 'one' (dist-one) and 'two' (dist-two)"
    assert raised.value.cure.endswith("SPANGRAD_DISABLED_PLUGINS=two")


@pytest.mark.parametrize("name", ["", " ", "a ", "\ta"])
def test_what_is_no_name_is_refused(name: str) -> None:
    kind: Kind[int] = Kind("number")
    with pytest.raises(PluginError, match="dist-one"):
        kind.add(row(name))


def test_an_unknown_name_lists_the_known_ones_and_the_closest() -> None:
    kind: Kind[int] = Kind("number")
    kind.add(row("grpo"))
    kind.add(row("rloo"))

    with pytest.raises(PluginError) as raised:
        kind.get("gprpo")

    assert raised.value.what == "Unknown number 'gprpo' (known: grpo, rloo)"
    assert raised.value.cure == "Did you mean 'grpo'?"


def test_an_unknown_name_where_nothing_is_known() -> None:
    with pytest.raises(PluginError, match=r"Unknown number 'a' \(known: none\)"):
        Kind[int]("number").get("a")


def test_a_plugin_registers_each_kind_under_its_own_distribution() -> None:
    kinds = Kinds()
    register = Register(kinds, plugin="mine", distribution="dist-mine")

    class Hooks:
        framework = "json"

        def attach(self) -> Callable[[], None]:
            return lambda: None

        def describe(self) -> dict[str, str]:
            return {}

    hooks: Integration = Hooks()
    register.integration("json", hooks)

    assert kinds.integrations.get("json") is hooks
    assert kinds.integrations.row("json").distribution == "dist-mine"
    assert kinds.integrations.row("json").plugin == "mine"
    assert kinds.backends.names() == ()
