"""spangrad plugins and spangrad doctor: what is installed, and whether it can be used."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from spangrad.cli._algorithm_matrix import Part, algorithm_matrix
from spangrad.cli._json_output import print_json
from spangrad.cli._main import JsonOption, app
from spangrad.errors import BackendError

if TYPE_CHECKING:
    from spangrad.backend import SamplerFactory


@app.command()
def plugins(as_json: JsonOption = False) -> None:
    """List the plug-ins that were found, what they bring, and why any is not usable."""
    from spangrad.plugins import load_plugins

    report = load_plugins().report
    if as_json:
        print_json({"plugins": [{**asdict(row), "state": row.state.value} for row in report]})
        return
    for row in report:
        brings = f"  brings {', '.join(row.brings)}" if row.brings else ""
        typer.echo(f"{row.name}  ({row.distribution} {row.version})  {row.state.value}{brings}")
        if row.reason:
            typer.echo(f"    {row.reason}" + (f" -> {row.cure}" if row.cure else ""))


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Check this installation: Python, machine, plug-ins, and what each backend honours. Loads neither torch nor a model."""
    from spangrad.plugins import PluginState, load_plugins

    loaded = load_plugins()
    machine: dict[str, object] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    backends: dict[str, dict[str, object]] = {
        row.name: {
            "losses": sorted(row.value.capabilities.losses),
            "estimator levels": sorted(row.value.capabilities.estimator_levels),
            "KL terms": sorted(row.value.capabilities.kl_forms),
            "corrections": sorted(row.value.capabilities.corrections),
            "entropy bonus": row.value.capabilities.entropy_bonus,
            "decoupled updates": row.value.capabilities.decoupled,
            "several policies": row.value.capabilities.several_policies,
            "initial model": row.value.capabilities.initial,
            "values": row.value.capabilities.values,
        }
        for row in loaded.backends
    }
    samplers = {row.name: _readiness(row.value) for row in loaded.samplers}
    algorithms = algorithm_matrix(loaded)
    broken = [row for row in loaded.report if row.state not in {PluginState.LOADED, PluginState.BLOCKED}]
    problems = [f"{row.distribution}: {row.state.value}, {row.reason} -> {row.cure}" for row in broken]
    if not backends:
        problems.append('No training backend is installed -> pip install "spangrad[torch]"')
    if as_json:
        print_json({"machine": machine, "backends": backends, "samplers": samplers, **algorithms, "problems": problems})
    else:
        _print_table("machine", machine)
        for name, table in backends.items():
            _print_table(f"backend {name}", table)
        if samplers:
            _print_table("samplers", samplers)
        for kind, parts in algorithms.items():
            _print_table(kind, {name: _in_a_line(part) for name, part in parts.items()})
        for problem in problems:
            typer.echo(f"problem: {problem}")
        typer.echo("Everything found can be used." if not problems else f"{len(problems)} problem(s) found.")
    if problems:
        sys.exit(1)


def _readiness(factory: SamplerFactory) -> str:
    """Whether servers could be started with default settings. Where not, that is no problem as long as nobody asks for them."""
    try:
        factory.require(factory.check({}))
    except BackendError as error:
        return f"not ready: {error}"
    return "ready"


def _in_a_line(part: Part) -> str:
    said = [f"needs: {', '.join(part['needs'])}" if part["needs"] else "needs nothing"]
    options = [f"{name} (required)" for name in part["required"]] + part["options"]
    return "; ".join([*said, f"options: {', '.join(options)}" if options else "takes no options"])


def _print_table(title: str, table: Mapping[str, object]) -> None:
    typer.echo(title)
    for key, value in table.items():
        typer.echo(f"  {key}: {', '.join(value) if isinstance(value, list) else value}")
