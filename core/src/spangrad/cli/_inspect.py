"""spangrad rollouts, spangrad explain and spangrad export: looking into a run that has been made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from spangrad.cli._main import DEFAULT_RUNS, JsonOption, RunOption, app, print_json
from spangrad.errors import CheckpointError, ConfigError


@app.command()
def rollouts(
    run: RunOption = None,
    phase: Annotated[str | None, typer.Option(help="train, evaluate or collect.")] = None,
    step: Annotated[int | None, typer.Option(help="Only of this step.")] = None,
    limit: Annotated[int, typer.Option(help="The latest so many.", min=1)] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the rollouts of a run."""
    from spangrad.store import open_store

    chosen = _chosen(run)
    store = open_store(_store_of(chosen), create=False)
    try:
        records = store.rollouts(phase=phase, step=step, limit=limit)
        rewards = {(r.rollout_id, r.attempt): store.rewards(r.rollout_id, r.attempt) for r in records}
    finally:
        store.close()
    rows = [
        {
            "rollout_id": record.rollout_id,
            "attempt": record.attempt,
            "phase": record.phase,
            "step": record.step,
            "status": record.status.value,
            "reward": sum(r.value for r in given) if (given := rewards[record.rollout_id, record.attempt]) else None,
            "error": record.error,
        }
        for record in records
    ]
    if as_json:
        print_json({"rollouts": rows})
        return
    for row in rows:
        reward = "-" if row["reward"] is None else f"{row['reward']:.3f}"
        typer.echo(f"{row['rollout_id']}  {row['status']}  reward {reward}  {row['error']}".rstrip())


@app.command()
def explain(
    rollout: Annotated[str, typer.Argument(help="Which rollout, as `spangrad rollouts` names it.", show_default=False)],
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a rollout's calls, tokens, mask, rewards, return and advantage, and why anything was left out."""
    from spangrad.store import explain as explained
    from spangrad.store import open_store

    chosen = _chosen(run)
    store = open_store(_store_of(chosen), create=False)
    try:
        explanation = explained(store, rollout, decode=_decoder(chosen))
    finally:
        store.close()
    print_json(explanation.to_json()) if as_json else typer.echo(explanation.render())


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Folder to write; must not exist.", show_default=False)],
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's latest checkpoint as a Hugging Face folder."""
    if folder.exists():
        raise ConfigError(f"{folder} exists already", cure="Name a folder that does not")
    step = asyncio.run(_export(_chosen(run), folder))
    print_json({"folder": str(folder), "step": step}) if as_json else typer.echo(f"Step {step} written to {folder}")


async def _export(run: Path, folder: Path) -> int:
    from spangrad.plugins import load_plugins
    from spangrad.training import POLICY_FOLDER, RunFolder

    found = RunFolder(run).latest_checkpoint()
    if found is None:
        raise CheckpointError(f"{run} holds no checkpoint", cure="Give the folder of a run that has been trained")
    step, checkpoint = found
    settings = RunFolder(run).settings()
    factory = load_plugins().backends.get(settings.backend)
    backend = factory.create(settings.backend_options, seed=settings.seed)
    try:
        await backend.learner.load(checkpoint / POLICY_FOLDER)
        await backend.learner.export(folder)
    finally:
        await backend.close()
    return step


def _chosen(run: Path | None) -> Path:
    """The run that was named, or the latest one under runs/."""
    from spangrad.training import latest_run_folder

    return latest_run_folder(DEFAULT_RUNS).path if run is None else run


def _store_of(run: Path) -> Path:
    from spangrad.training import RunFolder

    store = RunFolder(run).store
    if not store.is_file():
        raise ConfigError(f"{run} is not the folder of a run: it holds no {store.name}", cure="Name one under runs/")
    return store


def _decoder(run: Path) -> Callable[[Sequence[int]], str]:
    """Token ids -> text, as the run's tokenizer does it; loads no model."""
    from spangrad.plugins import load_plugins
    from spangrad.training import RunFolder

    settings = RunFolder(run).settings()
    return load_plugins().backends.get(settings.backend).chat_format(settings.backend_options).decode
