"""Memory over a long run: 10,000 rollouts of 8 calls each, through gateway, store and runner, as training has them.

python benchmarks/memory.py --json
python benchmarks/memory.py --where     # slower: which lines hold what has been added

The model is scripted, all else is real: agents call over HTTP, every call and span goes into SQLite, every step's transitions are
extracted, credited and written to the ledger. Memory is the process's resident set after each step, when its garbage is collected and
the pages that the C library keeps for later are given back, so that what is counted is held. `--keep-free-pages` counts those too.
Needs Linux with glibc.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import tempfile
import time
import tracemalloc
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import measuring
import numpy as np

from spangrad import current_scope
from spangrad.capture import tracer_provider
from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.lightningrl import GRPO, Identical, LightningRL
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent
from spangrad.store import Store, open_store
from spangrad.testing import ByteChatFormat, ScriptedSampler
from spangrad.transitions import TransitionBatch, extract

CALLS: Final = 8
PER_STEP: Final = 200
"""Rollouts."""
GROUP: Final = 8
WARM: Final = 0.45
"""Share of the run that is not judged: of 10,000 rollouts the first 4,096 fill what is remembered of the latest ones."""


async def agent(task: dict[str, Any]) -> float:
    """A conversation of `CALLS` calls, each going on from the one before; the reward is made up."""
    scope = current_scope()
    assert scope is not None  # noqa: S101 - the runner set it
    tracer = tracer_provider().get_tracer("benchmark")
    url, headers = f"{scope.base_url}/chat/completions", {"authorization": f"Bearer {scope.api_key}"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Task {task['number']}"}]
    async with aiohttp.ClientSession() as session:
        for _ in range(CALLS):
            body = {"model": "policy", "messages": messages}
            with tracer.start_as_current_span("turn"):
                async with session.post(url, json=body, headers=headers) as response:
                    answer = await response.json()
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "Go on"}]
    return float(task["number"] % 3)


class Run:
    """The parts of a run, and its steps."""

    def __init__(self, store: Store, gateway: Gateway, sampler: ScriptedSampler) -> None:
        self._store, self._sampler = store, sampler
        self.runner = Runner(load_agent(agent, Path()), None, gateway, store, concurrency=32, timeout=60)
        self._algorithm = LightningRL(Identical(), GRPO())

    async def step(self, step: int, rollouts: int) -> None:
        """One step."""
        jobs = [
            RolloutJob(
                f"r{step}-{i}", 1, f"g{step}-{i // GROUP}", Task(f"t{step}-{i // GROUP}", {"number": i}), "train", step
            )
            for i in range(rollouts)
        ]
        results = await self.runner.run(jobs)
        batch = TransitionBatch(tuple(t for result in results for t in self._transitions(result)))
        self._store.add_ledger(self._algorithm.compute(batch).ledger(step))
        if len(batch) != rollouts * CALLS:
            sys.exit(f"Step {step}: {len(batch)} transitions of {rollouts} rollouts")
        self._sampler.requests.clear()  # the scripted model's own log, which a real one does not keep

    def _transitions(self, result: RolloutResult) -> Any:
        name = result.record.rollout_id
        return extract(
            result.record, self._store.calls(name), self._store.rewards(name), self._store.spans(name)
        ).transitions


def main() -> None:
    """The command."""
    parser = measuring.parser(__doc__)
    parser.add_argument("--where", action="store_true", help="print what holds the memory that was added")
    parser.add_argument(
        "--keep-free-pages", action="store_true", help="leave the C library the pages it keeps for later"
    )
    parser.add_argument("--rollouts", type=int, default=10_000, help="how many in all")
    chosen = parser.parse_args()
    steps, per_step = (5, 4) if chosen.small else (chosen.rollouts // PER_STEP, PER_STEP)
    begun = time.perf_counter()
    resident, runs = asyncio.run(_run(steps, per_step, where=chosen.where, trim=not chosen.keep_free_pages))
    seconds = time.perf_counter() - begun
    done = per_step * np.arange(1, steps + 1)
    judged = done > WARM * done[-1]
    slope = float(np.polyfit(done[judged], np.array(resident)[judged], 1)[0])
    result: dict[str, Any] = {
        "benchmark": "memory",
        "rollouts": steps * per_step,
        "calls": runs["calls"],
        "seconds": measuring.significant(seconds),
        "free pages": "kept" if chosen.keep_free_pages else "given back",
        "resident MB": {"first": resident[0], "warm": resident[int(WARM * steps)], "last": resident[-1]},
        "MB per 1000 rollouts, once warm": measuring.significant(1000 * slope),
        "resident MB by step": resident,
        "versions": measuring.our_versions(),
        "machine": measuring.machine(),
    }
    measuring.show(result, as_json=chosen.json)


async def _run(steps: int, per_step: int, *, where: bool, trim: bool) -> tuple[list[float], Any]:
    """Resident MB after each step, and what the store holds at the end."""
    resident = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = open_store(folder / "spangrad.db")
        stack.callback(store.close)
        sampler = ScriptedSampler(lambda _: "an answer of some length")
        gateway = stack.enter_context(
            Gateway(store, [Route("policy", TokenEngine(sampler, ByteChatFormat(), "scripted"), "policy")])
        )
        run = Run(store, gateway, sampler)
        with run.runner:
            for step in range(1, steps + 1):
                await run.step(step, per_step)
                gc.collect()
                if trim:
                    ctypes.CDLL("libc.so.6").malloc_trim(0)
                resident.append(_resident())
                if where and step == max(1, int(WARM * steps)):
                    tracemalloc.start()
                    before = tracemalloc.take_snapshot()
        if where:
            _show(before, tracemalloc.take_snapshot())
        return resident, store.counts()


def _show(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> None:
    """The lines that added most, on standard error."""
    for found in after.compare_to(before, "lineno")[:25]:
        print(found, file=sys.stderr)


def _resident() -> float:
    """MB this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 2)


if __name__ == "__main__":
    main()
