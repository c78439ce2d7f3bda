"""Does credit matter? The same policy, world and seeds, learnt with different ways of giving credit.

python benchmarks/credit/run.py --json
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from critic import Critic
from environments import Maze, Played, Team, World
from policy import Array, Policy

import spangrad
from spangrad.lightningrl import (
    GAE,
    GRPO,
    HGPO,
    Discounted,
    GiGPO,
    Graph,
    Grouping,
    Identical,
    LightningRL,
    ReturnToGo,
    TurnRewards,
)
from spangrad.transitions import Transition, TransitionBatch

ROLLOUTS = 8
"""Of each task in a step."""
AVERAGED = 5
"""Steps whose mean counts as how well the policy does."""
COLOURS = 10
"""Of the picture; further curves are dashed."""
FEWEST_SEEDS = 2
"""The bands of the curves need a spread."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A world, and how long and fast it is learnt."""

    world: World
    steps: int
    learning_rate: float
    reach: float
    """How well the policy has to do."""


def settings() -> dict[str, Setting]:
    """By name."""
    return {"maze": Setting(Maze(), 120, 0.1, 0.9), "team": Setting(Team(), 120, 0.1, 0.9)}


def methods() -> dict[str, LightningRL]:
    """By name. Options are the defaults; nothing was tuned."""
    return {
        "identical": LightningRL(Identical(), GRPO()),
        "discounted 0.95": LightningRL(Discounted(gamma=0.95), GRPO()),
        "return_to_go": LightningRL(ReturnToGo(), GRPO()),
        "turn_rewards": LightningRL(TurnRewards(), GRPO()),
        "gigpo": LightningRL(GiGPO(), GRPO()),
        "hgpo": LightningRL(HGPO(), GRPO()),
        "graph": LightningRL(Graph(), GRPO()),
        "identical, per agent": LightningRL(Identical(), GRPO(), grouping=Grouping(per_agent=True)),
        "return_to_go, per agent": LightningRL(ReturnToGo(), GRPO(), grouping=Grouping(per_agent=True)),
        "gae": LightningRL(Identical(), GAE()),
        "gae, lam 1": LightningRL(Identical(), GAE(lam=1.0)),
    }


def learn(setting: Setting, algorithm: LightningRL, seed: int) -> tuple[Array, Array]:
    """(steps,) how well each step's rollouts went, and how many calls had been made after it."""
    random = np.random.default_rng(seed)
    world = setting.world
    policy = Policy(world.states(), world.actions, setting.learning_rate)
    critic = Critic(world.states())
    solved, calls = np.zeros(setting.steps), np.zeros(setting.steps)
    for step in range(setting.steps):
        played = [(task, world.play(task, policy, random)) for task in range(world.tasks) for _ in range(ROLLOUTS)]
        batch = as_batch(played)
        moves = [move for _, run in played for move in run.moves]
        seen = [(move.agent, move.state) for move in moves]
        report = algorithm.compute(batch, values=critic.values(seen))
        if report.value_targets is not None:
            critic.learn(seen, np.concatenate(report.value_targets.targets))
        policy.update(
            seen,
            [move.action for move in moves],
            report.advantages * report.token_weights,
        )
        solved[step] = np.mean([run.solved for _, run in played])
        calls[step] = len(moves)
    return solved, calls.cumsum()


def as_batch(played: list[tuple[int, Played]]) -> TransitionBatch:
    """The runs as transitions of one sampled token each."""
    return TransitionBatch(
        tuple(
            Transition(
                rollout_id=f"rollout-{number}",
                attempt=1,
                group_id=f"task-{task}",
                call_id=f"call-{number}-{index}",
                choice=0,
                index=index,
                agent=move.agent,
                policy="policy",
                policy_version=0,
                prompt_ids=(0,),
                action_ids=(move.action,),
                logprobs=(move.logprob,),
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                reward=move.reward,
                rollout_reward=run.reward,
                depth=move.depth,
                state=f"{move.agent}: {move.state}",
            )
            for number, (task, run) in enumerate(played)
            for index, move in enumerate(run.moves)
        )
    )


def calls_needed(solved: Array, calls: Array, reach: float) -> float | None:
    """How many calls had been made when the mean of the latest steps first reached the mark; None if it never did."""
    means = np.convolve(solved, np.ones(AVERAGED) / AVERAGED, mode="valid")
    reached = np.flatnonzero(means >= reach)
    return float(calls[reached[0] + AVERAGED - 1]) if len(reached) else None


def measure(seeds: int) -> dict[str, Any]:
    """Everything, by world and method. A curve has the mean of the seeds and the standard error of that mean."""
    found: dict[str, Any] = {}
    for world, setting in settings().items():
        found[world] = {}
        for name, algorithm in methods().items():
            began = time.perf_counter()
            runs = [learn(setting, algorithm, seed) for seed in range(seeds)]
            needed = [calls_needed(solved, calls, setting.reach) for solved, calls in runs]
            known = [calls for calls in needed if calls is not None]
            curves = np.array([solved for solved, _ in runs])
            found[world][name] = {
                "reached": len(known),
                "calls_needed_median": float(np.median(known)) if known else None,
                "calls_needed": needed,
                "at_the_end": float(curves[:, -AVERAGED:].mean()),
                "curve_mean": curves.mean(axis=0).round(4).tolist(),
                "curve_standard_error": (curves.std(axis=0, ddof=1) / np.sqrt(seeds)).round(4).tolist(),
                "seconds": round(time.perf_counter() - began, 2),
            }
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Learning curves with bands of 1.96 standard errors."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only where a picture is wanted

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    for axes, (world, by_method) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        for number, (name, row) in enumerate(by_method.items()):
            mean, band = np.array(row["curve_mean"]), 1.96 * np.array(row["curve_standard_error"])
            (line,) = axes.plot(mean, label=name, linewidth=1.2, linestyle="-" if number < COLOURS else "--")
            axes.fill_between(range(len(mean)), mean - band, mean + band, color=line.get_color(), alpha=0.12)
        axes.set(title=world, xlabel="step", ylabel="how well the step's rollouts went", ylim=(0, 1.02))
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, default=10, help=f"at least {FEWEST_SEEDS}")
    parser.add_argument("--picture", type=Path, help="where to draw the learning curves")
    chosen = parser.parse_args()
    if chosen.seeds < FEWEST_SEEDS:
        parser.error(f"--seeds must be at least {FEWEST_SEEDS}: the bands need a spread")
    found = measure(chosen.seeds)
    if chosen.picture:
        draw(found, chosen.picture)
    if chosen.json:
        versions = {"python": platform.python_version(), "numpy": np.__version__, "spangrad": spangrad.__version__}
        print(
            json.dumps({"seeds": chosen.seeds, "versions": versions, "machine": platform.platform(), "worlds": found})
        )
        return
    for world, by_method in found.items():
        print(world)
        for name, row in by_method.items():
            needed = "never" if row["calls_needed_median"] is None else f"{row['calls_needed_median']:.0f}"
            print(
                f"  {name:<26}{row['reached']:>3} of {chosen.seeds} seeds  {needed:>8} calls  end {row['at_the_end']:.2f}"
            )


if __name__ == "__main__":
    main()
