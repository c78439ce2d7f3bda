"""Runs in the environment of verl: advantages of a batch by an estimator of its core_algos, by name.

Questions: {"do": "load", "path": ...}; {"do": "advantages", "name": ..., "path": ...} writes one number per transition;
{"do": "time", "name": ...} answers seconds of the processor.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

LEAST = 0.2
"""Seconds to measure for."""


class Batch:
    """verl's tensors: one row per transition, its whole return as the reward of its last token."""

    def __init__(self, path: str) -> None:
        found = np.load(path)
        lengths = torch.from_numpy(found["lengths"])
        self._mask = (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).float()
        self._rewards = torch.zeros_like(self._mask)
        self._rewards[torch.arange(len(lengths)), lengths - 1] = torch.from_numpy(found["returns"]).float()
        self._tasks = np.array([f"task-{task}" for task in found["tasks"]], dtype=object)

    def advantages(self, name: str) -> torch.Tensor:
        """(T, tokens) as verl gives them."""
        estimate = get_adv_estimator_fn(name)
        advantages, _ = estimate(token_level_rewards=self._rewards, response_mask=self._mask, index=self._tasks)
        return advantages

    def seconds(self, name: str) -> float:
        """Of the processor, on average over as many times as fill the least time."""
        times, begun = 0, time.process_time()
        while (taken := time.process_time() - begun) < LEAST or not times:
            self.advantages(name)
            times += 1
        return taken / times


def main() -> None:
    """Answers until nothing more is asked."""
    torch.set_num_threads(1)
    batch: Batch | None = None
    for line in sys.stdin:
        question = json.loads(line)
        answer: Any = None
        if question["do"] == "load":
            batch = Batch(question["path"])
        elif batch is not None and question["do"] == "advantages":
            np.save(question["path"], batch.advantages(question["name"])[:, 0].numpy())
        elif batch is not None:
            answer = batch.seconds(question["name"])
        print(json.dumps({"answer": answer}), flush=True)


if __name__ == "__main__":
    main()
