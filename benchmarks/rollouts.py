"""How many rollouts a second run on this machine: three instant calls each, against Agent Lightning 1.0's local mode.

python benchmarks/rollouts.py --json

The same agent (three calls by the standard library, a reward) and the same upstream. Ours is a function that the runner gives a thread
for each rollout; every call, reward and rollout is on the disk. Theirs is a class that `agl-controller` starts a Python process for each
rollout of; `agl-server` keeps what it sees in memory. Defaults, but that their controller looks for work every 0.2 s, not every 10 s.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import measuring
import peers
import servers

PEER: Final = "agentlightning-1.0"
ROLLOUTS: Final = {"spangrad": 300, "agentlightning": 24}
"""Of one measurement; a rate needs no more of theirs."""
POLL: Final = 0.2


class Ours:
    """The runner, with its gateway and its store."""

    def __init__(self, stack: ExitStack, folder: Path, upstream: int) -> None:
        arguments = (str(upstream), str(folder), str(peers.SCRIPTS))
        self._runner = stack.enter_context(servers.ours("rollouts.py", *arguments))
        self._runner.hear()

    def processor_seconds(self) -> float:
        """What it has had of the processor."""
        return servers.processor_seconds(self._runner.pid)

    def seconds(self, rollouts: int) -> float:
        """That so many rollouts take."""
        return float(self._runner.ask(rollouts=rollouts))


class Theirs:
    """Agent Lightning's server and its controller in local mode."""

    def __init__(self, stack: ExitStack, folder: Path, upstream: int) -> None:
        peer = peers.installed(PEER)
        port = servers.free_port()
        self._root, self._done = f"http://127.0.0.1:{port}", 0
        programs, quiet = peer.folder / "bin", ["hydra.run.dir=.", "hydra.output_subdir=null"]
        server = [str(programs / "agl-server"), f"port={port}", "host=127.0.0.1", "default_proxy.model_name=policy"]
        controller = [str(programs / "agl-controller"), "runner_type=local", f"agl_server.url={self._root}"]
        controller.append(f"local_runner.poll_interval={POLL}")
        health = f"{self._root}/healthz"
        self._processes = [
            stack.enter_context(servers.Server([*command, *quiet], health, folder / f"{name}.log", folder, environment))
            for name, command, environment in (
                ("agl-server", server, {}),
                ("agl-controller", controller, {"PYTHONPATH": str(peers.SCRIPTS)}),
            )
        ]
        self._post("/api/models", [{"model": "policy", "endpoint": f"http://127.0.0.1:{upstream}/v1"}])

    def processor_seconds(self) -> float:
        """What server, controller and agents have had of the processor."""
        return sum(servers.processor_seconds(process.pid) for process in self._processes)

    def seconds(self, rollouts: int) -> float:
        """That so many rollouts take, from the request to the end of the last."""
        config = {"local": {"agent_class": "rollout_agent:Agent"}}
        begun = time.perf_counter()
        self._post("/api/rollouts", [{"input": {}, "config": config} for _ in range(rollouts)])
        while (ended := self._ended())["total_terminal"] < self._done + rollouts:
            time.sleep(POLL / 10)
        seconds = time.perf_counter() - begun
        self._done += rollouts
        if failed := [item for item in ended["items"] if item["state"] != "succeeded"]:
            sys.exit(f"Rollouts of Agent Lightning failed: {failed[:3]}")
        return seconds

    def _ended(self) -> Any:
        with urllib.request.urlopen(f"{self._root}/api/rollouts/terminal?after={self._done}", timeout=60) as answer:  # noqa: S310
            return json.load(answer)

    def _post(self, path: str, body: Any) -> None:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self._root + path, json.dumps(body).encode(), headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=60):  # noqa: S310 - this machine's own
            pass


def main() -> None:
    """The command."""
    chosen = measuring.parser(__doc__).parse_args()
    spent: dict[str, list[float]] = {}

    def measure(name: str, side: Ours | Theirs) -> float:
        count = 8 if chosen.small else ROLLOUTS[name]
        before = side.processor_seconds()
        rate = count / side.seconds(count)
        spent.setdefault(name, []).append((side.processor_seconds() - before) / count)
        return rate

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(servers.ours("upstream.py")).hear()
        sides: dict[str, Ours | Theirs] = {"spangrad": Ours(stack, folder, upstream)}
        if not chosen.without_peers:
            sides["agentlightning"] = Theirs(stack, folder, upstream)
        figures = measuring.in_turns(
            chosen.repeats, {name: partial(measure, name, side) for name, side in sides.items()}
        )
    result: dict[str, Any] = {"benchmark": "rollouts", "repeats": chosen.repeats}
    for name, rates in figures.items():
        result[f"{name}, rollouts/s"] = measuring.summary(rates)
        milliseconds = [1000 * seconds for seconds in spent[name][1:]]
        result[f"{name}, ms of the processor a rollout"] = measuring.summary(milliseconds)
    versions = {"ours": measuring.our_versions()}
    if not chosen.without_peers:
        result["times as fast"] = measuring.ratios(figures["spangrad"], figures["agentlightning"])
        result["times as little of the processor"] = measuring.ratios(
            spent["agentlightning"][1:], spent["spangrad"][1:]
        )
        versions["theirs"] = peers.installed(PEER).versions
    measuring.show(result | {"versions": versions, "machine": measuring.machine()}, as_json=chosen.json)


if __name__ == "__main__":
    main()
