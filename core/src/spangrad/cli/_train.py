"""spangrad train and spangrad eval."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from spangrad.cli._json_output import print_json
from spangrad.cli._main import (
    DEFAULT_RUNS,
    INTERRUPTED,
    ConfigArgument,
    JsonOption,
    PortOption,
    RunsOption,
    SetOption,
    app,
)


@app.command()
def train(
    config: ConfigArgument,
    overrides: SetOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    port: PortOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the latest run of this name.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything without loading the model.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train an agent's model as a train.toml says."""
    from rich.console import Console

    from spangrad.plugins import load_plugins
    from spangrad.training import (
        StopRequestedError,
        new_run_folder,
        prepare,
        progress_display,
        resumed_run_folder,
        resumption_notes,
    )
    from spangrad.training import train as run

    console = Console(stderr=True)
    preparation = prepare(config, overrides or [], load_plugins(), port=port)
    name = preparation.config.name
    if dry_run:
        heldout = {key: len(tasks) for key, tasks in preparation.heldout.items()}
        missing = preparation.missing()
        report = {
            "config": str(config),
            "backend": preparation.config.backend,
            "tasks": len(preparation.tasks),
            "heldout": heldout,
            "missing": missing,
        }
        fine = f"{config} is fine: {report['tasks']} tasks, held out {heldout}"
        if missing is not None:
            fine += f"\nIt cannot be trained on this machine: {missing}"
        print_json(report) if as_json else typer.echo(fine)
        return
    resumed = resumed_run_folder(runs, name) if resume else None
    notes = resumption_notes(resumed, preparation) if resumed is not None else ()
    display = progress_display(console)
    try:
        for note in notes:
            display.line(note)
        summary = asyncio.run(run(preparation, lambda: resumed or new_run_folder(runs, name), display))
    except StopRequestedError:
        display.line(f"Stopped; what was finished is kept under {runs}")
        display.line(f"Go on with: {_resuming(config, overrides or [], runs, port, as_json=as_json)}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        display.close()
    if as_json:
        print_json(summary.as_json())
    else:
        out = Console()
        if summary.after:
            out.print(summary.table())
        out.print(
            f"Trained in {summary.train_seconds:.0f} s. Model, metrics, curve and summary: {runs / summary.run}",
            soft_wrap=True,
        )


@app.command("eval")
def evaluate(
    config: ConfigArgument,
    model: Annotated[
        str | None, typer.Option("--model", help="Model folder to measure instead of the config's.")
    ] = None,
    trained: Annotated[
        Path | None, typer.Option("--run", help="Measure the latest checkpoint of this run's folder, all its policies.")
    ] = None,
    overrides: SetOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    port: PortOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure a model, or the policies of a run, on the held-out tasks of a train.toml, greedily."""
    from rich.console import Console

    from spangrad.errors import ConfigError
    from spangrad.plugins import load_plugins
    from spangrad.training import RunFolder, StopRequestedError, new_run_folder, prepare, progress_display
    from spangrad.training import evaluate as run

    if model is not None and trained is not None:
        raise ConfigError("Either --model or --run says what is measured", cure="Leave one of them out")
    preparation = prepare(config, [*(overrides or []), *_instead(model)], load_plugins(), port=port)
    policies = [policy.name for policy in preparation.config.trained]
    if model is not None and len(policies) > 1:
        raise ConfigError(
            f"--model is one model, and {config} has the policies {', '.join(policies)}",
            cure="Measure those of a run with --run FOLDER; without either, what they begin as is measured",
        )
    if not preparation.heldout:
        raise ConfigError(f"{config} has no held-out tasks to evaluate on", cure="Add a [tasks.heldout] table")
    checkpoint = None if trained is None else RunFolder(trained).checkpoint_of(preparation.config.trained)
    name = f"{preparation.config.name}-evaluation"
    display = progress_display(Console(stderr=True))
    try:
        folder, measured = asyncio.run(run(preparation, lambda: new_run_folder(runs, name), display, checkpoint))
    except StopRequestedError:
        display.line("Stopped before all tasks were measured")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        display.close()
    if as_json:
        print_json({"run": str(folder.path), "evaluations": [one.as_json() for one in measured]})
        return
    for one in measured:
        success = one.success
        typer.echo(
            f"{one.heldout}: success {success.value:.3f} [{success.low:.3f}, {success.high:.3f}] "
            f"({success.successes}/{success.count}), mean reward {one.reward_mean:.3f}"
        )
    typer.echo(f"Rollouts and answers: {folder.path}")


def _instead(model: str | None) -> list[str]:
    """What overrides the settings' model; a path is meant from here."""
    if model is None:
        return []
    return [f"policy.model={_quoted(str(Path(model).resolve()) if Path(model).exists() else model)}"]


def _resuming(config: Path, overrides: list[str], runs: Path, port: int, *, as_json: bool) -> str:
    """The command line that goes on with a run that was stopped, quoted for a shell."""
    words = ["spangrad", "train", str(config)]
    for override in overrides:
        words += ["--set", override]
    words += ["--runs", str(runs)]
    if port:
        words += ["--port", str(port)]
    return shlex.join([*words, *["--json"] * as_json, "--resume"])


def _quoted(text: str) -> str:
    """The text as a TOML string."""
    return json.dumps(text, ensure_ascii=False)
