"""The check command: what it is told, and what its exit status means."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from spangrad.errors import AgentError, RewardError
from spangrad.rollouts import load_command
from spangrad.rollouts.judging import Check, FinishedRollout

ROLLOUT = FinishedRollout("r-1", 2, "t/1", {"question": "2+2"}, {"answer": 4})


def check(tmp_path: Path, program: str) -> Check:
    (tmp_path / "check.py").write_text(program)
    return Check(load_command([sys.executable, "check.py"], tmp_path, noun="check"))


async def test_it_reads_task_and_output_in_the_folder_of_the_settings(tmp_path: Path) -> None:
    program = """
import json, os, pathlib, sys
assert json.load(sys.stdin) == {"question": "2+2"}
assert json.loads(pathlib.Path(os.environ["SPANGRAD_TASK_FILE"]).read_text()) == {"question": "2+2"}
assert (os.environ["SPANGRAD_TASK_ID"], os.environ["SPANGRAD_ROLLOUT_ID"]) == ("t/1", "r-1")
assert pathlib.Path("check.py").exists()
sys.exit(json.loads(pathlib.Path(os.environ["SPANGRAD_OUTPUT_FILE"]).read_text()) != {"answer": 4})
"""
    assert await check(tmp_path, program).rewards(ROLLOUT, limit=30) == {"check": 1.0}


async def test_a_text_is_in_the_file_as_it_is(tmp_path: Path) -> None:
    program = """
import os, pathlib, sys
sys.exit(pathlib.Path(os.environ["SPANGRAD_OUTPUT_FILE"]).read_text(encoding="utf-8") != "vier ☕")
"""
    rollout = FinishedRollout("r", 1, "t", None, "vier ☕")
    assert await check(tmp_path, program).rewards(rollout, limit=30) == {"check": 1.0}


@pytest.mark.parametrize(("status", "reward"), [(0, 1.0), (1, 0.0), (6, 0.0), (77, 0.0), (125, 0.0)])
async def test_status_0_passes_and_a_plain_failure_fails(tmp_path: Path, status: int, reward: float) -> None:
    assert await check(tmp_path, f"raise SystemExit({status})").rewards(ROLLOUT, limit=30) == {"check": reward}


@pytest.mark.parametrize("status", [2, 3, 4, 5, 126, 127, 128, 139])
async def test_a_status_that_means_trouble_is_no_reward_and_shows_what_was_said(tmp_path: Path, status: int) -> None:
    program = f"import sys\nprint('no tests ran')\nsys.exit({status})"
    with pytest.raises(RewardError, match=rf"did not take place: it exited with status {status}: no tests ran"):
        await check(tmp_path, program).rewards(ROLLOUT, limit=30)


async def test_a_check_that_a_signal_ends_is_no_reward(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="exited with status -9"):
        await check(tmp_path, "import os\nos.kill(os.getpid(), 9)").rewards(ROLLOUT, limit=30)


async def test_a_check_that_does_not_end_is_no_reward(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match=r"still running after 0\.5 seconds"):
        await check(tmp_path, "import time\ntime.sleep(60)").rewards(ROLLOUT, limit=0.5)


async def test_what_json_cannot_carry_is_no_reward_and_nothing_is_run(tmp_path: Path) -> None:
    judge = check(tmp_path, "import pathlib\npathlib.Path('ran').touch()")
    with pytest.raises(RewardError, match="What the agent returned cannot be sent to a judge"):
        await judge.rewards(FinishedRollout("r", 1, "t", {}, object()), limit=30)
    assert not (tmp_path / "ran").exists()


async def test_pytest_itself_passes_fails_and_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_answer.py").write_text(
        "import json, os, pathlib\n"
        "def test_answer():\n"
        "    assert json.loads(pathlib.Path(os.environ['SPANGRAD_OUTPUT_FILE']).read_text())['answer'] == 4\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_answer.py"]
    judge = Check(load_command(command, tmp_path, noun="check"))

    def rollout(output: Any) -> FinishedRollout:
        return FinishedRollout("r", 1, "t", {}, output)

    assert await judge.rewards(rollout({"answer": 4}), limit=60) == {"check": 1.0}
    assert await judge.rewards(rollout({"answer": 5}), limit=60) == {"check": 0.0}
    nothing = Check(load_command([*command[:-1], "-k", "no_such_test", "test_answer.py"], tmp_path, noun="check"))
    with pytest.raises(RewardError, match="exited with status 5"):
        await nothing.rewards(rollout({"answer": 4}), limit=60)


def test_a_program_that_does_not_exist_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="The check 'no-such-program' cannot be run"):
        load_command("no-such-program", tmp_path, noun="check")
