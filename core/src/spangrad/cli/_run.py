"""spangrad run: an agent as it is, with every installed integration attached, and nothing trained."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spangrad.cli._json_output import print_json
from spangrad.cli._main import (
    DEFAULT_RUNS,
    INTERRUPTED,
    JsonOption,
    PortOption,
    RunsOption,
    SetOption,
    app,
)
from spangrad.cli._options import (
    BackendOption,
    EndpointModelOption,
    EndpointOption,
    ModelOption,
    configured,
    policy_options,
)
from spangrad.cli._reward_text import reward_text
from spangrad.errors import ConfigError

if TYPE_CHECKING:
    from spangrad.rollouts import Task
    from spangrad.training import LoadedConfig, RehearsedRollout

SHOWN = 80
"""Characters of a wrong option that are repeated to the user."""

AgentArgument = Annotated[
    list[str] | None,
    typer.Argument(help='"module:function", or a command line: -- python my_agent.py', show_default=False),
]


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    agent: AgentArgument = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A train.toml to take agent, model, tasks and reward from.")
    ] = None,
    reward: Annotated[str | None, typer.Option("--reward", help='Reward function, "module:function".')] = None,
    task: Annotated[list[str] | None, typer.Option("--task", help="A task's JSON; may be repeated.")] = None,
    tasks: Annotated[str | None, typer.Option("--tasks", help='Tasks: a .jsonl file or "module:function".')] = None,
    rollouts: Annotated[int, typer.Option("--rollouts", "-n", min=1, help="Rollouts of each task.")] = 1,
    model: ModelOption = None,
    endpoint: EndpointOption = None,
    endpoint_model: EndpointModelOption = None,
    backend: BackendOption = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Rollouts under way at once.")] = 8,
    timeout: Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds one rollout may take.")] = 300.0,
    overrides: SetOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    port: PortOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Run an agent without training it, unchanged, and show what was captured of it."""
    from rich.console import Console

    from spangrad.plugins import load_plugins
    from spangrad.training import StopRequestedError, new_run_folder, prepare_rehearsal, progress_display, rehearse

    given = {
        "--model": model,
        "--endpoint": endpoint,
        "--endpoint-model": endpoint_model,
        "--backend": backend,
        "--reward": reward,
    }
    if config is not None:
        loaded = configured(config, {"the agent": agent, **given}, overrides)
    else:
        loaded = _unconfigured(agent, given, concurrency, timeout, overrides)
    preparation = prepare_rehearsal(
        loaded, lambda: _tasks(loaded, task, tasks, configured=config is not None), load_plugins(), port=port
    )
    name = preparation.config.name if config is None else f"{preparation.config.name}-rehearsal"
    display = progress_display(Console(stderr=True))
    try:
        folder, rows = asyncio.run(
            rehearse(preparation, lambda: new_run_folder(runs, name), display, rollouts_per_task=rollouts)
        )
    except StopRequestedError:
        display.line(f"Stopped; what was finished is kept under {runs}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        display.close()
    if as_json:
        print_json({"run": str(folder.path), "rollouts": [row.as_json() for row in rows]})
    else:
        _show(rows, folder.path)
    if any(row.failed for row in rows):
        raise typer.Exit(1)


def _unconfigured(
    agent: list[str] | None,
    given: dict[str, str | None],
    concurrency: int,
    timeout: float,
    overrides: list[str] | None,
) -> LoadedConfig:
    from spangrad.training import unconfigured

    if not agent:
        raise ConfigError(
            "There is no agent to run", cure="spangrad run module:function, or: spangrad run -- python my_agent.py"
        )
    return unconfigured(
        "rehearsal",
        Path.cwd(),
        agent=agent,
        reward=given["--reward"],
        backend=given["--backend"] or "torch",
        policy=policy_options(given, overrides, "--config"),
        rollouts={"concurrency": concurrency, "timeout": timeout},
    )


def _tasks(loaded: LoadedConfig, task: list[str] | None, tasks: str | None, *, configured: bool) -> tuple[Task, ...]:
    """The tasks that were named; without any, those of the file, or a single one that is empty."""
    from spangrad.rollouts import Task
    from spangrad.training import load_tasks

    if task and tasks:
        raise ConfigError("--task and --tasks were both given", cure="Give one of them")
    if tasks or (configured and not task):
        key = "--tasks" if tasks else "tasks.train"
        return load_tasks(tasks or loaded.config.tasks.train, loaded.folder, key=key)
    return tuple(Task(str(number), _json(text)) for number, text in enumerate(task or ["{}"]))


def _json(text: str) -> Any:
    from spangrad.training import parsed

    try:
        return parsed(text)
    except ValueError as error:
        raise ConfigError(
            f"--task {_shortened(text)!r} is not JSON: {error}", cure="Quote it for the shell: '{\"a\": 1}'"
        ) from error


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _show(rows: list[RehearsedRollout], folder: Path) -> None:
    if len(rows) == 1 and rows[0].output is not None:
        output = rows[0].output
        typer.echo(output if isinstance(output, str) else json.dumps(output))
    for row in rows:
        typer.echo(
            f"{row.rollout_id}  {row.shown_status}  reward {reward_text(row.reward)}  calls {row.calls}  "
            f"transitions {row.transitions}"
        )
        if any(row.agents):
            typer.echo(f"  agents: {' -> '.join(agent or '?' for agent in row.agents)}")
        for reason, count in row.left_out.items():
            typer.echo(f"  left out: {count} ({reason})")
        if row.error:
            typer.echo(f"  {row.error}")
    command = shlex.join(["spangrad", "explain", rows[0].rollout_id, "--run", str(folder)])
    typer.echo(f"Recorded in {folder}; look closer with: {command}")
