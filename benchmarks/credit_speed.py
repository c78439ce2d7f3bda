"""How fast rewards become advantages: LightningRL against the estimators of verl's core_algos, on the CPU.

python benchmarks/credit_speed.py --json

100,000 transitions of 1,000 tasks: 25 rollouts of each, of 4 calls. The advantages must be equal before anything is timed, so the
statistics are over calls, as verl's are. "estimate": from the batch's arrays to returns and advantages, which is what verl's
functions do with its tensors. "whole": from the transitions as extraction gives them to the finished report, with token weights, a
reason for every transition, metrics and warnings; verl's side has nothing to set against that.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import measuring
import numpy as np
import peers

from spangrad.lightningrl import GRPO, RLOO, Grouping, Identical, LightningRL
from spangrad.transitions import FloatArray, Transition, TransitionBatch

PEER: Final = "verl"
CALLS: Final = 4
ROLLOUTS: Final = 25
"""Of a task."""
TOKENS: Final = 64
"""Of the longest answer; verl's tensors are so wide."""
ALGORITHMS: Final = {
    "grpo": LightningRL(Identical(), GRPO(), grouping=Grouping(statistics="call")),
    "rloo": LightningRL(Identical(), RLOO(), grouping=Grouping(statistics="call")),
}
TOLERANCE: Final = 1e-4
"""Of advantages; verl reckons in float32."""


def main() -> None:
    """The command."""
    chosen = measuring.parser(__doc__).parse_args()
    batch = made(tasks=4 if chosen.small else 1000)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peer, theirs = None, None
        if not chosen.without_peers:
            peer = peers.installed(PEER)
            theirs = stack.enter_context(peers.Conversation(peer, "credit_verl.py"))
            theirs.ask(do="load", path=_written(batch, folder / "batch.npz"))
        found = {name: _case(name, batch, chosen.repeats, theirs, folder) for name in ALGORITHMS}
    result: dict[str, Any] = {
        "benchmark": "credit_speed",
        "repeats": chosen.repeats,
        "transitions": len(batch),
        "groups": len(batch.group_keys),
        "algorithms": found,
        "versions": {"ours": measuring.our_versions("numpy"), "theirs": {} if peer is None else peer.versions},
        "machine": measuring.machine(),
    }
    measuring.show(result, as_json=chosen.json)


def made(tasks: int) -> TransitionBatch:
    """Rollouts of tasks, each with a reward of its own."""
    random = np.random.default_rng(0)
    lengths = random.integers(8, TOKENS, size=tasks * ROLLOUTS * CALLS, endpoint=True).tolist()
    rewards = random.normal(size=tasks * ROLLOUTS).tolist()
    return TransitionBatch(
        tuple(
            _transition(task, task * ROLLOUTS + rollout, call, rewards[task * ROLLOUTS + rollout], lengths)
            for task in range(tasks)
            for rollout in range(ROLLOUTS)
            for call in range(CALLS)
        )
    )


def _transition(task: int, rollout: int, call: int, reward: float, lengths: list[int]) -> Transition:
    length = lengths[rollout * CALLS + call]
    return Transition(
        rollout_id=f"rollout-{rollout}",
        attempt=1,
        group_id=f"task-{task}",
        call_id=f"call-{rollout}-{call}",
        choice=0,
        index=call,
        agent=None,
        policy="policy",
        policy_version=1,
        prompt_ids=(1,) * 16,
        action_ids=(2,) * length,
        logprobs=(-0.5,) * length,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        reward=None,
        rollout_reward=reward,
        depth=call,
        rollout_components={"reward": reward},
    )


def _case(
    name: str, batch: TransitionBatch, repeats: int, theirs: peers.Conversation | None, folder: Path
) -> dict[str, Any]:
    """One estimator: ours, verl's own and verl's vectorised one."""
    algorithm = ALGORITHMS[name]
    found = estimate(algorithm, batch)
    if not np.array_equal(algorithm.compute(batch).advantages, found):
        sys.exit("The advantages of the report differ from those of the estimator")
    measures: dict[str, Callable[[], float]] = {
        "estimate": lambda: _seconds(lambda: estimate(algorithm, batch)),
        "whole": lambda: _seconds(lambda: algorithm.compute(TransitionBatch(batch.transitions))),
    }
    if theirs is not None:
        for other in (name, f"{name}_vectorized"):
            path = folder / f"{other}.npy"
            theirs.ask(do="advantages", name=other, path=str(path))
            if not np.allclose(np.load(path), found, atol=TOLERANCE):
                sys.exit(f"The advantages of verl's {other} are not ours")
            measures[f"verl {other}"] = lambda other=other: float(theirs.ask(do="time", name=other))  # type: ignore[misc]
    figures = measuring.in_turns(repeats, measures)
    result: dict[str, Any] = {
        f"{who}, ms": measuring.summary([1000 * s for s in spent]) for who, spent in figures.items()
    }
    for other in (key for key in figures if key.startswith("verl")):
        for ours in ("estimate", "whole"):
            result[f"{ours}: times as fast as {other}"] = measuring.ratios(figures[other], figures[ours])
    return result


def estimate(algorithm: LightningRL, batch: TransitionBatch) -> FloatArray:
    """(T,) the advantages, from the batch's arrays."""
    comparisons = algorithm.credit.comparisons(batch)
    estimator = algorithm.estimator
    assert isinstance(estimator, GRPO | RLOO)  # noqa: S101 - none that goes by values
    return estimator.advantages(algorithm.grouping.applied(comparisons, batch, among=estimator.requirements.among))


def _seconds(work: Callable[[], object], least: float = 0.2) -> float:
    """Seconds of the processor that the work takes, on average over as many times as fill the least time."""
    times, begun = 0, time.process_time()
    while (taken := time.process_time() - begun) < least or not times:
        work()
        times += 1
    return taken / times


def _written(batch: TransitionBatch, path: Path) -> str:
    """The file with what verl needs: returns, answers' lengths and tasks."""
    tasks = batch.group_index[batch.rollout_index]
    returns = batch.rollout_rewards[batch.rollout_index]
    np.savez(path, returns=returns, lengths=batch.action_lengths, tasks=tasks)
    return str(path)


if __name__ == "__main__":
    main()
