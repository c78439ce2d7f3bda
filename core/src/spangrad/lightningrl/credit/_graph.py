"""The rollouts of a task merged into one graph of states, and calls judged by where they lead in it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import numpy as np

from spangrad.errors import ConfigError
from spangrad.lightningrl._comparison import NO_GROUP, Comparison
from spangrad.lightningrl.credit._assigner import CreditNeeds, outcome
from spangrad.lightningrl.credit._options import check_gamma, check_weight
from spangrad.lightningrl.credit._states import state_index
from spangrad.lightningrl.credit._steps import rollout_steps
from spangrad.transitions import BoolArray, FloatArray, IntArray, TransitionBatch

SUCCESS = -1
"""The node that the last step of a successful rollout leads to."""
FAILURE = -2
"""The node that the last step of any other rollout leads to; no edge leaves it."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A = A(episode) + omega * A(graph) (GraphGPO, arXiv 2605.26684, equation 4 and the text around it).

    The calls of all rollouts of a task are the edges of one graph of states. d(s) is the fewest calls from a state to success,
    in whatever rollouts they were made, so a good step of a failed rollout counts as one. A call from s to s' earns
    goal * gamma^(d(s') + 1 - d(s)), which is all of the goal on a shortest way, and is compared with the calls made in s. A
    state from which nobody reached success is one call farther off than the farthest that somebody did. A task that nobody
    solved, and who was alone in a state, has the episode's part only: the rollouts' whole returns, compared as `Identical` does.

    Equation 4 is without d(s). It is the same for all calls made in s, so dividing by their deviation takes it out again; but
    far from the goal nothing would be left of the numbers beside the eps of that division.

    Built from summaries of the paper and its published code. What followed the last call is not known but for the rollout's reward: with at least `goal` it led to success, else to an
    end of its own. Where a step has several states (calls side by side), the nearest to success counts.
    """

    goal: float = 1.0
    """The rollout's own reward from which it counts as solved, above 0."""
    gamma: float = 0.1
    """How much less a call earns for each further call to success, above 0 and below 1 (the paper's omega)."""
    omega: float = 1.0
    """Weight of the graph's part against the episode's (the paper's beta_G over beta_E)."""
    needs: ClassVar[CreditNeeds] = CreditNeeds(states=True, own_groups=True)

    def __post_init__(self) -> None:
        check_gamma(self.gamma, least="above 0")
        check_weight("omega", self.omega)
        if self.gamma == 1:
            raise ConfigError(
                "gamma is 1: all distances would earn the same", cure="Give a number below 1, such as 0.1"
            )
        if type(self.goal) not in {int, float} or not isfinite(self.goal) or self.goal <= 0:
            raise ConfigError(f"goal is {self.goal!r}", cure="Give the reward of a solved rollout, a number above 0")

    def comparisons(self, batch: TransitionBatch) -> tuple[Comparison, ...]:
        """Whole returns among rollouts and, where a task was solved, the calls' ways to success among those of one state."""
        solved: BoolArray = batch.rollout_rewards >= self.goal
        if not solved.any():
            return (outcome(batch),)
        states = state_index(batch)
        tasks = batch.group_index[batch.rollout_index]
        edges = _edges(batch, states, solved)
        distances = _distances(states, edges)
        ahead = np.array([min(distances.get(target, np.inf) for target in targets) for targets in edges])
        here = np.array([distances.get(state, np.inf) for state in states.tolist()])
        cut_off = _farthest(batch, here, tasks)[tasks] + 1
        detour = np.minimum(ahead, cut_off) + 1 - np.minimum(here, cut_off)
        told = np.isin(tasks, batch.group_index[solved])
        part = Comparison(
            np.where(told, self.goal * self.gamma**detour, 0.0),
            np.where(told, states, NO_GROUP),
            np.arange(len(batch)),
            weight=self.omega,
        )
        return outcome(batch), part


def _edges(batch: TransitionBatch, states: IntArray, solved: BoolArray) -> list[list[int]]:
    """For each transition, the nodes it leads to: the states of the next step."""
    edges: list[list[int]] = [[] for _ in batch.transitions]
    for steps, success in zip(rollout_steps(batch), solved, strict=True):
        targets = [SUCCESS if success else FAILURE]
        for _, members in reversed(steps):
            for member in members:
                edges[member] = targets
            targets = sorted(set(states[members].tolist()))
    return edges


def _distances(states: IntArray, edges: list[list[int]]) -> dict[int, int]:
    """Fewest calls from each node to success, for those from which somebody got there."""
    sources: dict[int, list[int]] = {}
    for source, targets in zip(states.tolist(), edges, strict=True):
        for target in targets:
            sources.setdefault(target, []).append(source)
    distances = {SUCCESS: 0}
    ahead = deque([SUCCESS])
    while ahead:
        node = ahead.popleft()
        for source in sources.get(node, ()):
            if source not in distances:
                distances[source] = distances[node] + 1
                ahead.append(source)
    return distances


def _farthest(batch: TransitionBatch, distances: FloatArray, tasks: IntArray) -> FloatArray:
    """(G,) the largest finite distance among each task's states; 0 where it has none."""
    farthest = np.zeros(len(batch.group_keys), dtype=np.float64)
    known = np.isfinite(distances)
    np.maximum.at(farthest, tasks[known], distances[known])
    return farthest
