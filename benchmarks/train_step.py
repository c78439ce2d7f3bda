"""A GRPO step of the 135M model on the CPU, from prompts to moved weights, against TRL's GRPOTrainer.

python benchmarks/train_step.py --json

8 prompts of about 200 tokens, 8 answers of exactly 32 tokens each, fp32, all weights trained, AdamW. Ours is the whole way of a run: an
agent's calls over HTTP, every call on the disk before it is answered, transitions, advantages, update. Theirs is the trainer's own loop.
First both are given the same prompts, answers and advantages, and their gradients are compared.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import measuring
import numpy as np
import peers
import torch
from openai import AsyncOpenAI
from safetensors.torch import load_file

from spangrad.backend import UpdateBatch
from spangrad.gateway import Gateway, Route, SamplingOverride, TokenEngine
from spangrad.lightningrl import GRPO, Identical, LightningRL
from spangrad.store import RewardRecord, RolloutRecord, RolloutStatus, Store, open_store
from spangrad.transitions import Transition, TransitionBatch, extract
from spangrad_torch import TorchBackend, TorchOptions
from spangrad_torch._model import find_model, load_model
from spangrad_torch._precision import choose_compute

PEER: Final = "trl"
THREADS: Final = 2
LEARNING_RATE: Final = 1e-6
PROMPT: Final = "Here is what is known about number {number}. " + "It is a number, and like all numbers it can be added. " * 13


@dataclass(frozen=True, slots=True)
class Size:
    """Of a step."""

    prompts: int
    group: int
    answer: int


def main() -> None:
    """The command."""
    chosen = measuring.parser(__doc__).parse_args()
    size = Size(2, 2, 4) if chosen.small else Size(8, 8, 32)
    torch.set_num_threads(THREADS)
    with ExitStack() as stack:
        ours = stack.enter_context(Ours(size))
        result: dict[str, Any] = {"benchmark": "train_step", "repeats": chosen.repeats, "size": vars_of(size)}
        result["prompt tokens"] = {"ours": ours.prompt_lengths}
        if chosen.without_peers:
            figures = measuring.in_turns(chosen.repeats, {"ours": ours.step})
            measuring.show(result | {"seconds": {"ours": measuring.summary(figures["ours"])}}, as_json=chosen.json)
            return
        peer = peers.installed(PEER)
        theirs = stack.enter_context(peers.Conversation(peer, "train_step_trl.py", str(THREADS)))
        loaded = theirs.ask(
            do="load", model=str(ours.folder), texts=ours.texts, learning_rate=LEARNING_RATE, **vars_of(size)
        )
        result["prompt tokens"]["theirs"] = loaded["prompt_lengths"]
        result["gradient cosine"] = _compared(ours, theirs, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        figures = _timed(chosen.repeats, ours, theirs)
        result["seconds"] = {name: measuring.summary(found) for name, found in figures.items()}
        result["ratio"] = {
            part: measuring.ratios(figures[f"theirs {part}"], figures[f"ours {part}"])
            for part in ("step", "sampling", "learning")
        }
        result["versions"] = {"ours": measuring.our_versions("torch", "transformers"), "theirs": peer.versions}
        measuring.show(result | {"machine": measuring.machine()}, as_json=chosen.json)


def _timed(repeats: int, ours: Ours, theirs: peers.Conversation) -> dict[str, list[float]]:
    """Seconds of whole steps and of their parts, in turns; the first turn is thrown away."""
    found: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        mine = ours.step()
        other = theirs.ask(do="step")
        if turn:
            for who, parts in (("ours", ours.parts | {"step": mine}), ("theirs", other)):
                for part, seconds in parts.items():
                    found.setdefault(f"{who} {part}", []).append(seconds)
    return found


def _compared(ours: Ours, theirs: peers.Conversation, folder: Path) -> float:
    """The cosine of the angle between both gradients of one batch.

    Raises:
        SystemExit: they are not the same.
    """
    batch = ours.fixed_batch()
    rows = [{"prompt": list(t.prompt_ids), "answer": list(t.action_ids)} for t in batch.transitions.transitions]
    theirs.ask(do="gradient", rows=rows, advantages=batch.advantages.tolist(), path=str(folder / "theirs.safetensors"))
    mine, other = ours.gradient(batch), load_file(folder / "theirs.safetensors")
    if mine.keys() != other.keys():
        raise SystemExit(f"The gradients are of different weights: {sorted(mine.keys() ^ other.keys())[:3]}")
    dot = sum(float((mine[name].double() * other[name].double()).sum()) for name in mine)
    norms = [sum(float(g.double().square().sum()) for g in grads.values()) ** 0.5 for grads in (mine, other)]
    cosine = dot / (norms[0] * norms[1])
    if cosine < 0.9999 or abs(norms[0] / norms[1] - 1) > 1e-3:
        raise SystemExit(f"The gradients differ: cosine {cosine}, norms {norms}")
    return cosine


class Ours:
    """A model behind a gateway, and steps of it. A context manager."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._stack = ExitStack()
        self._runner = asyncio.Runner()
        self._steps = 0
        self.parts: dict[str, float] = {}
        """Seconds of the last step's parts."""
        self.folder = find_model("smollm2-135m").folder

    def __enter__(self) -> Ours:
        options = TorchOptions(
            model=str(self.folder), precision="fp32", decode_threads=THREADS, train_threads=THREADS
        )
        loaded = load_model(options.model)
        # No answer ends early: as many tokens for both.
        loaded = replace(loaded, end_ids=frozenset())
        compute = choose_compute(loaded, precision="fp32", decode_threads=THREADS, train_threads=THREADS)
        self._backend = TorchBackend(loaded, compute, options, seed=1)
        self._stack.callback(lambda: self._runner.run(self._backend.close()))
        self._policy = self._backend.policies["policy"]
        self.messages = [[{"role": "user", "content": PROMPT.format(number=n)}] for n in range(self._size.prompts)]
        prompts = [self._backend.chat_format.render(messages) for messages in self.messages]
        self.prompt_lengths = sorted({len(prompt) for prompt in prompts})
        self.texts = [self._backend.chat_format.decode(prompt) for prompt in prompts]
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._store: Store = open_store(folder / "spangrad.db")
        self._stack.callback(self._store.close)
        engine = TokenEngine(self._policy.sampler, self._backend.chat_format, name="torch")
        self._gateway = self._stack.enter_context(Gateway(self._store, [Route("policy", engine, "policy")]))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._runner.close()

    def step(self) -> float:
        """Seconds of one step."""
        return self._runner.run(self._step())

    async def _step(self) -> float:
        begun = time.perf_counter()
        self._steps += 1
        batch = await self._sampled()
        sampled = time.perf_counter()
        await self._policy.learner.update(batch)
        await self._policy.learner.publish()
        ended = time.perf_counter()
        self.parts = {"sampling": sampled - begun, "learning": ended - sampled}
        return ended - begun

    async def _sampled(self) -> UpdateBatch:
        """The rollouts of a step, and what is to be learnt from them."""
        names = [(p, m) for p in range(self._size.prompts) for m in range(self._size.group)]
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
        rollout_id = f"{self._steps}-{prompt}-{member}"
        sampling = SamplingOverride(1.0, 1.0, 0, self._size.answer, seed=hash((self._steps, prompt, member)) % 2**31)
        access = self._gateway.open_rollout(rollout_id, 1, sampling=sampling)
        now = time.time()
        record = RolloutRecord(
            rollout_id, 1, f"t{prompt}", f"{self._steps}-{prompt}", "train", self._steps, RolloutStatus.RUNNING, "", "", now, None
        )
        async with AsyncOpenAI(base_url=access.base_url, api_key=access.api_key) as client:
            answer = await client.chat.completions.create(
                model="policy", messages=self.messages[prompt], max_tokens=self._size.answer
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

    def gradient(self, batch: UpdateBatch) -> dict[str, torch.Tensor]:
        """By weight."""
        learner = self._policy.learner
        work = learner._prepare(batch, imitate=False)
        learner._accumulate(work, None)
        found = {name: weight.grad.clone() for name, weight in learner._model.named_parameters() if weight.grad is not None}
        learner._trained.drop_gradient()
        return found


def reward(answer: str) -> float:
    """Between 0 and 1, and different for nearly every answer."""
    return hashlib.sha256(answer.encode()).digest()[0] / 255


def vars_of(size: Size) -> dict[str, int]:
    return {"prompts_per_step": size.prompts, "group": size.group, "answer": size.answer}


if __name__ == "__main__":
    main()
