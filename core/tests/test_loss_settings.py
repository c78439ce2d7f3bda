"""Losses, KL terms and corrections refuse what cannot be; each honours its own options and no others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from spangrad.backend import (
    CORRECTIONS,
    LOSSES,
    CriticSettings,
    GeometricRejection,
    KlTerm,
    LossSettings,
    MaskedIS,
    TruncatedIS,
)
from spangrad.errors import ConfigError
from spangrad.lightningrl import configured

OPTIONS = {
    "ppo_clip": {"clip_low", "clip_high"},
    "dual_clip": {"clip_low", "clip_high", "bound"},
    "gspo": {"clip_low", "clip_high"},
    "gspo_token": {"clip_low", "clip_high"},
    "cispo": {"clip_low", "clip_high"},
    "sapo": {"tau_positive", "tau_negative"},
    "reinforce": set(),
}


def test_every_loss_and_correction_goes_by_its_own_name() -> None:
    assert {name: make().name for name, make in LOSSES.items()} == {name: name for name in OPTIONS}
    assert {name: make().name for name, make in CORRECTIONS.items()} == {name: name for name in CORRECTIONS}
    assert set(CORRECTIONS) == {"truncated_is", "masked_is", "geometric"}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("option", sorted(set().union(*OPTIONS.values())))
def test_a_loss_takes_the_options_it_honours_and_no_others(name: str, option: str) -> None:
    value = {"bound": 2.0, "tau_positive": 0.5, "tau_negative": 0.5}.get(option, 0.3)
    if option in OPTIONS[name]:
        assert getattr(configured("loss", name, LOSSES[name], {option: value}), option) == value
        return
    with pytest.raises(ConfigError, match=f"Wrong options for the loss '{name}'.*'{option}'"):
        configured("loss", name, LOSSES[name], {option: value})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ppo_clip", {"clip_low": -0.1}, "clip_low is -0.1"),
        ("ppo_clip", {"clip_low": 1.5}, "at least 0 and at most 1"),
        ("ppo_clip", {"clip_high": float("inf")}, "clip_high is inf"),
        ("ppo_clip", {"clip_high": float("nan")}, "clip_high is nan"),
        ("gspo", {"clip_high": "0.3"}, "clip_high is '0.3'"),
        ("cispo", {"clip_high": True}, "clip_high is True"),
        ("dual_clip", {"bound": 1.0}, "bound is 1.0"),
        ("dual_clip", {"clip_high": 0.5, "bound": 1.5}, "inside the upper bound 1 \\+ clip_high = 1.5"),
        ("sapo", {"tau_positive": 0.0}, "tau_positive is 0.0.*above 0"),
        ("sapo", {"tau_negative": -1}, "tau_negative is -1"),
    ],
)
def test_options_that_cannot_be_are_refused_with_their_bounds(
    name: str, options: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        LOSSES[name](**options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("truncated_is", {"cap": 0.0}, "cap is 0.0"),
        ("truncated_is", {"level": "call"}, 'level is \'call\'.*Choose "token" or "sequence"'),
        ("masked_is", {"low": 1.2}, "low is 1.2"),
        ("masked_is", {"high": 0.9}, "high is 0.9"),
        ("geometric", {"low": -0.5}, "low is -0.5"),
    ],
)
def test_corrections_that_cannot_be_are_refused(name: str, options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        CORRECTIONS[name](**options)


def test_a_difference_is_corrected_once() -> None:
    both = (TruncatedIS(), GeometricRejection())
    assert LossSettings(corrections=both).corrections == both
    for twice in ((TruncatedIS(), MaskedIS()), (GeometricRejection(), GeometricRejection())):
        with pytest.raises(ConfigError, match="weigh the same difference twice"):
            LossSettings(corrections=twice)


def test_a_kl_term_needs_a_known_form_and_a_coefficient() -> None:
    with pytest.raises(ConfigError, match="missing a required argument: 'coefficient'"):
        configured("KL term", "k3", partial(KlTerm, "k3"), {})
    with pytest.raises(ConfigError, match="Unknown KL form 'k4'"):
        KlTerm("k4", 0.1)  # type: ignore[arg-type]  # what a file may say
    for coefficient in (0.0, -1.0, 1e300):
        with pytest.raises(ConfigError, match=re.escape(f"coefficient is {coefficient}")):
            KlTerm("k2", coefficient)


def test_an_entropy_bonus_is_not_negative() -> None:
    with pytest.raises(ConfigError, match=r"entropy_bonus is -0\.1"):
        LossSettings(entropy_bonus=-0.1)


def test_what_would_overflow_is_refused_before_it_does() -> None:
    LossSettings(entropy_bonus=100.0)
    CriticSettings(coefficient=100.0, clip=1e6)
    for settings in ({"coefficient": 1e300}, {"clip": 1e300}):
        ((option, value),) = settings.items()
        with pytest.raises(ConfigError, match=re.escape(f"{option} is {value!r}")):
            CriticSettings(**settings)
    with pytest.raises(ConfigError, match="and at most 100"):
        LossSettings(entropy_bonus=101.0)
