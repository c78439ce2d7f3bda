"""Log-probabilities of the learner in bf16 against those in fp32, on the same tokens."""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np
import on_device
import shapes
import torch
from measuring import significant

LIMIT: Final = 0.1
"""The mean difference in nats must be below it: a token's probability is then off by a tenth."""


def main() -> None:
    """The command."""
    chosen = on_device.options(__doc__)
    torch.backends.cuda.matmul.allow_tf32 = False
    transitions = shapes.batch("tool loop", small=chosen.small).transitions
    found = {}
    with asyncio.Runner() as runner:
        for precision in ("fp32", "bf16"):
            backend = on_device.backend(chosen, precision)
            try:
                found[precision] = np.concatenate(runner.run(backend.policies["policy"].learner.logprobs(transitions)))
            finally:
                runner.run(backend.close())
    difference = np.abs(found["bf16"] - found["fp32"])
    mean = float(difference.mean())
    figures = {
        "tokens": len(difference),
        "mean |difference|": significant(mean),
        "largest |difference|": significant(float(difference.max())),
    }
    on_device.report(figures, [] if mean < LIMIT else [f"mean |difference| {mean} is not below {LIMIT}"])


if __name__ == "__main__":
    main()
