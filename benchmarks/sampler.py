"""Rollouts of two turns drawn by our sampler, by transformers' generate with left padding, and by vLLM on the CPU.

python benchmarks/sampler.py --json

64 rollouts of 8 tasks, the 135M model in fp32. A turn is 32 sampled tokens; the second turn's prompt is the first one's with its answer and
what a tool said. Each system is given token ids and gives token ids, without HTTP. First all must give the same greedy answers.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import measuring
import own_model
import peers
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from spangrad.backend import SampleRequest, SamplingParams
from spangrad_torch import TorchBackend

PEER: Final = "vllm"
TIE: Final = 1e-3
"""Logits as close as this are equal: systems add up in different orders, and either token may win."""
LONGEST: Final = 512
TEXT: Final = (
    "You answer questions about numbers with a calculator. Write the calculation, wait for what the calculator says, and then "
    "give the answer in one line. Never guess: a number that the calculator did not give is wrong, and so is one without its unit. "
)
QUESTION: Final = "Question {number}: a farm sells {number} boxes of {fruit} a day, each of {number} pieces. How many are sold in a week?"
FRUITS: Final = ("apples", "pears and plums", "cherries", "dark red grapes", "figs", "lemons", "wild berries", "melons")
TOOL: Final = " The calculator says: 1234. Go on from here and say what follows from it, in one line."

Ids = list[int]


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be drawn."""

    tasks: list[Ids]
    """A prompt of each."""
    group: int
    answer: int
    tool: Ids

    @property
    def prompts(self) -> list[Ids]:
        """Of all rollouts."""
        return [prompt for prompt in self.tasks for _ in range(self.group)]

    def second(self, prompts: Sequence[Ids], answers: Sequence[Ids]) -> list[Ids]:
        """The prompts of the second turn."""
        return [prompt + answer + self.tool for prompt, answer in zip(prompts, answers, strict=True)]


def main() -> None:
    """The command."""
    parser = own_model.parser(__doc__)
    parser.add_argument(
        "--without-generate", action="store_true", help="measure against vLLM only, which is sooner done"
    )
    chosen = parser.parse_args()
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        loaded = own_model.load_unending(chosen.model)
        backend = own_model.backend_of(loaded, chosen.threads)
        stack.callback(lambda: runner.run(backend.close()))
        work = _work(backend, small=chosen.small)
        ours, generate = Ours(backend, runner), Generate(loaded.folder)
        systems: dict[str, Any] = {"ours": ours} if chosen.without_generate else {"ours": ours, "generate": generate}
        peer = None
        if not chosen.without_peers:
            peer = peers.installed(PEER)
            theirs = stack.enter_context(peers.Conversation(peer, "sampler_vllm.py", str(chosen.threads)))
            theirs.ask(do="load", model=str(loaded.folder), longest=LONGEST, rows=len(work.prompts))
            systems["vllm"] = Vllm(theirs)
        ties = {name: _compared(generate, ours, system, work) for name, system in systems.items() if name != "ours"}
        figures = _timed(chosen.repeats, systems, work)
    result: dict[str, Any] = {
        "benchmark": "sampler",
        "repeats": chosen.repeats,
        "threads": chosen.threads,
        "rollouts": len(work.prompts),
        "prompt tokens": [len(ids) for ids in work.tasks],
        "answer tokens": work.answer,
        "tool tokens": len(work.tool),
        "greedy answers that part at a tie": ties,
        "seconds": {name: measuring.summary(found) for name, found in figures.items()},
        "times as fast": {
            f"{name}{clock}": measuring.ratios(figures[f"{name}{clock}"], figures[f"ours{clock}"])
            for name in systems
            if name != "ours"
            for clock in ("", ", processor")
        },
        "versions": {"ours": measuring.our_versions("torch", "transformers"), "theirs": peer.versions if peer else {}},
        "machine": measuring.machine(),
    }
    measuring.show(result, as_json=chosen.json)


def _work(backend: TorchBackend, *, small: bool) -> Work:
    """Prompts of different lengths, as a chat has them."""
    chat = backend.chat_format
    tasks = [
        chat.render(
            [
                {"role": "system", "content": "Calculate." if small else TEXT * 3},
                {"role": "user", "content": QUESTION.format(number=11 + 3 * task, fruit=fruit)},
            ]
        )
        for task, fruit in enumerate(FRUITS[:2] if small else FRUITS)
    ]
    return Work([list(ids) for ids in tasks], 2 if small else 8, 4 if small else 32, list(chat.encode(TOOL)))


def _timed(repeats: int, systems: dict[str, Any], work: Work) -> dict[str, list[float]]:
    """Seconds of all rollouts, by the clock and of the processor, in turns; the first turn is thrown away."""
    found: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        for name, system in systems.items():
            wall, processor = system.rollouts(work)
            if turn:
                found.setdefault(name, []).append(wall)
                found.setdefault(f"{name}, processor", []).append(processor)
    return found


class Ours:
    """Our sampler: all rollouts at once, each asking for its second turn when it has its first."""

    def __init__(self, backend: TorchBackend, runner: asyncio.Runner) -> None:
        self._sampler, self._runner = backend.policies["policy"].sampler, runner
        self._seed = random.Random(1)

    def greedy(self, prompts: Sequence[Ids], tokens: int) -> list[Ids]:
        """An answer to each."""

        async def all_of_them() -> list[Ids]:
            return list(await asyncio.gather(*(self._answer(ids, tokens, 0.0) for ids in prompts)))

        return self._runner.run(all_of_them())

    def rollouts(self, work: Work) -> tuple[float, float]:
        """Seconds."""

        async def rollout(prompt: Ids) -> None:
            answer = await self._answer(prompt, work.answer, 1.0)
            (second,) = work.second([prompt], [answer])
            await self._answer(second, work.answer, 1.0)

        async def all_of_them() -> tuple[float, float]:
            async with self._sampler.paused():
                pass  # as after an update: nothing is known of any prompt
            begun = time.perf_counter(), time.process_time()
            await asyncio.gather(*(rollout(prompt) for prompt in work.prompts))
            return time.perf_counter() - begun[0], time.process_time() - begun[1]

        return self._runner.run(all_of_them())

    async def _answer(self, prompt: Ids, tokens: int, temperature: float) -> Ids:
        params = SamplingParams(temperature=temperature, max_tokens=tokens, seed=self._seed.getrandbits(31))
        deltas = self._sampler.sample(SampleRequest(tuple(prompt), params))
        return [token async for delta in deltas for token in delta.token_ids]


class Generate:
    """transformers' generate: all rollouts of a turn as one batch, padded on the left."""

    def __init__(self, folder: Any) -> None:
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def greedy(self, prompts: Sequence[Ids], tokens: int) -> list[Ids]:
        """An answer to each."""
        return self._answers(prompts, tokens, do_sample=False)

    def rollouts(self, work: Work) -> tuple[float, float]:
        """Seconds."""
        begun = time.perf_counter(), time.process_time()
        drawn: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        answers = self._answers(work.prompts, work.answer, **drawn)
        self._answers(work.second(work.prompts, answers), work.answer, **drawn)
        return time.perf_counter() - begun[0], time.process_time() - begun[1]

    def gap(self, prompt: Ids, one: int, other: int) -> float:
        """Between the logits of two tokens."""
        with torch.no_grad():
            logits = self._model(input_ids=torch.tensor([prompt]), logits_to_keep=1).logits[0, -1]
        return abs(float(logits[one] - logits[other]))

    def _answers(self, prompts: Sequence[Ids], tokens: int, **drawn: Any) -> list[Ids]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        made: torch.Tensor = self._model.generate(  # type: ignore[operator]  # transformers types it as a tensor or a module
            input_ids=ids,
            attention_mask=mask,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=0,
            **drawn,
        )
        return [list(map(int, row)) for row in made[:, longest:].tolist()]


class Vllm:
    """vLLM's engine, in its own process."""

    def __init__(self, engine: peers.Conversation) -> None:
        self._engine = engine

    def greedy(self, prompts: Sequence[Ids], tokens: int) -> list[Ids]:
        """An answer to each."""
        found: list[Ids] = self._engine.ask(do="greedy", prompts=prompts, answer=tokens)
        return found

    def rollouts(self, work: Work) -> tuple[float, float]:
        """Seconds."""
        wall, processor = self._engine.ask(do="rollouts", prompts=work.prompts, answer=work.answer, tool=work.tool)
        return wall, processor


def _compared(judge: Generate, ours: Ours, system: Any, work: Work) -> int:
    """How many of the tasks' greedy answers part from ours where two tokens are equally likely; ends the command at other places."""
    ties = 0
    pairs = zip(ours.greedy(work.tasks, work.answer), system.greedy(work.tasks, work.answer), strict=True)
    for prompt, (mine, other) in zip(work.tasks, pairs, strict=True):
        if len(mine) != len(other):
            sys.exit(f"Answers of {len(mine)} and {len(other)} tokens")
        at = next((place for place, (one, two) in enumerate(zip(mine, other, strict=True)) if one != two), None)
        if at is not None:
            if judge.gap(prompt + mine[:at], mine[at], other[at]) > TIE:
                sys.exit(f"The greedy answers differ at token {at} of {prompt}")
            ties += 1
    return ties


if __name__ == "__main__":
    main()
