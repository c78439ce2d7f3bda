"""spangrad's runner and gateway in a process of their own, recording into an SQLite file.

Arguments: the upstream's port, the folder of the store, and that of the agent's module. Questions: {"rollouts"}, how many to run; the
answer is the seconds that took. Says {"answer": "ready"} first.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from spangrad import current_scope
from spangrad.gateway import EndpointEngine, Gateway, Route
from spangrad.rollouts import RolloutJob, Runner, Task, load_agent
from spangrad.store import RolloutStatus, open_store

CONCURRENCY: Final = 50
"""As many as Agent Lightning's local mode runs at once."""

sys.path.insert(0, sys.argv[3])
ours: Any = importlib.import_module("rollout_agent")


def agent(_task: Any) -> float:
    """One rollout."""
    scope = current_scope()
    assert scope is not None  # noqa: S101 - the runner set it
    ours.work(scope.base_url, scope.api_key)
    return float(ours.REWARD)


def main() -> None:
    """Answers until nothing more is asked."""
    store = open_store(Path(sys.argv[2]) / "spangrad.db")
    engine = EndpointEngine(f"http://127.0.0.1:{sys.argv[1]}/v1", policy_version=1)
    with Gateway(store, [Route("policy", engine, "policy")]) as gateway:
        runner = Runner(load_agent(agent, Path()), None, gateway, store, concurrency=CONCURRENCY, timeout=60)
        print(json.dumps({"answer": "ready"}), flush=True)
        for turn, line in enumerate(sys.stdin):
            jobs = [
                RolloutJob(f"r{turn}-{i}", 1, f"g{turn}", Task("t", {"number": i}), "collect")
                for i in range(json.loads(line)["rollouts"])
            ]
            begun = time.perf_counter()
            results = asyncio.run(runner.run(jobs))
            seconds = time.perf_counter() - begun
            if any(result.status is not RolloutStatus.SUCCEEDED for result in results):
                sys.exit(next(result.error for result in results if result.error))
            if store.counts()["calls"] % (ours.CALLS * len(jobs)):
                sys.exit("Calls are missing")
            print(json.dumps({"answer": seconds}), flush=True)
    store.close()


if __name__ == "__main__":
    main()
