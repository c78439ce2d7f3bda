"""Sampler and learner, each in bf16: tokens a second of both, and how far apart their log-probabilities of the same tokens are.

The torch sampler always; vLLM's servers, started as `sampler = "vllm"` starts them, with `--sampler vllm`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import on_device
import shapes
from measuring import significant

from spangrad.backend import SampleRequest, SamplingParams, UpdateBatch
from spangrad.transitions import FloatArray, TransitionBatch

LIMIT: Final = 0.1
"""The mean difference in nats must be below it."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of what is drawn."""

    groups: int
    group: int
    answer: int


def main() -> None:
    """The command."""
    chosen = on_device.options(__doc__, sampler=("shared", "vllm"))
    size = Size(2, 2, 4) if chosen.small else Size(32, 8, 128)
    table: dict[str, Any] = {"sampler": chosen.sampler}
    if chosen.sampler == "vllm":
        table["vllm"] = (
            on_device.SERVERS | {"context": 1024} | ({"python": chosen.vllm_python} if chosen.vllm_python else {})
        )
    else:
        table["max_rows"] = size.groups * size.group
    backend = on_device.backend(chosen, "bf16", **table)
    with asyncio.Runner() as runner:
        try:
            figures, failures = _measured(backend.policies["policy"], runner, size)
        finally:
            runner.run(backend.close())
    on_device.report(figures | on_device.memory(), failures)


def _measured(policy: Any, runner: asyncio.Runner, size: Size) -> tuple[dict[str, Any], list[str]]:
    """Figures of one sampler with the learner beside it, and what is wrong."""
    runner.run(_drawn(policy, size, 1))  # what is compiled and allocated once
    drawn: list[tuple[tuple[int, ...], list[int], list[float]]] = []
    drawing = on_device.seconds(lambda: drawn.extend(runner.run(_drawn(policy, size, 2))))
    batch = _batch(drawn)
    learnt = np.concatenate(runner.run(policy.learner.logprobs(batch.transitions)))
    sampled = np.concatenate([np.array(logprobs) for _, _, logprobs in drawn])
    runner.run(policy.learner.gradient(batch))
    reports: list[Any] = []
    learning = on_device.seconds(lambda: reports.append(runner.run(policy.learner.update(batch))))
    publishing = on_device.seconds(lambda: runner.run(policy.learner.publish()))
    flat = sum(len(prompt) + len(answer) - 1 for prompt, answer, _ in drawn)
    figures = {
        "answers": len(drawn),
        "drawn tokens": len(sampled),
        "drawn tokens/s": significant(len(sampled) / drawing),
        "seconds of an update": significant(learning),
        "computed tokens/s of an update": significant(reports[0].computed_tokens / learning),
        "tokens/s of an update, shared prefixes counted each time": significant(flat / learning),
        "seconds of publishing": significant(publishing),
        "mismatch": _mismatch(sampled, learnt),
    }
    mean = float(np.abs(sampled - learnt).mean())
    return figures, [] if mean < LIMIT else [f"sampler and learner are {mean} apart on average, not below {LIMIT}"]


def _mismatch(sampled: FloatArray, learnt: FloatArray) -> dict[str, float]:
    """Of log-probabilities of drawn tokens. KL of the sampler from the learner, by the k3 estimate: exp(d) - 1 - d, never negative."""
    difference = learnt - sampled
    return {
        "mean |difference|": significant(float(np.abs(difference).mean())),
        "largest |difference|": significant(float(np.abs(difference).max())),
        "KL a token": significant(float((np.expm1(difference) - difference).mean())),
    }


async def _drawn(policy: Any, size: Size, seed: int) -> list[tuple[tuple[int, ...], list[int], list[float]]]:
    """Prompt, ids and log-probabilities of each answer; groups share a prompt."""
    draws = np.random.default_rng(seed)
    prompts = [tuple(draws.integers(5, shapes.VOCABULARY, 200).tolist()) for _ in range(size.groups)]

    async def one(prompt: tuple[int, ...], at: int) -> tuple[tuple[int, ...], list[int], list[float]]:
        params = SamplingParams(max_tokens=size.answer, seed=1000 * seed + at)
        ids: list[int] = []
        logprobs: list[float] = []
        async for delta in policy.sampler.sample(SampleRequest(prompt, params)):
            ids += delta.token_ids
            logprobs += delta.logprobs
        return prompt, ids, logprobs

    asked = [prompt for prompt in prompts for _ in range(size.group)]
    return list(await asyncio.gather(*(one(prompt, at) for at, prompt in enumerate(asked))))


def _batch(drawn: list[tuple[tuple[int, ...], list[int], list[float]]]) -> UpdateBatch:
    """The answers, with made-up advantages."""
    like = shapes.batch("one turn", small=True).transitions.transitions[0]
    rows = tuple(
        replace(
            like,
            rollout_id=str(at),
            call_id=str(at),
            prompt_ids=prompt,
            action_ids=tuple(ids),
            logprobs=tuple(logprobs),
        )
        for at, (prompt, ids, logprobs) in enumerate(drawn)
    )
    return UpdateBatch(
        transitions=TransitionBatch(rows),
        learning_rate=shapes.LEARNING_RATE,
        advantages=np.random.default_rng(0).normal(size=len(rows)),
        token_weights=np.array([1.0 / (len(rows) * len(row.action_ids)) for row in rows]),
    )


if __name__ == "__main__":
    main()
