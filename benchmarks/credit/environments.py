"""Two small worlds in which an agent's run is many calls: a maze with repeated states, and a team that works side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from policy import Policy

Random = np.random.Generator


@dataclass(frozen=True, slots=True)
class Move:
    """One call of an agent."""

    agent: str
    depth: int
    state: str
    """What the agent sees, and the state of the world for whoever compares states."""
    action: int
    logprob: float
    reward: float | None = None
    """The call's own."""


@dataclass(frozen=True, slots=True)
class Played:
    """A whole run."""

    moves: tuple[Move, ...]
    reward: float
    """The run's own."""
    solved: float
    """How well it went, from 0 to 1; what is measured, whatever the rewards."""


class World(Protocol):
    """Something to learn."""

    tasks: int
    actions: int

    def states(self) -> Iterator[tuple[str, str]]:
        """All (agent, state) pairs."""
        ...

    def play(self, task: int, policy: Policy, random: Random) -> Played:
        """One run."""
        ...


_MAZE = (
    "#########",
    "#A..#..B#",
    "#.#.#.#.#",
    "#.#...#.#",
    "#.##.##.#",
    "#...G...#",
    "#.##.##.#",
    "#C..#..D#",
    "#########",
)
_STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Maze:
    """Find the goal from one of four corners within 30 moves; 1 for reaching it, else 0. One agent, which sees its cell.

    A random walk reaches the goal in about one run of eight. Cells repeat within a run and among the runs of a task.
    """

    tasks = 4
    actions = 4
    longest = 30

    def __init__(self) -> None:
        cells = {(r, c): mark for r, row in enumerate(_MAZE) for c, mark in enumerate(row) if mark != "#"}
        self._open = set(cells)
        self._starts = [next(cell for cell, mark in cells.items() if mark == corner) for corner in "ABCD"]
        self._goal = next(cell for cell, mark in cells.items() if mark == "G")

    def states(self) -> Iterator[tuple[str, str]]:
        """One agent, all cells."""
        return (("walker", _name(cell)) for cell in sorted(self._open))

    def play(self, task: int, policy: Policy, random: Random) -> Played:
        """Walks until the goal, or until there are no moves left."""
        cell, moves = self._starts[task], []
        for depth in range(self.longest):
            action, logprob = policy.draw("walker", _name(cell), random)
            moves.append(Move("walker", depth, _name(cell), action, logprob))
            aim = (cell[0] + _STEPS[action][0], cell[1] + _STEPS[action][1])
            cell = aim if aim in self._open else cell
            if cell == self._goal:
                return Played(tuple(moves), 1.0, 1.0)
        return Played(tuple(moves), 0.0, 0.0)


class Team:
    """A lead chooses one of four plans; then three workers, side by side, each do their part; then an editor chooses.

    Each part has one right choice: the lead's depends on the task, a worker's and the editor's on the plan. Every worker's call is
    rewarded by itself, 1 or 0; the run is rewarded with 4 if lead and editor are both right. So the agents' returns differ in
    size, and most of what an agent is paid for was done by others.
    """

    tasks = 4
    actions = 4
    workers = 3

    def states(self) -> Iterator[tuple[str, str]]:
        """The lead sees the task, the others the plan."""
        for number in range(4):
            yield "lead", f"task {number}"
            for agent in (*(f"worker {w}" for w in range(self.workers)), "editor"):
                yield agent, f"plan {number}"

    def play(self, task: int, policy: Policy, random: Random) -> Played:
        """Five calls in three steps."""
        plan, logprob = policy.draw("lead", f"task {task}", random)
        moves = [Move("lead", 0, f"task {task}", plan, logprob)]
        right = 0
        for worker in range(self.workers):
            action, logprob = policy.draw(f"worker {worker}", f"plan {plan}", random)
            hit = action == (plan + worker) % self.actions
            right += hit
            moves.append(Move(f"worker {worker}", 1, f"plan {plan}", action, logprob, float(hit)))
        action, logprob = policy.draw("editor", f"plan {plan}", random)
        moves.append(Move("editor", 2, f"plan {plan}", action, logprob))
        done = plan == task and action == (plan + 1) % self.actions
        return Played(tuple(moves), 4.0 * done, (right + 4 * done) / (self.workers + 4))


def _name(cell: tuple[int, int]) -> str:
    return f"{cell[0]},{cell[1]}"
