"""A GRPO step of the 135M model on the CPU, from prompts to moved weights, against TRL's GRPOTrainer.

python benchmarks/train_step.py --json

8 prompts of about 200 tokens, 8 answers of exactly 32 tokens each, fp32, all weights trained, AdamW. Ours is the whole way of a run: an
agent's calls over HTTP, every call on the disk before it is answered, transitions, advantages, update. Theirs is the trainer's own loop.
First both are given the same prompts, answers and advantages, and their gradients are compared.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import measuring
import numpy as np
import own_model
import peers
from openai import AsyncOpenAI
from safetensors.torch import load_file

from spangrad.backend import UpdateBatch
from spangrad.gateway import Gateway, Route, SamplingOverride, TokenEngine
from spangrad.lightningrl import GRPO, Identical, LightningRL
from spangrad.store import RewardRecord, RolloutRecord, RolloutStatus, Store, open_store
from spangrad.transitions import Transition, TransitionBatch, extract

PEER: Final = "trl"
LEARNING_RATE: Final = 1e-6
PROMPT: Final = "Here is what is known about number {number}. "
MORE: Final = "It is a number, and like all numbers it can be added. "
PARTS: Final = ("step", "sampling", "learning")
COSINE: Final = 0.9999
"""The gradients' must be above it."""
LENGTH: Final = 1e-3
"""So much longer or shorter than the other one may a gradient be."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a step."""

    prompts: int
    group: int
    answer: int
    sentences: int
    """Of a prompt."""


def main() -> None:
    """The command."""
    chosen = own_model.parser(__doc__).parse_args()
    size = Size(2, 2, 4, 1) if chosen.small else Size(8, 8, 32, 13)
    with ExitStack() as stack:
        ours = stack.enter_context(Ours(size, chosen.model, chosen.threads))
        result: dict[str, Any] = {
            "benchmark": "train_step",
            "repeats": chosen.repeats,
            "threads": chosen.threads,
            "size": asdict(size),
        }
        peer = theirs = None
        if not chosen.without_peers:
            peer = peers.installed(PEER)
            theirs = stack.enter_context(peers.Conversation(peer, "train_step_trl.py", str(chosen.threads)))
            theirs_lengths = theirs.ask(
                do="load", model=str(ours.folder), texts=ours.texts, learning_rate=LEARNING_RATE, **asdict(size)
            )
            if theirs_lengths != ours.prompt_lengths:
                sys.exit(f"The prompts are not equally long: {ours.prompt_lengths} and {theirs_lengths}")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            result["gradient cosine"] = _compared(ours, theirs, folder)
        figures = _timed(chosen.repeats, ours, theirs)
        result |= {
            "prompt tokens": ours.prompt_lengths,
            "answer tokens": size.answer,
            "tokens learnt from": ours.tokens,
        }
        result["seconds"] = {name: measuring.summary(found) for name, found in figures.items()}
        if peer is not None:
            result["times as fast"] = {
                f"{part}{clock}": measuring.ratios(figures[f"theirs {part}{clock}"], figures[f"ours {part}{clock}"])
                for part in PARTS
                for clock in ("", ", processor")
            }
        result["versions"] = {
            "ours": measuring.our_versions("torch", "transformers"),
            "theirs": {} if peer is None else peer.versions,
        }
        measuring.show(result | {"machine": measuring.machine()}, as_json=chosen.json)


def _timed(repeats: int, ours: Ours, theirs: peers.Conversation | None) -> dict[str, list[float]]:
    """Seconds of whole steps and of their parts, in turns; the first turn is thrown away."""
    found: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        for who, parts in (("ours", ours.step()), ("theirs", {} if theirs is None else theirs.ask(do="step"))):
            for part, seconds in parts.items():
                if turn:
                    found.setdefault(f"{who} {part}", []).append(seconds)
    return found


def _compared(ours: Ours, theirs: peers.Conversation, folder: Path) -> float:
    """The cosine of the angle between both gradients of one batch; ends the command where they differ."""
    batch = ours.fixed_batch()
    rows = [{"prompt": list(t.prompt_ids), "answer": list(t.action_ids)} for t in batch.transitions.transitions]
    path = folder / "theirs.safetensors"
    theirs.ask(do="gradient", rows=rows, advantages=batch.advantages.tolist(), path=str(path))
    cosine, length = own_model.cosine(ours.gradient(batch), load_file(path))
    if cosine <= COSINE or abs(length - 1) > LENGTH:
        sys.exit(f"The gradients differ: cosine {cosine}, ours {length} times as long")
    return cosine


class Ours:
    """A model behind a gateway, and steps of it. A context manager."""

    def __init__(self, size: Size, model: str, threads: int) -> None:
        self._size, self._model, self._threads = size, model, threads
        self._stack = ExitStack()
        self._steps = 0
        self.tokens: dict[str, int] = {}
        """Of the last step: computed by the learner, and what they would be if no prefix were shared."""

    def __enter__(self) -> Self:
        self._runner = self._stack.enter_context(asyncio.Runner())
        loaded = own_model.load_unending(self._model)
        self.folder = loaded.folder
        backend = own_model.backend_of(loaded, self._threads)
        self._stack.callback(lambda: self._runner.run(backend.close()))
        self._policy = backend.policies["policy"]
        self._questions = [
            PROMPT.format(number=number) + MORE * self._size.sentences for number in range(self._size.prompts)
        ]
        prompts = [backend.chat_format.render([{"role": "user", "content": text}]) for text in self._questions]
        self.prompt_lengths = sorted({len(prompt) for prompt in prompts})
        self.texts = [backend.chat_format.decode(prompt) for prompt in prompts]
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._store: Store = open_store(folder / "spangrad.db")
        self._stack.callback(self._store.close)
        engine = TokenEngine(self._policy.sampler, backend.chat_format, name="torch")
        self._gateway = self._stack.enter_context(Gateway(self._store, [Route("policy", engine, "policy")]))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def step(self) -> dict[str, float]:
        """Seconds of one step and of its parts, by the clock and of the processor."""
        return self._runner.run(self._step())

    async def _step(self) -> dict[str, float]:
        begun = np.array([time.perf_counter(), time.process_time()])
        self._steps += 1
        batch = await self._sampled()
        sampled = np.array([time.perf_counter(), time.process_time()])
        report = await self._policy.learner.update(batch)
        await self._policy.learner.publish()
        ended = np.array([time.perf_counter(), time.process_time()])
        self.tokens = {"computed": report.computed_tokens, "flat": int(report.metrics["flat_tokens"])}
        spent = {"step": ended - begun, "sampling": sampled - begun, "learning": ended - sampled}
        return {
            f"{part}{clock}": float(seconds[place])
            for part, seconds in spent.items()
            for place, clock in enumerate(("", ", processor"))
        }

    async def _sampled(self) -> UpdateBatch:
        """The rollouts of a step, and what is to be learnt from them."""
        names = [(prompt, member) for prompt in range(self._size.prompts) for member in range(self._size.group)]
        records = await asyncio.gather(*(self._rollout(prompt, member) for prompt, member in names))
        transitions: list[Transition] = []
        for record in records:
            found = extract(record, self._store.calls(record.rollout_id), self._store.rewards(record.rollout_id))
            transitions += found.transitions
        report = LightningRL(Identical(), GRPO()).compute(TransitionBatch(tuple(transitions)))
        return UpdateBatch(
            transitions=report.batch,
            learning_rate=LEARNING_RATE,
            advantages=report.advantages,
            token_weights=report.token_weights,
        )

    async def _rollout(self, prompt: int, member: int) -> RolloutRecord:
        """One agent's call, and its reward."""
        group, rollout_id = f"{self._steps}-{prompt}", f"{self._steps}-{prompt}-{member}"
        sampling = SamplingOverride(1.0, 1.0, 0, self._size.answer, seed=hash((self._steps, prompt, member)) % 2**31)
        access = self._gateway.open_rollout(rollout_id, 1, sampling=sampling)
        running, now = RolloutStatus.RUNNING, time.time()
        record = RolloutRecord(rollout_id, 1, f"t{prompt}", group, "train", self._steps, running, "", "", now, None)
        async with AsyncOpenAI(base_url=access.base_url, api_key=access.api_key) as client:
            answer = await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": self._questions[prompt]}],
                max_tokens=self._size.answer,
            )
        await asyncio.wrap_future(self._gateway.close_rollout(rollout_id, 1))
        value = reward(answer.choices[0].message.content or "")
        self._store.add_reward(RewardRecord(rollout_id, 1, None, "reward", value, "benchmark", now))
        ended = replace(record, status=RolloutStatus.SUCCEEDED, finished_at=time.time())
        self._store.save_rollout(ended)
        return ended

    def fixed_batch(self) -> UpdateBatch:
        """A batch for the comparison of gradients, with advantages that depend on nothing else."""
        self._steps += 1
        batch = self._runner.run(self._sampled())
        count = len(batch.transitions)
        advantages = np.random.default_rng(0).normal(size=count)
        lengths = batch.transitions.action_lengths
        return replace(batch, advantages=advantages, token_weights=1.0 / (count * lengths))

    def gradient(self, batch: UpdateBatch) -> dict[str, Any]:
        """By weight."""
        return self._runner.run(self._policy.learner.gradient(batch))


def reward(answer: str) -> float:
    """Between 0 and 1, and different for nearly every answer."""
    return hashlib.sha256(answer.encode()).digest()[0] / 255


if __name__ == "__main__":
    main()
