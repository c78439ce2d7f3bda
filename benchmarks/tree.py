"""The learner on a prefix tree against the same learner on flat sequences: rollouts of the shapes agents have.

python benchmarks/tree.py --json

The 135M model, fp32, all weights trained; a whole update is timed, step of the optimiser included. Flat is what the learner does for models
whose attention takes no tree mask: each call by itself, without padding. The gradients must be equal before anything is timed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Final

import measuring
import own_model
import shapes

from spangrad.backend import UpdateBatch
from spangrad_torch import TorchBackend

COSINE: Final = 0.99999
"""The gradients' must be above it."""


def main() -> None:
    """The command."""
    parser = own_model.parser(__doc__)
    parser.add_argument("--shape", action="append", choices=tuple(shapes.SHAPES), help="only this one; may be repeated")
    chosen = parser.parse_args()
    backend = own_model.backend_of(own_model.load_unending(chosen.model), chosen.threads)
    with asyncio.Runner() as runner:
        try:
            found = {
                shape: _case(backend, runner, shapes.batch(shape, small=chosen.small), chosen.repeats)
                for shape in chosen.shape or shapes.SHAPES
            }
        finally:
            runner.run(backend.close())
    result = {
        "benchmark": "tree",
        "repeats": chosen.repeats,
        "threads": chosen.threads,
        "shapes": found,
        "versions": measuring.our_versions("torch", "transformers"),
        "machine": measuring.machine(),
    }
    measuring.show(result, as_json=chosen.json)


def _case(backend: TorchBackend, runner: asyncio.Runner, batch: UpdateBatch, repeats: int) -> dict[str, Any]:
    """One shape: tokens, seconds, and their ratios."""
    learner = backend.policies["policy"].learner
    gradients = []
    for shares in (True, False):
        learner.shares_prefixes = shares
        gradients.append(runner.run(learner.gradient(batch)))
    cosine, _ = own_model.cosine(*gradients)
    if cosine <= COSINE:
        sys.exit(f"The gradients differ: cosine {cosine}")
    del gradients
    tokens = {}
    figures: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        for way, shares in (("tree", True), ("flat", False)):
            learner.shares_prefixes = shares
            begun = time.perf_counter(), time.process_time()
            report = runner.run(learner.update(batch))
            ended = time.perf_counter(), time.process_time()
            tokens[way] = report.computed_tokens
            if turn:
                for place, clock in enumerate(("", ", processor")):
                    figures.setdefault(f"{way}{clock}", []).append(ended[place] - begun[place])
    ratio = tokens["flat"] / tokens["tree"]
    faster = {
        clock: [flat / tree for flat, tree in zip(figures[f"flat{end}"], figures[f"tree{end}"], strict=True)]
        for clock, end in (("wall", ""), ("processor", ", processor"))
    }
    return {
        "calls": len(batch.transitions),
        "gradient cosine": cosine,
        "tokens": tokens,
        "tokens, flat over tree": measuring.significant(ratio),
        "seconds": {name: measuring.summary(seconds) for name, seconds in figures.items()},
        "times as fast": {clock: measuring.summary(found) for clock, found in faster.items()},
        "share of the tokens' ratio": {
            clock: measuring.summary([times / ratio for times in found]) for clock, found in faster.items()
        },
    }


if __name__ == "__main__":
    main()
