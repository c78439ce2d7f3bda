"""How fast calls go through the gateway, each on the disk before it is answered: against two gateways and a byte proxy.

python benchmarks/gateway.py --json

One client, one upstream that answers the same at once, and between them in turn: nothing, a proxy that looks at no byte, spangrad's gateway,
the gateway of Agent Lightning 1.0 and LiteLLM's proxy. All keep what they see: ours in SQLite, synced to the disk before the answer goes
out; Agent Lightning's in memory, as it always does; LiteLLM's by a callback that appends to a file after the answer has gone out.
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import measuring
import peers
import servers

CONCURRENCY: Final = (1, 16, 64)
FIGURES: Final = ("requests/s", "ms at the median", "ms at the 99th percentile", "ms of the processor a request")
FEW: Final = 64
"""Requests of a measurement that only shows that the benchmark works."""
_CHAT: Final = "/chat/completions"
_LITELLM_KEY: Final = "sk-benchmark"


@dataclass(frozen=True, slots=True)
class Way:
    """A way from the client to the upstream."""

    pid: int
    """Of the process that is measured: the last before the upstream, or the upstream itself."""
    port: int
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What a client has to ask for by itself, for token ids to come."""


def main() -> None:
    """The command."""
    chosen = measuring.parser(__doc__).parse_args()
    seconds, concurrency = (None, CONCURRENCY[:2]) if chosen.small else (2.0, CONCURRENCY)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = stack.enter_context(servers.ours("client.py"))
        model = stack.enter_context(servers.ours("upstream.py"))
        upstream = model.hear()
        ways = {"direct": Way(model.pid, upstream, "/v1"), **_our_ways(stack, folder, upstream)}
        if not chosen.without_peers:
            ways["agentlightning"] = stack.enter_context(_agentlightning(folder, upstream))
            ways["litellm"] = stack.enter_context(_litellm(folder, upstream))
        load = servers.Load(client, folder)
        for way in ways.values():  # the first request of all makes what later ones find
            _ask(load, way, 1, 1.0, stream=False)
        found = {
            f"{connections} connections": _case(load, ways, chosen.repeats, connections, seconds)
            for connections in concurrency
        }
        streamed = _case(
            load, {w: ways[w] for w in ("bytes", "spangrad")}, chosen.repeats, concurrency[1], seconds, stream=True
        )
        result: dict[str, Any] = {
            "benchmark": "gateway",
            "repeats": chosen.repeats,
            "seconds": seconds,
            "whole answers": found,
        }
        result["streamed"] = {f"{concurrency[1]} connections": streamed}
        result["versions"] = {"ours": measuring.our_versions("aiohttp", "uvicorn", "sqlalchemy")}
        if not chosen.without_peers:
            result["versions"]["theirs"] = {
                name: peers.installed(name).versions for name in ("agentlightning-1.0", "litellm")
            }
    measuring.show(result | {"machine": measuring.machine()}, as_json=chosen.json)


def _our_ways(stack: ExitStack, folder: Path, upstream: int) -> dict[str, Way]:
    """Those that need no peer."""
    proxy = stack.enter_context(servers.ours("byte_proxy.py", str(upstream)))
    gateway = stack.enter_context(servers.ours("gateway.py", str(upstream), str(folder)))
    where = gateway.hear()
    headers = {"authorization": f"Bearer {where['key']}"}
    return {
        "bytes": Way(proxy.pid, proxy.hear(), "/v1"),
        "spangrad": Way(gateway.pid, where["port"], where["path"], headers),
    }


@contextmanager
def _agentlightning(folder: Path, upstream: int) -> Iterator[Way]:
    """Agent Lightning's server with its defaults, a model and a rollout registered."""
    port, peer = servers.free_port(), peers.installed("agentlightning-1.0")
    root, options = f"http://127.0.0.1:{port}", [f"port={port}", "host=127.0.0.1", "default_proxy.model_name=policy"]
    command = [str(peer.folder / "bin" / "agl-server"), *options, "hydra.run.dir=.", "hydra.output_subdir=null"]
    with servers.Server(command, f"{root}/healthz", folder / "agl.log", folder, {}) as server:
        _post(f"{root}/api/models", [{"model": "policy", "endpoint": f"http://127.0.0.1:{upstream}/v1"}])
        _post(f"{root}/api/rollouts", [{"input": {}, "rollout_id": "rollout-1"}])
        yield Way(server.pid, port, "/proxy/rollout/rollout-1/attempt/0/mode/train/openai/v1")


@contextmanager
def _litellm(folder: Path, upstream: int) -> Iterator[Way]:
    """LiteLLM's proxy, one worker, with a callback that keeps every call."""
    port, peer = servers.free_port(), peers.installed("litellm")
    (folder / "litellm_capture.py").write_bytes((peers.SCRIPTS / "litellm_capture.py").read_bytes())
    model = {"model": "openai/policy", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
    settings = {
        "model_list": [{"model_name": "policy", "litellm_params": model}],
        "litellm_settings": {"callbacks": "litellm_capture.capture"},
        "general_settings": {"master_key": _LITELLM_KEY},
    }
    (folder / "litellm.yaml").write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    command = [str(peer.folder / "bin" / "litellm"), "--config", "litellm.yaml", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--num_workers", "1"]
    environment = {"CAPTURE_FILE": str(folder / "litellm.jsonl"), "LITELLM_LOG": "ERROR"}
    health = f"http://127.0.0.1:{port}/health/liveliness"
    with servers.Server(command, health, folder / "litellm.log", folder, environment) as server:
        headers = {"authorization": f"Bearer {_LITELLM_KEY}"}
        yield Way(server.pid, port, "/v1", headers, {"logprobs": True, "return_token_ids": True})


def _post(url: str, body: Any) -> None:
    """One request to a peer's API."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310 - this machine's own
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310
        pass


def _case(
    load: servers.Load,
    ways: Mapping[str, Way],
    repeats: int,
    connections: int,
    seconds: float | None,
    *,
    stream: bool = False,
) -> dict[str, Any]:
    """All ways at one number of connections."""
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in ways}

    def measure(name: str, way: Way) -> Callable[[], float]:
        def once() -> float:
            found = _asked(load, name, way, connections, seconds, stream=stream)
            measured[name].append(found)
            return found["requests/s"]

        return once

    figures = measuring.in_turns(repeats, {name: measure(name, way) for name, way in ways.items()})
    result: dict[str, Any] = {}
    for name, turns in measured.items():
        result[name] = {figure: measuring.summary([turn[figure] for turn in turns[1:]]) for figure in FIGURES}
    for other in ways.keys() - {"spangrad", "direct"}:
        result[f"times as fast as {other}"] = measuring.ratios(figures["spangrad"], figures[other])
        spent = [[turn["ms of the processor a request"] for turn in measured[name][1:]] for name in (other, "spangrad")]
        result[f"times as little of the processor as {other}"] = measuring.ratios(*spent)
    if "direct" in ways:
        for name in ways.keys() - {"direct"}:
            pairs = zip(measured[name][1:], measured["direct"][1:], strict=True)
            added = [through["ms at the median"] - direct["ms at the median"] for through, direct in pairs]
            result[name]["ms added at the median"] = measuring.summary(added)
    return result


def _asked(
    load: servers.Load, name: str, way: Way, connections: int, seconds: float | None, *, stream: bool
) -> dict[str, float]:
    """What the client measures.

    Raises:
        SystemExit: something was answered with an error.
    """
    before = servers.processor_seconds(way.pid)
    found = _ask(load, way, connections, seconds, stream=stream)
    spent = servers.processor_seconds(way.pid) - before
    if found["errors"] or not found["requests"]:
        sys.exit(f"{name} answers with errors: {found['errors']}")
    latencies = found["latencies"]
    rate, processor = found["requests"] / found["seconds"], 1000 * spent / found["sent"]
    values = (rate, latencies["p50"], latencies["p99"], processor)
    return dict(zip(FIGURES, values, strict=True))


def _ask(load: servers.Load, way: Way, connections: int, seconds: float | None, *, stream: bool) -> Any:
    """One measurement."""
    body = {
        "model": "policy",
        "messages": [
            {"role": "system", "content": "You are a careful agent. " * 10},
            {"role": "user", "content": "What is known about this? " * 24},
        ],
        "max_tokens": 32,
        **way.fields,
        **({"stream": True} if stream else {}),
    }
    headers = {"content-type": "application/json", **way.headers}
    bodies = [json.dumps(body).encode()] * (FEW if seconds is None else 1)
    return load.ask(bodies, way.port, way.path + _CHAT, headers, connections, seconds)


if __name__ == "__main__":
    main()
