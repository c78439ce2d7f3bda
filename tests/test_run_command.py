"""`spangrad run`: an agent as it is, nothing trained, everything recorded."""

from __future__ import annotations

import json
import sys

import pytest
from tests.conftest import Project

from spangrad.testing import ScriptedEndpoint

PROGRAM = """\
import json, os, sys
from openai import OpenAI

task = json.loads(os.environ["SPANGRAD_TASK"])
question = f"{task.get('a', 2)}+{task.get('b', 3)}"
answer = OpenAI().chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": question}])
print(json.dumps({"question": question, "answer": answer.choices[0].message.content}))
sys.exit(int(task.get("exit", 0)))
"""


@pytest.fixture
def program(project: Project) -> Project:
    (project.path / "program.py").write_text(PROGRAM)
    (project.path / "judge.py").write_text("def score(task, output):\n    return float('answer' in output)\n")
    return project


def test_a_command_line_runs_unchanged_and_its_calls_are_transitions(program: Project) -> None:
    report = program.json_of("run", "--json", "--backend", "scripted", "--", sys.executable, "program.py")
    (rollout,) = report["rollouts"]
    assert rollout["output"]["question"] == "2+3"
    assert (rollout["status"], rollout["reward"]) == ("no_reward", None)
    assert (rollout["calls"], rollout["transitions"], rollout["left_out"]) == (1, 1, {})

    explained = program.json("explain", rollout["rollout_id"], "--run", report["run"])
    (call,) = explained["attempts"][0]["calls"]
    assert call["model"] == "gpt-4o"
    assert call["action_text"].removesuffix("<|im_end|>") == rollout["output"]["answer"]


def test_every_task_is_run_as_often_as_asked_and_rewarded(program: Project) -> None:
    report = program.json_of(
        "run", "--json", "--backend", "scripted", "--reward", "judge:score", "-n", "3",
        "--task", '{"a": 1, "b": 1}', "--task", '{"a": 20, "b": 2}', "--", sys.executable, "program.py",
    )  # fmt: skip
    assert [row["output"]["question"] for row in report["rollouts"]] == ["1+1"] * 3 + ["20+2"] * 3
    assert [row["reward"] for row in report["rollouts"]] == [1.0] * 6
    assert len({row["rollout_id"] for row in report["rollouts"]}) == 6


def test_a_function_runs_too(program: Project) -> None:
    report = program.json_of(
        "run", "--json", "--backend", "scripted", "--reward", "agent:reward", "--tasks", "agent:train", "agent:solve"
    )
    assert len(report["rollouts"]) == 16
    assert all(row["calls"] == row["transitions"] == 1 for row in report["rollouts"])


def test_a_train_toml_says_it_all(program: Project) -> None:
    report = program.json_of("run", "--json", "--config", "train.toml", "--task", '{"a": 4, "b": 5}')
    (row,) = report["rollouts"]
    assert report["run"].endswith("demo-rehearsal")
    assert row["reward"] == float(row["output"] == "9")


def test_for_people_it_shows_the_output_what_was_captured_and_where_to_look(program: Project) -> None:
    done = program.run("run", "--backend", "scripted", "--", sys.executable, "program.py")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert json.loads(lines[0])["question"] == "2+3"
    assert "ended  reward -  calls 1  transitions 1" in lines[1]
    assert "spangrad explain collect-0-0 --run runs/rehearsal" in lines[-1]
    explained = program.run("explain", "collect-0-0", "--run", "runs/rehearsal").stdout
    assert "Attempt 1: ended, not rewarded (collect)" in explained
    assert "not trained: recorded outside a training run; nobody rewarded the rollout" in explained
    assert "error" not in explained


def test_a_reward_function_that_gives_none_is_said(program: Project) -> None:
    (program.path / "judge.py").write_text("def score(task, output):\n    return 'good'\n")
    done = program.run("run", "--backend", "scripted", "--reward", "judge:score", "--", sys.executable, "program.py")
    assert done.returncode == 0, done.stderr
    assert "no_reward  reward -" in done.stdout
    assert "What the reward function 'judge:score' returned" in done.stdout


def test_what_an_endpoint_of_an_unknown_tokenizer_answered_is_shown_as_ids_with_its_text(program: Project) -> None:
    with ScriptedEndpoint(lambda _: "five") as endpoint:
        program.run("run", "--backend", "scripted", "--endpoint", endpoint.base_url, "--", sys.executable, "program.py")
    done = program.run("explain", "collect-0-0")
    assert "give the run --model, or policy.model" in done.stderr
    ids = ", ".join(str(byte) for byte in b"five")  # the endpoint's tokens are bytes
    assert f"as ids, for the tokenizer of what answered is not known:\n      | {ids}" in done.stdout
    assert "answered:\n      | five" in done.stdout
    (call,) = program.json("explain", "collect-0-0")["attempts"][0]["calls"]
    assert (call["decoded"], call["action_text"], call["answer"]) == (False, "", "five")


def test_a_program_that_fails_is_reported_and_what_it_did_is_kept(program: Project) -> None:
    done = program.run(
        "run", "--json", "--backend", "scripted", "--task", '{"exit": 3}', "--", sys.executable, "program.py"
    )
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)["rollouts"]
    assert (row["status"], row["calls"], row["left_out"]) == ("failed", 1, {"rollout_failed": 1})
    assert "exited with status 3" in row["error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "There is no agent to run"),
        (("--backend", "nosuch", "agent:solve"), "Unknown backend 'nosuch'"),
        (("--backend", "scripted", "nosuch:solve"), "nosuch"),
        (("--backend", "scripted", "--", "no-such-program"), "no program 'no-such-program'"),
        (("--backend", "scripted", "--task", "{", "agent:solve"), "is not JSON"),
        (("--backend", "scripted", "--task", "{}", "--tasks", "agent:train", "agent:solve"), "both given"),
        (("--backend", "scripted", "--reward", "judge:nosuch", "agent:solve"), "nosuch"),
        (("--config", "train.toml", "agent:solve"), "the agent cannot be given beside it"),
        (("--config", "train.toml", "--model", "other"), "--model cannot be given beside it"),
        (("--set", "seed=1", "agent:solve"), "there is none"),
        (("--endpoint-model", "x", "agent:solve"), "--endpoint-model without --endpoint"),
    ],
)
def test_what_cannot_be_run_is_said_and_leaves_no_folder(
    program: Project, arguments: tuple[str, ...], said: str
) -> None:
    done = program.run("run", *arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (program.path / "runs").exists()
