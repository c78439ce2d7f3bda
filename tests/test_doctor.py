"""spangrad doctor: what each part of an algorithm needs, and what a backend honours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def doctor(*options: str) -> str:
    """What the command prints; it must find nothing wrong."""
    command = [sys.executable, "-m", "spangrad", "doctor", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_every_assigner_is_shown_with_its_needs_and_options() -> None:
    shown = json.loads(doctor("--json"))

    assert shown["credit assigners"]["progress"] == {
        "needs": ["scores of states", "an estimator of returns below 0"],
        "options": ["gamma", "omega"],
        "required": [],
    }
    assert shown["credit assigners"]["identical"] == {"needs": [], "options": [], "required": []}
    assert shown["credit assigners"]["agent_share"]["required"] == ["shares"]
    assert shown["KL terms"]["k3"] == {"needs": [], "options": [], "required": ["coefficient"]}
    assert shown["corrections"]["masked_is"]["options"] == ["low", "high"]
    assert "updates_per_step of 2 or more" in shown["losses"]["gspo"]["needs"][0]
    assert shown["losses"]["dual_clip"]["options"] == ["clip_low", "clip_high", "bound"]
    assert shown["advantage estimators"]["maxrl"]["needs"][0] == "at least 2 rollouts of one task"
    assert set(shown["losses"]) == set(shown["backends"]["torch"]["losses"])


@pytest.mark.parametrize(
    ("kind", "document"), [("credit assigners", "credit.md"), ("advantage estimators", "estimators.md")]
)
def test_doctor_and_the_documentation_name_the_same_parts(kind: str, document: str) -> None:
    shown = json.loads(doctor("--json"))
    sections = set(re.findall(r"^## (\w+)$", (DOCS / document).read_text(encoding="utf-8"), re.MULTILINE))

    assert set(shown[kind]) <= sections


def test_doctor_says_in_words_what_a_part_needs() -> None:
    shown = doctor()

    assert "  gigpo: needs: states of calls, or equal prompts, an estimator that compares within groups; opt" in shown
    assert "  last_call: needs nothing; takes no options" in shown
    assert "  agent_share: needs: agents known by name; options: shares (required)" in shown
    assert (
        "  dr_grpo: needs: at least 2 rollouts of one task, a backend that takes one advantage per transition; takes no"
        in shown
    )
    assert shown.endswith("Everything found can be used.\n")


def test_doctor_says_what_a_sampler_lacks_which_is_no_problem() -> None:
    shown = json.loads(doctor("--json"))

    assert shown["samplers"]["vllm"].startswith(
        f"not ready: vLLM is not installed in the environment of {sys.executable}"
    )
    assert shown["problems"] == []
