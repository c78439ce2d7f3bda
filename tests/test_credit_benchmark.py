"""benchmarks/credit: the worlds, the policy's gradient, and the command."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "credit"
MODULES = ("policy", "critic", "environments", "run")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The benchmark's modules, forgotten afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


def test_an_update_follows_the_gradient_of_the_logarithm(benchmark: SimpleNamespace) -> None:
    policy = benchmark.policy.Policy([("a", "s"), ("a", "t")], 2, learning_rate=0.1)
    policy.update([("a", "s")], [1], np.array([2.0]))
    # The first step of Adam is the learning rate in the gradient's direction: (-1, 1) here, nothing in the other row.
    expected = np.exp(0.1) / (np.exp(0.1) + np.exp(-0.1))
    assert policy._chances(0)[1] == pytest.approx(expected)
    assert policy._chances(1).tolist() == [0.5, 0.5]


def test_a_value_moves_half_way_to_the_mean_of_its_targets(benchmark: SimpleNamespace) -> None:
    critic = benchmark.critic.Critic([("a", "s"), ("a", "t"), ("b", "s")])
    critic.learn([("a", "s"), ("b", "s"), ("a", "s")], np.array([1.0, 4.0, 2.0]))
    critic.learn([("b", "s")], np.array([4.0]))
    seen = [("a", "s"), ("a", "t"), ("b", "s")]
    assert [value.tolist() for value in critic.values(seen)] == [[0.75], [0.0], [3.0]]


def test_a_maze_is_solved_by_who_walks_to_the_goal(benchmark: SimpleNamespace) -> None:
    class Walker:
        """From the upper left corner: down, right, down, down, and so on to the goal."""

        way: list[int]

        def draw(self, _agent: str, _state: str, _random: object) -> tuple[int, float]:
            return self.way.pop(0), 0.0

    walker, maze = Walker(), benchmark.environments.Maze()
    walker.way = [1, 1, 1, 1, 3, 3, 3]  # four down, three right
    played = maze.play(0, walker, None)
    assert (played.reward, played.solved, len(played.moves)) == (1.0, 1.0, 7)
    assert played.moves[0].state == "1,1"
    assert played.moves[-1].state == "5,3"
    walker.way = [0] * 30  # into the wall
    played = maze.play(0, walker, None)
    assert (played.reward, len(played.moves), {move.state for move in played.moves}) == (0.0, 30, {"1,1"})


def test_a_team_that_does_all_right_has_all_there_is(benchmark: SimpleNamespace) -> None:
    class Right:
        def draw(self, agent: str, state: str, _random: object) -> tuple[int, float]:
            number = int(state[-1])
            part = {"lead": 0, "worker 0": 0, "worker 1": 1, "worker 2": 2, "editor": 1}[agent]
            return (number + part) % 4, 0.0

    played = benchmark.environments.Team().play(2, Right(), None)
    assert (played.reward, played.solved) == (4.0, 1.0)
    assert [move.reward for move in played.moves] == [None, 1.0, 1.0, 1.0, None]
    assert [move.depth for move in played.moves] == [0, 1, 1, 1, 2]


def test_calls_are_counted_until_the_mean_of_five_steps_is_reached(benchmark: SimpleNamespace) -> None:
    solved = np.array([0, 0, 1, 1, 1, 1, 1, 1.0])
    calls = np.arange(1, 9) * 10.0
    assert benchmark.run.calls_needed(solved, calls, 0.8) == 60.0  # the mean of steps 2 to 6 is 0.8
    assert benchmark.run.calls_needed(solved * 0.5, calls, 0.8) is None


def test_the_command_prints_one_object(tmp_path: Path) -> None:
    script = (
        "import run; run.settings = lambda f=run.settings: {k: run.Setting(s.world, 6, s.learning_rate, s.reach) "
        "for k, s in f().items()}; run.main()"
    )
    command = [sys.executable, "-c", script, "--json", "--seeds", "2", "--picture", str(tmp_path / "curves.png")]
    printed = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True, timeout=120).stdout

    worlds = json.loads(printed)["worlds"]
    assert set(worlds) == {"maze", "team"}
    assert len(worlds["maze"]["graph"]["curve_mean"]) == 6
    assert worlds["maze"]["gae"]["curve_mean"] != worlds["maze"]["gae, lam 1"]["curve_mean"]
    assert worlds["maze"]["identical"]["reached"] == 0  # in six steps nobody learns it
    assert (tmp_path / "curves.png").stat().st_size > 0
