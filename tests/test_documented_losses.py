"""docs/losses.md lists the losses, corrections and figures there are, with their options and defaults."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from spangrad.backend import CORRECTIONS, LOSSES, CriticSettings, KlForm
from spangrad.plugins import load_plugins

TEXT = (Path(__file__).parent.parent / "docs/losses.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, str]:
    """First column -> row of the tables under a heading."""
    (section,) = [part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE) if part.startswith(heading)]
    return {name: row for row in re.findall(r"^\| `.*", section, flags=re.MULTILINE) for name in _names(row)}


def _names(row: str) -> list[str]:
    return re.findall(r"`(\w+)`", row.split("|")[1])


@pytest.mark.parametrize(("heading", "known"), [("Policy losses", LOSSES), ("Corrections", CORRECTIONS)])
def test_every_name_is_listed_with_its_options_and_defaults(
    heading: str, known: Mapping[str, Callable[..., Any]]
) -> None:
    listed = rows(heading)
    assert set(listed) == set(known)
    for name, make in known.items():
        options = dict(re.findall(r"`(\w+)` \"?([\w.]+)", listed[name].split("|")[3]))
        defaults = {field.name: getattr(make(), field.name) for field in dataclasses.fields(make())}
        assert {key: type(defaults[key])(value) for key, value in options.items()} == defaults


def test_every_kl_form_is_listed() -> None:
    assert set(rows("KL term")) == set(get_args(KlForm))


def test_every_setting_of_the_critic_is_listed_with_its_default() -> None:
    defaults = {name: row.split("|")[2].strip() for name, row in rows("Value loss").items()}
    assert defaults == {
        field.name: "none" if field.default is None else str(field.default)
        for field in dataclasses.fields(CriticSettings)
    }


def test_the_torch_backend_has_everything_there_is() -> None:
    capabilities = load_plugins().backends.get("torch").capabilities
    assert capabilities.losses == set(LOSSES)
    assert capabilities.corrections == set(CORRECTIONS)
    assert capabilities.values
    assert capabilities.estimator_levels == {"transition", "token"}
    assert capabilities.kl_forms == set(get_args(KlForm))
