"""spangrad rollouts, spangrad explain and spangrad export: looking into a run that has been made."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spangrad.cli._json_output import print_json
from spangrad.cli._main import DEFAULT_RUNS, JsonOption, RunOption, RunsOption, app
from spangrad.cli._reward_text import reward_text
from spangrad.errors import CheckpointError, ConfigError, StoreError

if TYPE_CHECKING:
    from spangrad.store import RolloutRecord, Store

PHASES = ("train", "evaluate", "collect")
"""What rollouts are made for; programs of their own may name others."""
_LONGEST_ERROR: Final = 200
"""Characters."""


@app.command()
def rollouts(
    run: RunOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    phase: Annotated[str | None, typer.Option(help="train, evaluate or collect.")] = None,
    step: Annotated[int | None, typer.Option(help="Only of this step.")] = None,
    limit: Annotated[int, typer.Option(help="The latest so many.", min=1)] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the rollouts of a run."""
    with closing(_opened(_latest(runs) if run is None else run)) as store:
        records = store.rollouts(phase=phase, step=step, limit=limit)
        if not records and phase is not None:
            _check_phase(phase, store)
        rows = [_row(store, record) for record in records]
    if as_json:
        print_json({"rollouts": rows})
        return
    for row in rows:
        agents = f"  {' -> '.join(row['agents'])}" if row["agents"] else ""
        typer.echo(
            f"{row['rollout_id']}  task {row['task_id']}  {row['status']}  reward {reward_text(row['reward'])}  "
            f"calls {row['calls']}{agents}  {_in_one_line(row['error'])}".rstrip()
        )


def _in_one_line(error: str) -> str:
    """The end of an error, where a traceback says what was raised; `explain` and --json show all of it."""
    lines = [" ".join(line.split()) for line in error.splitlines() if line.strip()]
    said = lines[-1] if lines else ""
    return said if len(said) <= _LONGEST_ERROR else f"{said[:_LONGEST_ERROR]}..."


def _row(store: Store, record: RolloutRecord) -> dict[str, Any]:
    """What a list of rollouts says of one."""
    from spangrad.transitions import extract

    rewards = store.rewards(record.rollout_id, record.attempt)
    calls = store.calls(record.rollout_id, record.attempt)
    spans = [span for span in store.spans(record.rollout_id) if span.attempt in {None, record.attempt}]
    agents = extract(record, calls, (), spans).agents
    return {
        "rollout_id": record.rollout_id,
        "task_id": record.task_id,
        "attempt": record.attempt,
        "phase": record.phase,
        "step": record.step,
        "status": record.status.value,
        "reward": sum(reward.value for reward in rewards) if rewards else None,
        "calls": len(calls),
        "agents": list(dict.fromkeys(name for call in calls if (name := agents[call.call_id]) is not None)),
        "error": record.error,
    }


@app.command()
def explain(
    rollout: Annotated[str, typer.Argument(help="Which rollout, as `spangrad rollouts` names it.", show_default=False)],
    run: RunOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    as_json: JsonOption = False,
) -> None:
    """Show a rollout's calls, tokens, mask, rewards, return and advantage, and why anything was left out.

    Without --run it is looked for in all runs under the folder --runs, the latest one first.
    """
    from spangrad.store import explain as explained

    chosen = _run_with(rollout, runs) if run is None else run
    with closing(_opened(chosen)) as store:
        if store.rollout(rollout) is None:
            raise StoreError(
                f"{chosen} has no rollout {rollout!r}",
                cure="Leave --run out to look in all runs, or see which it has: "
                + shlex.join(["spangrad", "rollouts", "--run", str(chosen)]),
            )
        decode = _decoder(chosen)
        explanation = explained(store, rollout, decode=decode)
    if as_json:
        print_json(explanation.to_json())
        return
    if run is None:
        typer.echo(f"Run {chosen}", err=True)
    if decode is None:
        typer.echo(
            "An endpoint answered, and no model was named whose tokenizer it has: give the run --model, or policy.model",
            err=True,
        )
    typer.echo(explanation.render())


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Folder to write; must not exist.", show_default=False)],
    run: RunOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    policy: Annotated[str | None, typer.Option(help="Which policy, where the run has several.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's latest checkpoint as a Hugging Face folder; without --run, of the latest run that has one."""
    if folder.exists():
        raise ConfigError(f"{folder} exists already", cure="Name a folder that does not")
    chosen = _latest_trained(runs) if run is None else run
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


def _latest(runs: Path) -> Path:
    """The run in that folder that was worked on last."""
    from spangrad.training import run_folders

    return run_folders(runs)[0].path


def _latest_trained(runs: Path) -> Path:
    from spangrad.training import run_folders

    for run in run_folders(runs):
        if run.latest_checkpoint() is not None:
            return run.path
    raise CheckpointError(f"No run under {runs} has a checkpoint", cure="Name another with --run")


def _run_with(rollout: str, runs: Path) -> Path:
    """The latest run that has this rollout; runs that cannot be read are passed over, and named if none has it."""
    from spangrad.training import run_folders

    unreadable = []
    for run in run_folders(runs):
        try:
            with closing(_opened(run.path)) as store:
                if store.rollout(rollout) is not None:
                    return run.path
        except StoreError as error:
            unreadable.append(error.what)
    raise StoreError(
        ". ".join([f"No run under {runs} has a rollout {rollout!r}", *unreadable]),
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


def _decoder(run: Path) -> Callable[[Sequence[int]], str] | None:
    """Token ids -> text, as the run's tokenizer does it; loads no model. None where the tokenizer is not known."""
    from spangrad.plugins import load_plugins
    from spangrad.training import RunFolder

    settings = RunFolder(run).settings()
    if not settings.tokenizer_known:
        return None
    return load_plugins().backends.get(settings.backend).chat_format(settings.backend_options).decode
