"""A whole training run or evaluation, from a preparation to the files in the run's folder."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spangrad.rollouts import RolloutResult
from spangrad.training._checkpoint import load_policies
from spangrad.training._collection import collect
from spangrad.training._curve import draw_curve
from spangrad.training._evaluation import Evaluation, evaluation, evaluation_jobs
from spangrad.training._loop import Trainer
from spangrad.training._metrics import MetricsFile
from spangrad.training._output import shown_output
from spangrad.training._preparation import Preparation, settled_settings
from spangrad.training._progress import ProgressDisplay
from spangrad.training._run_file import write_whole
from spangrad.training._run_folder import RunFolder
from spangrad.training._session import open_session
from spangrad.training._settling import settle
from spangrad.training._summary import RunSummary


async def train(preparation: Preparation, open_folder: Callable[[], RunFolder], display: ProgressDisplay) -> RunSummary:
    """Trains to the end and writes the summary and the reward curve; goes on from the folder's checkpoint, if there is one.

    SIGINT and SIGTERM end the run after saving it; a second SIGINT ends it at once.

    Args:
        preparation: the checked settings.
        open_folder: gives the run's folder; called once the model is loaded.
        display: shows where the run is.

    Raises:
        StopRequestedError: the run was asked to stop and has been saved.
        SpangradError: the run cannot go on.
    """
    with stop_on_signal() as stop:
        async with open_session(preparation, open_folder) as session:
            folder = session.folder
            display.line(f"Gateway at {session.gateway.base_url}, run folder {folder.path}")
            for note in settled_settings(preparation, session.backend):
                display.line(note)
            summary = await Trainer(session, display, stop).run()
    summary.write(folder.summary)
    draw_curve(MetricsFile(folder.metrics).read(), folder.curve, title=folder.path.name)
    return summary


async def evaluate(
    preparation: Preparation,
    open_folder: Callable[[], RunFolder],
    display: ProgressDisplay,
    checkpoint: Path | None = None,
) -> tuple[RunFolder, list[Evaluation]]:
    """Measures the preparation's model on every held-out set, greedily; writes evaluation.json and answers.jsonl.

    Args:
        preparation: as for `train`.
        open_folder: likewise.
        display: likewise.
        checkpoint: the policies to measure; None for the model as it is loaded.

    Raises:
        StopRequestedError: it was asked to stop.
        CheckpointError: the checkpoint is damaged, or of another model.
        SpangradError: it cannot go on.
    """
    measured, answers = [], []
    with stop_on_signal() as stop:
        async with open_session(preparation, open_folder) as session:
            if checkpoint is not None:
                await load_policies(checkpoint, session.backend)
            for name, tasks in preparation.heldout.items():
                with display.phase(f"evaluate {name}", len(tasks)) as phase:
                    collection = await collect(session, evaluation_jobs(name, tasks, 0), phase, stop)
                settle(session, collection.excluded, 0)
                success_at = preparation.config.evaluation.success_at
                measured.append(evaluation(name, 0, session.versions, collection.results, success_at=success_at))
                answers += [_answer(name, result) for result in collection.results]
    folder = session.folder
    write_whole(folder.path / "evaluation.json", json.dumps([one.as_json() for one in measured], indent=2) + "\n")
    write_whole(folder.path / "answers.jsonl", "".join(json.dumps(answer) + "\n" for answer in answers))
    return folder, measured


def _answer(heldout: str, result: RolloutResult) -> dict[str, Any]:
    """A line of answers.jsonl."""
    return {
        "heldout": heldout,
        "task_id": result.job.task.task_id,
        "rollout_id": result.job.rollout_id,
        "status": result.status.value,
        "reward": result.reward,
        "output": shown_output(result),
    }


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets; after it a second one has its usual effect."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)

    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
