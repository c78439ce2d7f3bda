"""Rewards by name, their weights, every source of them, and states, from train.toml to `spangrad explain`."""

from __future__ import annotations

import json
import re
import sys

import pytest
from tests.conftest import Project

from spangrad.testing import ScriptedEndpoint

AGENT = """\
import spangrad
from openai import AsyncOpenAI


async def solve(task, rollout):
    rollout.state(f"asked {task['a']}+{task['b']}", score=0.5)
    messages = [{"role": "user", "content": f"{task['a']}+{task['b']}"}]
    async with AsyncOpenAI() as client:
        answer = await client.chat.completions.create(model="policy", messages=messages, max_tokens=8)
    return answer.choices[0].message.content


def reward(task, output):
    return {"correct": output == str(task["a"] + task["b"]), "length": len(output)}
"""
EVALUATOR = """\
import json, sys

for line in sys.stdin:
    asked = json.loads(line)
    right = asked["output"] == str(asked["task"]["a"] + asked["task"]["b"])
    print(json.dumps({"judged": right}), flush=True)
"""
CHECK = """\
import json, os, pathlib, sys

task = json.load(sys.stdin)
sys.exit(pathlib.Path(os.environ["SPANGRAD_OUTPUT_FILE"]).read_text() != str(task["a"] + task["b"]))
"""


@pytest.fixture
def rewarded(project: Project) -> Project:
    text = (project.path / "agent.py").read_text()
    (project.path / "agent.py").write_text(AGENT + text[text.index("\n\ndef train") :])
    (project.path / "judge.py").write_text(EVALUATOR)
    (project.path / "check.py").write_text(CHECK)
    project.edit("steps = 4", "steps = 1")
    return project


def settings(project: Project, text: str) -> None:
    project.edit("[tasks]", f"{text}\n[tasks]")


def test_a_long_rollout_loses_what_equation_13_says_with_its_weight(rewarded: Project) -> None:
    weights = "weights = { correct = 1.0, length = 0.0, overlong = 0.5 }"
    settings(rewarded, f"[rewards]\n{weights}\n\n[rewards.overlong]\nmax_tokens = 4\ncache = 3\n")
    done = rewarded.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    for row in rewarded.json("rollouts", "--phase", "train")["rollouts"][:4]:
        (attempt,) = rewarded.json("explain", row["rollout_id"])["attempts"]
        (call,) = attempt["calls"]
        rewards = {reward["name"]: reward for reward in attempt["rewards"]}
        # A byte a digit and the token that ends the turn: 2 tokens for "3", 1 beyond 4 - 3; so -1/3, weighed 0.5.
        assert rewards["overlong"]["value"] == pytest.approx((1 - len(call["action_ids"])) / 3)
        assert (rewards["overlong"]["source"], rewards["overlong"]["weight"]) == ("length", 0.5)
        expected = rewards["correct"]["value"] + 0.5 * rewards["overlong"]["value"]
        assert call["episode_return"] == pytest.approx(expected)
    (measured, *_) = rewarded.json("rollouts", "--phase", "evaluate")["rollouts"]
    (attempt,) = rewarded.json("explain", measured["rollout_id"])["attempts"]
    assert {reward["name"] for reward in attempt["rewards"]} == {"correct", "length"}


def test_the_weighted_sum_is_trained_on_and_everything_is_explained(rewarded: Project) -> None:
    settings(rewarded, "[rewards]\nweights = { correct = 1.0, length = 0.1, never = 1.0 }\n")
    done = rewarded.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    said = "rewards.weights names 'never', but no rollout had such a reward; there were 'correct', 'length'"
    assert said in " ".join((done.stderr + done.stdout).split())

    (rollout, *_) = rewarded.json("rollouts", "--phase", "train")["rollouts"]
    attempt = rewarded.json("explain", rollout["rollout_id"])["attempts"][0]
    rewards = {reward["name"]: reward for reward in attempt["rewards"]}
    assert {name: reward["weight"] for name, reward in rewards.items()} == {"correct": 1.0, "length": 0.1}
    (call,) = attempt["calls"]
    assert call["episode_return"] == pytest.approx(rewards["correct"]["value"] + 0.1 * rewards["length"]["value"])
    (question,) = re.findall(r"\d+\+\d+", call["prompt_text"])
    assert (call["state"], call["score"]) == (f"asked {question}", 0.5)
    text = rewarded.run("explain", rollout["rollout_id"]).stdout
    assert " x 0.1 for the rollout, from reward_function" in text
    assert f"state {call['state']}, score 0.5" in text


def test_evaluator_and_check_judge_and_agree(rewarded: Project) -> None:
    rewarded.edit('reward = "agent:reward"\n', "")
    evaluator = json.dumps([sys.executable, "judge.py"])
    check = json.dumps([sys.executable, "check.py"])
    settings(rewarded, f"[rewards]\nevaluator = {evaluator}\nevaluator_processes = 2\ncheck = {check}\n")
    done = rewarded.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    rollouts = rewarded.json("rollouts", "--phase", "train")["rollouts"]
    assert len(rollouts) == 16
    given = [
        [
            (r["name"], r["value"], r["source"])
            for r in rewarded.json("explain", one["rollout_id"])["attempts"][0]["rewards"]
        ]
        for one in rollouts[:4]
    ]
    for (judged, value, evaluator_source), (passed, same, check_source) in given:
        assert (judged, evaluator_source, passed, check_source) == ("judged", "evaluator", "check", "check")
        assert value == same


def test_a_model_compares_each_group_once(rewarded: Project) -> None:
    rewarded.edit('reward = "agent:reward"\n', "")
    with ScriptedEndpoint(lambda _: "Scores: 1, 0, 0.5, 0.25", token_ids=False) as judge:
        table = f'endpoint = "{judge.base_url}"\nmodel = "judge"\ncriteria = "It is right."\nrelative = true\n'
        settings(rewarded, f"[rewards.judge]\n{table}")
        rewarded.edit('heldout = { bigger = "agent:heldout" }\n', "")
        done = rewarded.run("train", "train.toml")
        assert done.returncode == 0, done.stderr
        assert len(judge.requests) == 4
    (step,) = [row for row in rewarded.metrics() if row["kind"] == "step"]
    assert step["reward_mean"] == pytest.approx((1 + 0 + 0.5 + 0.25) / 4)
    assert step["statuses"] == {"succeeded": 16}


def test_a_reward_without_a_weight_stops_the_run_and_says_which(rewarded: Project) -> None:
    settings(rewarded, "[rewards]\nweights = { correct = 1.0 }\n")
    done = rewarded.run("train", "train.toml")
    assert done.returncode == 1
    assert "rewards.weights has no weight for the reward 'length'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[rewards]\nweights = { correct = nan }", "rewards.weights.correct"),
        ("[rewards]\nweight = { correct = 1.0 }", "unknown key (did you mean weights?)"),
        ('[rewards]\ncheck = "no-such-program"', "The check 'no-such-program' cannot be run"),
        ("[rewards]\nevaluator_processes = 2", "there is no rewards.evaluator; it would do nothing"),
        (
            '[rewards.judge]\nmodel = "m"\ncriteria = "c"',
            'give either route = "NAME" of [routes], or endpoint and model',
        ),
        ('[rewards.judge]\nendpoint = "http://h/v1"\ncriteria = "c"', "endpoint needs model"),
        (
            '[rewards.judge]\nendpoint = "http://h/v1"\nmodel = "m"\ncriteria = "c"\nlowest = 1.0',
            "lowest = 1 is not below highest = 1; not given, they are 0 and 1",
        ),
        (
            '[rewards.judge]\nendpoint = "http://h/v1"\nmodel = "m"\ncriteria = "c"\nkey_env = "NO_SUCH_KEY"',
            "rewards.judge.key_env: The environment variable NO_SUCH_KEY is not set",
        ),
    ],
)
def test_settings_that_cannot_be_are_said_before_a_model_is_loaded(
    rewarded: Project, text: str, complaint: str
) -> None:
    settings(rewarded, text + "\n")
    done = rewarded.run("train", "train.toml", "--dry-run")
    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.split())
