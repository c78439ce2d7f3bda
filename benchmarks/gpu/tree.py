"""The tree learner on a GPU: its gradient is that of flat sequences, in fp32 and nearly so in bf16, and how much faster it is.

With `--flex` the learner attends by FlexAttention and is held to the same: torch has its backward on a GPU only.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

import on_device
import shapes
import torch
from measuring import significant, summary
from own_model import cosine

from spangrad.backend import Backend

LIMITS: Final[dict[on_device.Precision, float]] = {"fp32": 0.9999, "bf16": 0.99}
"""The gradients' cosine must be above it. bf16 has 8 bits: each product is off by up to 1 in 256."""
REPEATS: Final = 5


def main() -> None:
    """The command."""
    chosen = on_device.options(__doc__, flex=True)
    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 is to mean fp32
    figures: dict[str, Any] = {}
    failures: list[str] = []
    flat: dict[str, dict[str, torch.Tensor]] = {}
    with asyncio.Runner() as runner:
        for precision in LIMITS:
            backend = on_device.backend(chosen, precision, tree_attention="flex" if chosen.flex else "auto")
            try:
                figures[precision] = _compared(backend, runner, flat, chosen)
            finally:
                runner.run(backend.close())
            failures += [
                f"{precision}, {shape}: cosine {found['cosine to flat fp32']}"
                for shape, found in figures[precision].items()
                if not found["cosine to flat fp32"] > LIMITS[precision]
            ]
    on_device.report(figures | on_device.memory(), failures)


def _compared(
    backend: Backend, runner: asyncio.Runner, flat: dict[str, dict[str, torch.Tensor]], chosen: argparse.Namespace
) -> dict[str, Any]:
    """Each shape's gradients and seconds of a gradient; `flat` gets those of flat sequences by the first call, in fp32."""
    learner: Any = backend.policies["policy"].learner
    if chosen.flex and not learner.shares_prefixes:
        on_device.report({}, ["the model takes no tree masks by FlexAttention"])
    found: dict[str, Any] = {}
    for shape in shapes.SHAPES:
        batch = shapes.batch(shape, small=chosen.small)
        if shape not in flat:
            learner.shares_prefixes = False
            flat[shape] = {name: value.cpu() for name, value in runner.run(learner.gradient(batch)).items()}
        learner.shares_prefixes = True
        of_tree = runner.run(learner.gradient(batch))
        angle, length = cosine(of_tree, {name: flat[shape][name].to(value.device) for name, value in of_tree.items()})
        del of_tree
        times: dict[str, list[float]] = {"tree": [], "flat": []}
        for turn in range((1 if chosen.small else REPEATS) + 1):
            for way, taken in times.items():
                learner.shares_prefixes = way == "tree"
                figure = on_device.seconds(lambda: runner.run(learner.gradient(batch)))  # noqa: B023 - called at once
                if turn:
                    taken.append(figure)
        found[shape] = {
            "cosine to flat fp32": angle,
            "length over flat fp32": significant(length),
            "seconds": {way: summary(taken) for way, taken in times.items()},
            "times as fast": summary([one / other for one, other in zip(times["flat"], times["tree"], strict=True)]),
        }
    return found


if __name__ == "__main__":
    main()
