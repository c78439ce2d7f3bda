"""How fast spans get into the store over HTTP: on the disk, against Agent Lightning 0.3's store in memory.

python benchmarks/store.py --json

The same spans, as OpenTelemetry exporters send them, eight senders at once, each waiting for its answer: OTLP in JSON to spangrad's gateway,
which answers when they are on the disk (SQLite, synced); OTLP in Protobuf to the server of `agl store` with its defaults, which keeps
them in memory. What each holds in the end is counted.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import measuring
import peers
import servers

sys.path.append(str(servers.LOAD))
from otlp import export

PEER: Final = "agentlightning-0.3"
SENDERS: Final = 8
BATCHES: Final = (4, 64)
"""Spans of a request: an attempt's, and what a busy exporter gathers."""
SPANS: Final = 4096
"""Of one measurement."""


class Ours:
    """The gateway, and its rollout."""

    def __init__(self, stack: ExitStack, folder: Path, load: servers.Load) -> None:
        self._gateway = stack.enter_context(servers.ours("gateway.py", "9", str(folder)))
        self._where, self._load = self._gateway.hear(), load
        self.sent = 0

    @property
    def pid(self) -> int:
        """Of the measured process."""
        return self._gateway.pid

    def measure(self, turn: int, batch: int, spans: int) -> Any:
        """One measurement."""
        bodies = [json.dumps(export(turn, n, batch, {})).encode() for n in range(spans // batch)]
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._where['key']}"}
        self.sent += spans
        return self._load.ask(bodies, self._where["port"], f"{self._where['path']}/traces", headers, SENDERS, None)

    def kept(self) -> int:
        """Spans in the store."""
        return int(self._gateway.ask(what="counts")["spans"])


class Theirs:
    """Agent Lightning's store server, and a rollout in it."""

    def __init__(self, stack: ExitStack, folder: Path, load: servers.Load) -> None:
        peer = peers.installed(PEER)
        self._port, self._load, self._folder = servers.free_port(), load, folder
        self._root = f"http://127.0.0.1:{self._port}/v1/agl"
        command = [str(peer.folder / "bin" / "agl"), "store", "--host", "127.0.0.1", "--port", str(self._port)]
        self._server = stack.enter_context(
            servers.Server(command, f"{self._root}/health", folder / "agl.log", folder, {})
        )
        self._translator = stack.enter_context(peers.Conversation(peer, "store_agentlightning.py"))
        rollout = self._call("/rollouts", {"input": {}})
        self._rollout = rollout["rollout_id"]
        self._resource = {
            "agentlightning.rollout_id": self._rollout,
            "agentlightning.attempt_id": rollout["attempt"]["attempt_id"],
        }
        self.sent = 0

    @property
    def pid(self) -> int:
        """Of the measured process."""
        return self._server.pid

    def measure(self, turn: int, batch: int, spans: int) -> Any:
        """One measurement."""
        path = self._folder / "translated"
        made = [json.dumps(export(turn, n, batch, self._resource)).encode() for n in range(spans // batch)]
        path.write_bytes(b"".join(base64.b64encode(body) + b"\n" for body in made))
        self._translator.ask(path=str(path))
        bodies = [base64.b64decode(line) for line in path.read_bytes().splitlines()]
        self.sent += spans
        headers = {"content-type": "application/x-protobuf"}
        return self._load.ask(bodies, self._port, "/v1/traces", headers, SENDERS, None)

    def kept(self) -> int:
        """Spans in the store."""
        return int(self._call(f"/spans?rollout_id={self._rollout}&limit=1")["total"])

    def _call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, {"content-type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - this machine's own
            return json.load(answer)


def main() -> None:
    """The command."""
    chosen = measuring.parser(__doc__).parse_args()
    spans = 256 if chosen.small else SPANS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load = servers.Load(stack.enter_context(servers.ours("client.py")), folder)
        sides: dict[str, Ours | Theirs] = {"spangrad": Ours(stack, folder, load)}
        if not chosen.without_peers:
            sides["agentlightning"] = Theirs(stack, folder, load)
        found = {f"{batch} spans a request": _case(sides, batch, spans, chosen.repeats) for batch in BATCHES}
        for name, side in sides.items():
            if side.kept() != side.sent:
                sys.exit(f"{name} holds {side.kept()} of {side.sent} spans")
    result: dict[str, Any] = {"benchmark": "store", "repeats": chosen.repeats, "spans": spans, "senders": SENDERS}
    versions = {"ours": measuring.our_versions("sqlalchemy", "uvicorn")}
    if not chosen.without_peers:
        versions["theirs"] = peers.installed(PEER).versions
    measuring.show(result | {"cases": found, "versions": versions, "machine": measuring.machine()}, as_json=chosen.json)


def _case(sides: dict[str, Ours | Theirs], batch: int, spans: int, repeats: int) -> dict[str, Any]:
    """All sides with requests of one size; every request of every turn holds spans of its own."""
    turns = {name: iter(range(1000 * batch, 1000 * batch + repeats + 1)) for name in sides}
    spent: dict[str, list[float]] = {name: [] for name in sides}

    def measure(name: str, side: Ours | Theirs) -> float:
        before = servers.processor_seconds(side.pid)
        found = side.measure(next(turns[name]), batch, spans)
        spent[name].append(servers.processor_seconds(side.pid) - before)
        if found["errors"]:
            sys.exit(f"{name} answers with errors: {found['errors']}")
        return float(spans / found["seconds"])

    figures = measuring.in_turns(repeats, {name: partial(measure, name, side) for name, side in sides.items()})
    result: dict[str, Any] = {}
    for name, values in figures.items():
        result[f"{name}, spans/s"] = measuring.summary(values)
        result[f"{name}, ms of the processor a span"] = measuring.summary([1000 * s / spans for s in spent[name][1:]])
    if "agentlightning" in figures:
        result["times as fast"] = measuring.ratios(figures["spangrad"], figures["agentlightning"])
        result["times as little of the processor"] = measuring.ratios(
            spent["agentlightning"][1:], spent["spangrad"][1:]
        )
    return result


if __name__ == "__main__":
    main()
