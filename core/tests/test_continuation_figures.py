"""Metrics of exact continuation: how many calls go on from an earlier one's tokens, and why the others do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.transitions import Continuation, Continuity, continuation_figures


def of(*kinds: Continuity) -> list[Continuation]:
    return [Continuation(kind) for kind in kinds]


def test_rates_are_taken_of_the_calls_that_repeat_an_answer() -> None:
    kinds = [Continuity.FIRST] * 5 + [Continuity.EXTENDED] * 4 + [Continuity.RETOKENISED] * 2
    kinds += [Continuity.RESPELLED, Continuity.TEMPLATE, Continuity.TEMPLATE, Continuity.EDITED_ANSWER]

    # 4 + 2 + 1 + 2 + 1 = 10 repeat an answer. 4 + 2 + 1 go on: 7 / 10. What drifts: all but the 4 that a rendering gives too.
    assert continuation_figures(of(*kinds)) == {
        "merge_rate": 0.7,
        "drift_rate": {"edited_answer": 0.1, "respelled": 0.1, "retokenised": 0.2, "template": 0.2},
        "calls": {
            "edited_answer": 1,
            "extended": 4,
            "first": 5,
            "respelled": 1,
            "retokenised": 2,
            "template": 2,
        },
    }


@pytest.mark.parametrize(
    ("kinds", "calls"),
    [([], {}), ([Continuity.FIRST], {"first": 1}), ([Continuity.ENDPOINT] * 2, {"endpoint": 2})],
    ids=["no calls", "single calls", "an endpoint's"],
)
def test_without_a_call_that_repeats_an_answer_there_is_no_rate(kinds: list[Continuity], calls: dict[str, int]) -> None:
    assert continuation_figures([*of(*kinds), None]) == {"merge_rate": None, "drift_rate": {}, "calls": calls}


@given(st.lists(st.none() | st.builds(Continuation, st.sampled_from(Continuity))))
def test_what_merges_and_what_does_not_come_to_all(known: list[Continuation | None]) -> None:
    figures = continuation_figures(known)
    assert sum(figures["calls"].values()) == sum(one is not None for one in known)
    if figures["merge_rate"] is not None:
        broken = sum(rate for kind, rate in figures["drift_rate"].items() if not Continuity(kind).goes_on)
        assert figures["merge_rate"] + broken == pytest.approx(1)
