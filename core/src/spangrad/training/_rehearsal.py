"""Running an agent as it is, without training it: to see what is captured, or to collect transitions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from spangrad.plugins import Plugins
from spangrad.rollouts import RolloutJob, RolloutResult, Task, clients_pointed_at
from spangrad.store import RolloutStatus
from spangrad.training._collection import extraction_of, until_stopped
from spangrad.training._evaluation import path_safe
from spangrad.training._judges import load_judges
from spangrad.training._loaded_config import LoadedConfig
from spangrad.training._output import shown_output
from spangrad.training._preparation import Preparation, checked_parts, loaded_agent, reserved
from spangrad.training._problems import Problems
from spangrad.training._progress import ProgressDisplay
from spangrad.training._run import stop_on_signal
from spangrad.training._run_folder import RunFolder
from spangrad.training._session import Session, open_session
from spangrad.transitions import Reason


@dataclass(frozen=True, slots=True)
class RehearsedRollout:
    """What was captured of one rollout."""

    rollout_id: str
    task_id: str
    status: RolloutStatus
    error: str
    """Empty where nothing is set up to reward it, and so nobody did."""
    reward: float | None
    calls: int
    """HTTP requests to the model."""
    transitions: int
    """Sampled answers with all that training needs, once the rollout is rewarded."""
    left_out: Mapping[str, int]
    """Reason -> how many sampled answers are no transition because of it."""
    agents: tuple[str | None, ...]
    """The agent of each call, in the order they were received; None where it is not known."""
    output: Any
    """What it returned, or a text of it when JSON cannot carry that."""

    @property
    def failed(self) -> bool:
        """It did not end as an agent should; that nobody rewarded it is no failure."""
        return self.status not in {RolloutStatus.SUCCEEDED, RolloutStatus.NO_REWARD}

    @property
    def shown_status(self) -> str:
        """For people, to whom "no reward" must not read as a failure where none was meant to be given."""
        return "ended" if self.status is RolloutStatus.NO_REWARD and not self.error else self.status.value

    def as_json(self) -> dict[str, Any]:
        """As `spangrad run --json` prints it."""
        # Not asdict(): it copies, and the output may be anything.
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "status": self.status.value}


def prepare_rehearsal(
    loaded: LoadedConfig, load: Callable[[], Sequence[Task]], plugins: Plugins, *, port: int = 0
) -> Preparation:
    """Checks everything a rehearsal needs, without loading a model.

    Args:
        loaded: the settings.
        load: gives the tasks; as everything of the user's, they are imported with clients pointed at the gateway to come.
        plugins: where names are looked up.
        port: where the gateway will listen; 0 takes a free port.

    Raises:
        SpangradError: wrong settings, or an agent, function or file that cannot be loaded; every problem found is in the one
            message.
        GatewayError: the port is in use.
    """
    problems = Problems(loaded)
    address, environ = reserved(port), dict(os.environ)
    with clients_pointed_at(address.base_url):
        tasks = load()
        parts = checked_parts(loaded, plugins, problems)
        agent = loaded_agent(loaded, problems)
        judges = load_judges(loaded, problems, environ)
    problems.check()
    if parts.factory is None or parts.algorithm is None or parts.loss is None or agent is None:
        raise AssertionError("what is missing is a problem")
    return Preparation(
        loaded=loaded,
        plugins=plugins,
        factory=parts.factory,
        backend_options=parts.options,
        algorithm=parts.algorithm,
        loss=parts.loss,
        agent=agent,
        judges=judges,
        tasks=tuple(tasks),
        heldout={},
        demonstrations=(),
        address=address,
    )


async def rehearse(
    preparation: Preparation,
    open_folder: Callable[[], RunFolder],
    display: ProgressDisplay,
    *,
    rollouts_per_task: int = 1,
) -> tuple[RunFolder, list[RehearsedRollout]]:
    """Runs the agent on every task, sampled as the agent asks for, and records everything.

    Args:
        preparation: of `prepare_rehearsal`.
        open_folder: gives the run's folder; called once the model is loaded.
        display: shows how far it is.
        rollouts_per_task: how often each task is tried.

    Raises:
        StopRequestedError: it was asked to stop; what was finished is recorded.
        SpangradError: it cannot go on.
    """
    jobs = [
        RolloutJob(
            f"collect-{path_safe(task.task_id)}-{number}", 1, f"collect-{path_safe(task.task_id)}", task, "collect"
        )
        for task in preparation.tasks
        for number in range(rollouts_per_task)
    ]
    with stop_on_signal() as stop:
        async with open_session(preparation, open_folder) as session:
            display.line(f"Gateway at {session.gateway.base_url}, run folder {session.folder.path}")
            with display.phase("rollouts", len(jobs)) as phase:
                running = session.runner.run(jobs, on_result=lambda _: phase.advance())
                results = await until_stopped(running, stop)
            if orphans := [call for call in session.store.calls(None) if call.policy is not None]:
                display.line(f"{len(orphans)} calls named no rollout and belong to none (orphans)")
            return session.folder, [_rehearsed(session, result) for result in results]


def _rehearsed(session: Session, result: RolloutResult) -> RehearsedRollout:
    record = result.record
    extraction = extraction_of(session, record)
    calls = session.store.calls(record.rollout_id, record.attempt)
    left_out = Counter(entry.reason for entry in extraction.entries)
    unrewarded = left_out.pop(Reason.NO_REWARD, 0)
    return RehearsedRollout(
        rollout_id=record.rollout_id,
        task_id=record.task_id,
        status=record.status,
        error="" if record.status is RolloutStatus.NO_REWARD and not _rewarding(session) else record.error,
        reward=result.reward,
        calls=len(calls),
        transitions=len(extraction.transitions) + unrewarded,
        left_out={reason.value: count for reason, count in left_out.items()},
        agents=tuple(extraction.agents[call.call_id] for call in calls),
        output=shown_output(result),
    )


def _rewarding(session: Session) -> bool:
    """Whether anything is set up to give rewards, besides what the agent gives and returns itself."""
    judges = session.preparation.judges
    return bool(judges.function or judges.sources or judges.group or judges.weights.by_name)
