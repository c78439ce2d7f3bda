"""The benchmarks of speed: each command at tiny sizes and without its peers, and how figures are put together."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from backends.torch.tests.conftest import make_tiny_model

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """How the benchmarks measure."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "measuring", raising=False)
    return importlib.import_module("measuring")


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model's folder."""
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


def printed(name: str, *more: str) -> Any:
    """What a benchmark prints."""
    command = [sys.executable, f"{name}.py", "--json", "--small", "--without-peers", "--repeats", "1", *more]
    ran = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True, timeout=100)
    return json.loads(ran.stdout)


def test_extraction_is_measured_in_memory_and_stored() -> None:
    found = printed("extract")
    case = found["cases"]["1 calls, 0 other spans"]
    assert case["rollouts"] == 2
    assert case["spans"] == 4  # an agent and its call, twice
    assert all(case[view]["spangrad, rollouts/s"]["median"] > 0 for view in ("in memory", "stored"))
    assert found["machine"]["cores"] > 0


def test_estimation_is_measured_by_itself_and_with_all_that_a_report_holds() -> None:
    found = printed("credit_speed")
    assert (found["transitions"], found["groups"]) == (400, 4)  # 4 tasks of 25 rollouts of 4 calls
    assert set(found["algorithms"]["rloo"]) == {"estimate, ms", "whole, ms"}


def test_a_training_step_is_measured_whole_and_in_its_parts(tiny_model: str) -> None:
    found = printed("train_step", "--model", tiny_model)
    seconds = {name: figure["median"] for name, figure in found["seconds"].items()}
    assert seconds["ours step"] == pytest.approx(seconds["ours sampling"] + seconds["ours learning"], rel=1e-2)
    # 2 prompts of n tokens, 2 answers of 4 to each, the last token of which is not computed: 4 (n + 3) if nothing is shared.
    (length,) = found["prompt tokens"]
    assert found["tokens learnt from"]["flat"] == 4 * (length + 3)
    assert found["tokens learnt from"]["computed"] < 2 * (length + 6)  # the prompts begin alike, too


def test_the_tree_learner_is_measured_against_the_flat_one(tiny_model: str) -> None:
    found = printed("tree", "--model", tiny_model, "--shape", "one turn")
    case = found["shapes"]["one turn"]
    # 2 rollouts of 12 + 3 tokens, of which the last is not computed; shared: the prompt once.
    assert case["tokens"] == {"tree": 12 + 2 + 2, "flat": 2 * 14}
    assert case["gradient cosine"] == pytest.approx(1.0, abs=1e-5)


def test_shapes_of_rollouts_branch_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    shapes = importlib.import_module("shapes")
    calls = {shape: shapes.batch(shape, small=False).transitions.transitions for shape in shapes.SHAPES}
    assert {shape: len(found) for shape, found in calls.items()} == {
        "nothing shared": 16,
        "system prompt shared": 16,
        "one turn": 16,
        "tool loop": 4 * 4,
        "three agents": 8 * 3,
        "branches": 2 * (2 + 3 * 2),
    }
    assert len({call.prompt_ids for call in calls["one turn"]}) == 1
    first, second, *_ = calls["tool loop"]
    assert second.prompt_ids[: 120 + 24] == first.prompt_ids + first.action_ids
    trunk, ends = calls["branches"][1], calls["branches"][2:8]
    assert all(end.prompt_ids[:168] == (trunk.prompt_ids + trunk.action_ids)[:168] for end in ends)  # 120 + 24 + 24


def test_two_turns_are_sampled_by_ours_and_by_generate(tiny_model: str) -> None:
    found = printed("sampler", "--model", tiny_model)
    assert (found["rollouts"], found["answer tokens"]) == (4, 4)
    assert set(found["seconds"]) == {"ours", "ours, processor", "generate", "generate, processor"}


def test_calls_are_measured_directly_through_bytes_and_through_the_gateway() -> None:
    found = printed("gateway")
    case = found["whole answers"]["16 connections"]
    for way in ("direct", "bytes", "spangrad"):
        assert case[way]["requests/s"]["median"] > 0
        assert case[way]["ms at the 99th percentile"]["median"] >= case[way]["ms at the median"]["median"] > 0
    assert case["times as fast as bytes"]["median"] > 0
    assert set(found["streamed"]["16 connections"]) >= {"bytes", "spangrad"}


def test_spans_are_measured_and_all_of_them_are_in_the_store() -> None:
    found = printed("store")  # it fails if one is missing
    assert found["spans"] == 256
    assert all(case["spangrad, spans/s"]["median"] > 0 for case in found["cases"].values())


def test_rollouts_are_measured() -> None:
    found = printed("rollouts")
    assert found["spangrad, rollouts/s"]["median"] > 0
    assert found["spangrad, ms of the processor a rollout"]["median"] > 0


def test_memory_is_measured_after_every_step() -> None:
    found = printed("memory")
    assert (found["rollouts"], found["calls"]) == (20, 160)  # 5 steps of 4 rollouts of 8 calls
    assert len(found["resident MB by step"]) == 5
    assert found["resident MB"]["last"] == found["resident MB by step"][-1] > 0


def test_measures_are_taken_in_turns_and_the_first_turn_is_thrown_away(measuring: ModuleType) -> None:
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = measuring.in_turns(2, {"a": lambda: measure("a"), "b": lambda: measure("b")})
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_ratios_are_taken_turn_by_turn(measuring: ModuleType) -> None:
    # 10/5, 30/10, 8/2 are 2, 3 and 4, though the ratio of the medians is 10/5.
    assert measuring.ratios([10, 30, 8], [5, 10, 2]) == {"median": 3.0, "lowest": 2.0, "highest": 4.0}
