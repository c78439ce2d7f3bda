"""spangrad rollouts, spangrad explain and spangrad export: looking into a run that has been made."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spangrad.cli._json_output import print_json
from spangrad.cli._main import DEFAULT_RUNS, JsonOption, RunOption, app
from spangrad.cli._reward_text import reward_text
from spangrad.errors import CheckpointError, ConfigError, StoreError

if TYPE_CHECKING:
    from spangrad.store import Store

PHASES = ("train", "evaluate", "collect")
"""What rollouts are made for; programs of their own may name others."""


@app.command()
def rollouts(
    run: RunOption = None,
    phase: Annotated[str | None, typer.Option(help="train, evaluate or collect.")] = None,
    step: Annotated[int | None, typer.Option(help="Only of this step.")] = None,
    limit: Annotated[int, typer.Option(help="The latest so many.", min=1)] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the rollouts of a run."""
    with closing(_opened(_latest() if run is None else run)) as store:
        records = store.rollouts(phase=phase, step=step, limit=limit)
        if not records and phase is not None:
            _check_phase(phase, store)
        rewards = {(r.rollout_id, r.attempt): store.rewards(r.rollout_id, r.attempt) for r in records}
    rows: list[dict[str, Any]] = [
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
        typer.echo(
            f"{row['rollout_id']}  {row['status']}  reward {reward_text(row['reward'])}  {row['error']}".rstrip()
        )


@app.command()
def explain(
    rollout: Annotated[str, typer.Argument(help="Which rollout, as `spangrad rollouts` names it.", show_default=False)],
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a rollout's calls, tokens, mask, rewards, return and advantage, and why anything was left out.

    Without --run it is looked for in all runs under runs/, the latest one first.
    """
    from spangrad.store import explain as explained

    chosen = _run_with(rollout) if run is None else run
    with closing(_opened(chosen)) as store:
        if store.rollout(rollout) is None:
            raise StoreError(
                f"{chosen} has no rollout {rollout!r}",
                cure="Leave --run out to look in all runs, or see which it has: "
                + shlex.join(["spangrad", "rollouts", "--run", str(chosen)]),
            )
        explanation = explained(store, rollout, decode=_decoder(chosen))
    if as_json:
        print_json(explanation.to_json())
        return
    if run is None:
        typer.echo(f"Run {chosen}", err=True)
    typer.echo(explanation.render())


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Folder to write; must not exist.", show_default=False)],
    run: RunOption = None,
    policy: Annotated[str | None, typer.Option(help="Which policy, where the run has several.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's latest checkpoint as a Hugging Face folder; without --run, of the latest run that has one."""
    if folder.exists():
        raise ConfigError(f"{folder} exists already", cure="Name a folder that does not")
    chosen = _latest_trained() if run is None else run
    step = asyncio.run(_export(chosen, folder, policy))
    if as_json:
        print_json({"folder": str(folder), "run": str(chosen), "step": step})
    else:
        typer.echo(f"Step {step} of {chosen} written to {folder}")


async def _export(run: Path, folder: Path, policy: str | None) -> int:
    from spangrad.plugins import load_plugins
    from spangrad.training import POLICIES, RunFolder

    found = RunFolder(run).latest_checkpoint()
    if found is None:
        raise CheckpointError(f"{run} holds no checkpoint", cure="Give the folder of a run that has been trained")
    step, checkpoint = found
    settings = RunFolder(run).settings()
    if policy not in {None, *settings.policies} or (policy is None and len(settings.policies) > 1):
        what = f"has no policy {policy!r}" if policy else "has several policies"
        raise ConfigError(f"{run} {what}", cure=f"Give --policy with one of {', '.join(settings.policies)}")
    chosen = policy or settings.policies[0]
    factory = load_plugins().backends.get(settings.backend)
    backend = factory.create(settings.backend_options, seed=settings.seed, policies=[chosen])
    try:
        learner = backend.policies[chosen].learner
        await learner.load(checkpoint / POLICIES / chosen)
        await learner.export(folder)
    finally:
        await backend.close()
    return step


def _latest() -> Path:
    """The run under runs/ that was worked on last."""
    from spangrad.training import run_folders

    return run_folders(DEFAULT_RUNS)[0].path


def _latest_trained() -> Path:
    from spangrad.training import run_folders

    for run in run_folders(DEFAULT_RUNS):
        if run.latest_checkpoint() is not None:
            return run.path
    raise CheckpointError(f"No run under {DEFAULT_RUNS} has a checkpoint", cure="Name another with --run")


def _run_with(rollout: str) -> Path:
    """The latest run that has this rollout; runs that cannot be read are passed over, and named if none has it."""
    from spangrad.training import run_folders

    unreadable = []
    for run in run_folders(DEFAULT_RUNS):
        try:
            with closing(_opened(run.path)) as store:
                if store.rollout(rollout) is not None:
                    return run.path
        except StoreError as error:
            unreadable.append(error.what)
    raise StoreError(
        ". ".join([f"No run under {DEFAULT_RUNS} has a rollout {rollout!r}", *unreadable]),
        cure="See which there are with `spangrad rollouts --run FOLDER`; name the folder of another run with --run",
    )


def _opened(run: Path) -> Store:
    """The run's store, to be read."""
    from spangrad.store import open_store
    from spangrad.training import RunFolder

    store = RunFolder(run).store
    if not store.is_file():
        raise ConfigError(f"{run} is not the folder of a run: it holds no {store.name}", cure="Name one under runs/")
    return open_store(store, create=False)


def _check_phase(phase: str, store: Store) -> None:
    """Refuses a phase that no rollout can have."""
    known = sorted({*PHASES, *(record.phase for record in store.rollouts())})
    if phase not in known:
        raise ConfigError(f"There is no phase {phase!r}", cure=f"Name one of {', '.join(known)}")


def _decoder(run: Path) -> Callable[[Sequence[int]], str]:
    """Token ids -> text, as the run's tokenizer does it; loads no model."""
    from spangrad.plugins import load_plugins
    from spangrad.training import RunFolder

    settings = RunFolder(run).settings()
    return load_plugins().backends.get(settings.backend).chat_format(settings.backend_options).decode
