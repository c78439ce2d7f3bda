"""The evaluator process: kept alive, restarted, limited in time, and never the giver of a reward it did not mean."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

from spangrad.errors import RewardError
from spangrad.rollouts import load_command
from spangrad.rollouts.judging import Evaluator, FinishedRollout

ANSWERING = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    command, _, rest = str(asked["output"]).partition(" ")
    if command == "die":
        print("I am gone", file=sys.stderr, flush=True)
        os._exit(3)
    if command == "hang":
        import time
        time.sleep(60)
    if command == "say":
        print(rest, flush=True)
    elif command == "twice":
        print("0.1\\n0.2", flush=True)
    elif command == "echo":
        print(json.dumps({"pid": os.getpid(), "task": asked["task"]["number"], "rollout": asked["rollout"]}), flush=True)
    elif command == "answer-and-die":
        print(json.dumps({"pid": os.getpid()}), flush=True)
        sys.exit()
"""


class MakeEvaluator(Protocol):
    def __call__(self, program: str = ..., *, processes: int = ...) -> Evaluator: ...


@pytest.fixture
def make_evaluator(tmp_path: Path) -> Iterator[MakeEvaluator]:
    with ExitStack() as opened:

        def make(program: str = ANSWERING, *, processes: int = 1) -> Evaluator:
            (tmp_path / "judge.py").write_text(program)
            command = load_command([sys.executable, "judge.py"], tmp_path, noun="evaluator")
            evaluator = Evaluator(command, processes=processes)
            opened.callback(evaluator.close)
            return evaluator

        yield make


def rollout(output: Any, number: int = 0) -> FinishedRollout:
    return FinishedRollout(f"r-{number}", 1, f"t-{number}", {"number": number}, output)


async def pid_of(evaluator: Evaluator) -> int:
    """The process that answers."""
    return int((await evaluator.rewards(rollout("echo"), limit=30))["pid"])


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_one_process_is_asked_about_all_rollouts_in_turn(make_evaluator: MakeEvaluator) -> None:
    evaluator = make_evaluator()
    answers = await asyncio.gather(*(evaluator.rewards(rollout("echo", n), limit=30) for n in range(20)))
    assert [answer["task"] for answer in answers] == list(range(20))
    assert len({answer["pid"] for answer in answers}) == 1


async def test_several_processes_share_the_rollouts(make_evaluator: MakeEvaluator) -> None:
    evaluator = make_evaluator(processes=3)
    answers = await asyncio.gather(*(evaluator.rewards(rollout("echo", n), limit=30) for n in range(12)))
    assert [answer["task"] for answer in answers] == list(range(12))
    assert len({answer["pid"] for answer in answers}) == 3


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("0.5", {"reward": 0.5}),
        ("true", {"reward": 1.0}),
        ('{"correct": 1, "form": 0.25}', {"correct": 1.0, "form": 0.25}),
    ],
)
async def test_an_answer_is_a_number_or_numbers_by_name(
    make_evaluator: MakeEvaluator, answer: str, expected: dict[str, float]
) -> None:
    assert await make_evaluator().rewards(rollout(f"say {answer}"), limit=30) == expected


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("null", "answered is None, not a number"),
        ("NaN", "answered is nan"),
        ("[1]", r"answered is list \[1\], not a number"),
        ("{}", "answered is an empty mapping"),
        ('{"form": "good"}', "answered, 'form', is str 'good', not a number"),
        ('{"error": "no such file"}', "says: no such file"),
        ("loading the model", "answered 'loading the model', which is not JSON"),
        ('{"rollout": "r-7", "reward": 1}', "answered about 'r-7' when asked about 'r-0'"),
    ],
)
async def test_any_other_answer_fails_this_rollout_and_a_new_process_judges_the_next(
    make_evaluator: MakeEvaluator, answer: str, complaint: str
) -> None:
    evaluator = make_evaluator()
    before = await pid_of(evaluator)
    with pytest.raises(RewardError, match=complaint):
        await evaluator.rewards(rollout(f"say {answer}"), limit=30)
    assert await pid_of(evaluator) != before
    assert not is_alive(before)


async def test_a_process_that_dies_over_a_rollout_fails_it_with_its_last_words(make_evaluator: MakeEvaluator) -> None:
    evaluator = make_evaluator()
    with pytest.raises(RewardError, match=r"ended without an answer \(.*I am gone"):
        await evaluator.rewards(rollout("die"), limit=30)
    assert await evaluator.rewards(rollout("say 1"), limit=30) == {"reward": 1.0}


async def test_a_process_that_ends_between_rollouts_is_started_again_and_nothing_fails(
    make_evaluator: MakeEvaluator,
) -> None:
    evaluator = make_evaluator()
    pids = [(await evaluator.rewards(rollout("answer-and-die"), limit=30))["pid"] for _ in range(3)]
    assert len(set(pids)) == 3


async def test_an_answer_that_does_not_come_in_time_fails_the_rollout_and_ends_the_process(
    make_evaluator: MakeEvaluator,
) -> None:
    evaluator = make_evaluator()
    before = await pid_of(evaluator)
    with pytest.raises(RewardError, match=r"gave no answer within 0\.5 seconds"):
        await evaluator.rewards(rollout("hang"), limit=0.5)
    assert not is_alive(before)
    assert await evaluator.rewards(rollout("say 1"), limit=30) == {"reward": 1.0}


async def test_waiting_for_a_turn_does_not_count_as_time_of_the_rollout(make_evaluator: MakeEvaluator) -> None:
    evaluator = make_evaluator()
    hanging = asyncio.create_task(evaluator.rewards(rollout("hang"), limit=2.0))
    await asyncio.sleep(0)
    assert await evaluator.rewards(rollout("say 1", 1), limit=1.9) == {"reward": 1.0}
    with pytest.raises(RewardError, match="no answer"):
        await hanging


async def test_a_line_too_many_is_not_taken_for_the_answer_to_the_next_rollout(make_evaluator: MakeEvaluator) -> None:
    evaluator = make_evaluator()
    assert await evaluator.rewards(rollout("twice"), limit=30) == {"reward": 0.1}
    with pytest.raises(RewardError, match="printed more than one line for a rollout"):
        await evaluator.rewards(rollout("say 1"), limit=30)
    assert await evaluator.rewards(rollout("say 1"), limit=30) == {"reward": 1.0}


async def test_a_cancelled_question_ends_the_process(make_evaluator: MakeEvaluator) -> None:
    evaluator = make_evaluator()
    before = await pid_of(evaluator)
    asking = asyncio.create_task(evaluator.rewards(rollout("hang"), limit=None))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not is_alive(before)
    assert await evaluator.rewards(rollout("say 1"), limit=30) == {"reward": 1.0}


async def test_a_program_that_ends_at_once_is_no_reward(make_evaluator: MakeEvaluator) -> None:
    evaluator = make_evaluator("import sys\nsys.exit('no settings')")
    with pytest.raises(RewardError, match=r"ended .*no settings"):
        await evaluator.rewards(rollout("say 1"), limit=30)


async def test_what_json_cannot_carry_is_no_reward_and_asks_nobody(make_evaluator: MakeEvaluator) -> None:
    with pytest.raises(RewardError, match="What the agent returned cannot be sent to a judge"):
        await make_evaluator("raise SystemExit").rewards(rollout(object()), limit=30)


async def test_closing_ends_the_process(make_evaluator: MakeEvaluator) -> None:
    evaluator = make_evaluator()
    pid = await pid_of(evaluator)
    evaluator.close()
    assert not is_alive(pid)
