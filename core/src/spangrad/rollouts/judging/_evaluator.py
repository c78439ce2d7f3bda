"""An evaluator: a program of the user's, kept alive, that is asked one line of JSON per rollout and answers one."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from spangrad.capture import named_rewards
from spangrad.errors import RewardError
from spangrad.rollouts._agents import CommandAgent
from spangrad.rollouts.judging._evaluator_process import EvaluatorProcess
from spangrad.rollouts.judging._source import FinishedRollout

_SHOWN: Final = 200
"""Characters of an answer that an error quotes."""


class Evaluator:
    """Asks processes of one command, each about one rollout at a time.

    A process that has ended is started again for the next rollout; one that does not answer in time, or answers with something
    else than rewards, is ended, since its next line could be mistaken for the answer to another rollout.

    Args:
        command: what is run, and where.
        processes: how many of them at once.
        environ: what they inherit.
    """

    name = "evaluator"

    def __init__(self, command: CommandAgent, *, processes: int = 1, environ: Mapping[str, str] | None = None) -> None:
        environment = dict(os.environ if environ is None else environ)
        self._who = f"The evaluator {command.name!r}"
        self._idle = [EvaluatorProcess(command, environment) for _ in range(processes)]
        self._all = tuple(self._idle)
        self._turns = asyncio.Semaphore(processes)
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="spangrad-evaluator")

    async def rewards(self, rollout: FinishedRollout, *, limit: float | None) -> Mapping[str, float]:
        """See `RewardSource`."""
        rollout.output_json()
        question = {
            "rollout": rollout.rollout_id,
            "attempt": rollout.attempt,
            "task_id": rollout.task_id,
            "task": rollout.task,
            "output": rollout.output,
        }
        async with self._turns:
            process = self._idle.pop()
            try:
                answer = await self._asked(process, json.dumps(question).encode() + b"\n", limit)
                return self._read(answer, rollout)
            except BaseException:
                process.end()
                raise
            finally:
                self._idle.append(process)

    async def _asked(self, process: EvaluatorProcess, line: bytes, limit: float | None) -> bytes:
        """The line that answers.

        Raises:
            RewardError: none came.
        """
        given_up = threading.Event()
        answer = asyncio.get_running_loop().run_in_executor(self._threads, process.ask, line, given_up)
        try:
            if not (await asyncio.wait({answer}, timeout=limit))[0]:
                given_up.set()
                process.kill()  # which ends the waiting for its answer too
                await asyncio.wait({answer})
                answer.exception()
                raise RewardError(f"{self._who} gave no answer within {limit:g} seconds")
        except asyncio.CancelledError:
            given_up.set()
            process.kill()
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        return answer.result()

    def _read(self, line: bytes, rollout: FinishedRollout) -> Mapping[str, float]:
        """The rewards an answer names.

        Raises:
            RewardError: it names none.
        """
        text = line.decode(errors="replace").strip()
        try:
            answer: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RewardError(
                f"{self._who} answered {text[:_SHOWN]!r}, which is not JSON",
                cure="Its standard output is for answers: print everything else to standard error",
            ) from error
        if isinstance(answer, Mapping):
            if isinstance(answer.get("error"), str):
                raise RewardError(f"{self._who} says: {answer['error']}")
            answer = dict(answer)
            if (about := answer.pop("rollout", rollout.rollout_id)) != rollout.rollout_id:
                raise RewardError(f"{self._who} answered about {about!r} when asked about {rollout.rollout_id!r}")
        return named_rewards(answer, giver=f"What {self._who[0].lower()}{self._who[1:]} answered")

    def close(self) -> None:
        """Ends all processes; asked again, they are started again."""
        for process in self._all:
            process.end()
