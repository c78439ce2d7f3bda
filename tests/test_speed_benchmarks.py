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

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """How the benchmarks measure."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "measuring", raising=False)
    return importlib.import_module("measuring")


def printed(name: str) -> Any:
    """What a benchmark prints."""
    command = [sys.executable, f"{name}.py", "--json", "--small", "--without-peers", "--repeats", "1"]
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
