"""Several policies in one run, and models beside them that are not trained, from train.toml to `spangrad explain`."""

from __future__ import annotations

import json
import re

import pytest
from tests.conftest import Project

from spangrad.testing import ScriptedEndpoint

AGENTS = """\
from openai import AsyncOpenAI

CLIENT = None


async def ask(model, agent, question):
    global CLIENT
    CLIENT = CLIENT or AsyncOpenAI()
    messages = [{"role": "user", "content": question}]
    answer = await CLIENT.chat.completions.create(
        model=model, messages=messages, max_tokens=8, extra_headers={"x-spangrad-agent": agent}
    )
    return answer.choices[0].message.content


async def solve(task):
    draft = await ask("writer", "writer", f"{task['a']}+{task['b']}")
    await ask("reference", "critic", f"{task['a']}+{task['b']}")
    return await ask("rewriter", "rewriter", f"{task['a']}+{task['b']} is {draft}?")
"""
POLICIES = """\
[policies.writer]
train = ["writer"]

[policies.second]
aliases = ["rewriter"]

[routes.reference]
frozen = true
"""
PLUGIN = """\
from spangrad.plugins import hookimpl


@hookimpl
def spangrad_register(register):
    from spangrad.backend import Capabilities
    from spangrad.testing import ScriptedFactory, arithmetic_script

    sums = arithmetic_script(lambda version: 0.35 + 0.15 * version)

    def script(prompt):
        return "Score: 0.5" if "You judge" in prompt.last and prompt.policy is None else sums(prompt)

    capabilities = Capabilities(several_policies=True, initial=True)
    register.backend("scripted", ScriptedFactory(script, capabilities=capabilities))
"""


@pytest.fixture
def team(project: Project) -> Project:
    """A writer and a rewriter, each with a policy of its own, and a critic that asks the model as it was loaded."""
    text = (project.path / "agent.py").read_text()
    (project.path / "agent.py").write_text(AGENTS + text[text.index("\n\ndef reward") :])
    (project.path / "plugin/scripted_plugin.py").write_text(PLUGIN)
    project.edit("[tasks]", f"{POLICIES}\n[tasks]")
    return project


def test_each_policy_learns_from_its_own_calls_and_the_frozen_model_from_none(team: Project) -> None:
    done = team.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    steps = [row for row in team.metrics() if row["kind"] == "step"]
    for number, step in enumerate(steps, start=1):
        assert step["excluded"] == {"not_trained_policy": 16}
        assert step["policy_versions"] == {"writer": number, "second": number}
        assert [update["policy"] for update in step["updates"]] == ["writer", "second"]
        figures = step["lightningrl"]
        assert (figures["policy/writer/transitions"], figures["policy/second/transitions"]) == (16, 16)
        assert (figures["agent/writer/transitions"], figures["agent/rewriter/transitions"]) == (16, 16)
    assert sorted(path.name for path in (team.path / "runs/demo/model").iterdir()) == ["second", "writer"]

    (*_, last) = team.json("rollouts", "--phase", "train")["rollouts"]
    calls = team.json("explain", last["rollout_id"])["attempts"][0]["calls"]
    assert [(call["agent"], call["policy"], call["policy_version"]) for call in calls] == [
        ("writer", "writer", 3),
        ("critic", None, 0),
        ("rewriter", "second", 3),
    ]
    assert calls[1]["reason"] == "not_trained_policy"
    assert "'reference' is served by scripted initial, which is not trained" in calls[1]["detail"]


def test_a_run_of_several_policies_goes_on_where_it_was(team: Project) -> None:
    team.edit("checkpoint_every = 2", "checkpoint_every = 1")
    whole = team.run("train", "train.toml", "--set", 'name="whole"')
    assert whole.returncode == 0, whole.stderr
    half = team.run("train", "train.toml", "--set", "training.steps=2")
    assert half.returncode == 0, half.stderr
    rest = team.run("train", "train.toml", "--resume")
    assert rest.returncode == 0, rest.stderr
    steps = {name: [row for row in team.metrics(name) if row["kind"] == "step"] for name in ("whole", "demo")}
    assert [row["reward_mean"] for row in steps["demo"]] == [row["reward_mean"] for row in steps["whole"]]
    assert steps["demo"][-1]["policy_versions"] == {"writer": 4, "second": 4}


def test_a_policy_of_a_run_is_exported_by_name(team: Project) -> None:
    assert team.run("train", "train.toml", "--set", "training.steps=2").returncode == 0
    which = team.run("export", "out")
    assert which.returncode == 2
    assert "runs/demo has several policies" in which.stderr
    assert "Give --policy with one of writer, second" in " ".join(which.stderr.split())
    assert team.json("export", "out", "--policy", "second")["step"] == 2
    assert json.loads((team.path / "out/scripted.json").read_text())["policy_version"] == 2


def test_the_policies_of_a_run_are_measured_together(team: Project) -> None:
    assert team.run("train", "train.toml").returncode == 0
    (measured,) = team.json("eval", "train.toml", "--run", "runs/demo")["evaluations"]
    (*_, last) = [row for row in team.metrics() if row["kind"] == "evaluation"]
    assert (measured["policy_versions"], measured["success"]) == ({"writer": 4, "second": 4}, last["success"])
    (untrained,) = team.json("eval", "train.toml")["evaluations"]
    assert untrained["policy_versions"] == {"writer": 0, "second": 0}

    both = team.run("eval", "train.toml", "--run", "runs/demo", "--model", "m")
    assert both.returncode == 2
    assert "Either --model or --run" in both.stderr
    team.edit("[policies.second]", "[policies.third]")
    other = team.run("eval", "train.toml", "--run", "runs/demo")
    assert other.returncode == 1
    assert "runs/demo trained the policies writer, second, and the settings name writer, third" in other.stderr
    missing = team.run("eval", "train.toml", "--run", "runs")
    assert missing.returncode == 1
    assert "runs holds no checkpoint" in missing.stderr


def test_the_model_as_it_was_loaded_judges_and_its_calls_are_no_orphans(team: Project) -> None:
    team.edit('reward = "agent:reward"\n', "")
    team.edit("steps = 4", "steps = 1")
    team.edit(
        "[tasks]", '[rewards.judge]\nroute = "reference"\ncriteria = "It is right."\n\n[tasks]', file="train.toml"
    )
    done = team.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    assert "orphan" not in done.stderr + done.stdout
    (step,) = [row for row in team.metrics() if row["kind"] == "step"]
    assert (step["reward_mean"], step["statuses"]) == (0.5, {"succeeded": 16})


def test_an_external_model_answers_beside_the_policies_and_is_not_asked_for_token_ids(team: Project) -> None:
    team.edit("steps = 4", "steps = 1")
    team.edit('heldout = { bigger = "agent:heldout" }\n', "")
    with ScriptedEndpoint(lambda _: "7", token_ids=False) as outside:
        table = f'endpoint = "{outside.base_url}"\nmodel = "gpt"\nkey_env = "OUTSIDE_KEY"'
        team.edit("frozen = true", table)
        team.environment["OUTSIDE_KEY"] = "sk-outside"
        done = team.run("train", "train.toml")
        assert done.returncode == 0, done.stderr
        assert len(outside.requests) == 16
        for request in outside.requests:
            assert request.body["model"] == "gpt"
            assert "return_token_ids" not in request.body
            assert request.headers["authorization"] == "Bearer sk-outside"
    (step,) = [row for row in team.metrics() if row["kind"] == "step"]
    assert step["excluded"] == {"not_trained_policy": 16}


def test_a_demonstration_teaches_the_policy_it_names_or_all(team: Project) -> None:
    lines = [
        {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}], **who}
        for who in ({}, {"policy": "writer"})
    ]
    (team.path / "shown.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    team.edit("[tasks]", '[warm_start]\ndemonstrations = "shown.jsonl"\nsteps = 1\nbatch = 2\n\n[tasks]')
    done = team.run("train", "train.toml", "--set", "training.steps=0")
    assert done.returncode == 0, done.stderr
    (row,) = [row for row in team.metrics() if row["kind"] == "warm_start"]
    # "2" and the end of the turn are two tokens; the writer sees both lines, the second policy the one for all
    assert {update["policy"]: update["tokens"] for update in row["updates"]} == {"writer": 4, "second": 2}

    (team.path / "shown.jsonl").write_text(json.dumps({**lines[0], "policy": "wirter"}) + "\n")
    wrong = team.run("train", "train.toml", "--dry-run")
    assert wrong.returncode == 2
    assert "is for the policy 'wirter', and there are 'writer', 'second'" in wrong.stderr


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('train = ["writer"]', 'aliases = ["rewriter"]', "the name 'rewriter' is given 2 times"),
        ("[routes.reference]", "[routes.writer]", "the name 'writer' is given 2 times"),
        ("frozen = true", "", "give either frozen = true or endpoint"),
        ("frozen = true", "frozen = false", "routes.reference.frozen"),
        ("frozen = true", 'frozen = true\nmodel = "m"', "a frozen model has no use for model; it would do nothing"),
        ("frozen = true", 'endpoint = "nowhere"', "must be the URL of a server"),
        ("[tasks]", '[policy]\ntrain = ["writer"]\n[tasks]', "there are [policies], which have train of their own"),
        ("[tasks]", '[policy]\nendpoint = "http://h/v1"\n[tasks]', "it serves one policy, and there are [policies]"),
        (
            "[tasks]",
            '[rewards.judge]\nroute = "writer"\ncriteria = "c"\n[tasks]',
            "there is no [routes] table 'writer' (there are: 'reference')",
        ),
        (
            "[tasks]",
            '[rewards.judge]\nroute = "reference"\nmodel = "m"\ncriteria = "c"\n[tasks]',
            "with a route model would do nothing",
        ),
        ("[policies.writer]", '[policies."a/b"]', 'policies."a/b"'),
        ("[policies.writer]", "[policies.writer]\ntrian = 1", "unknown key (did you mean train?)"),
    ],
)
def test_policies_and_routes_that_cannot_be_are_said_before_a_model_is_loaded(
    team: Project, old: str, new: str, complaint: str
) -> None:
    team.edit(old, new)
    done = team.run("train", "train.toml", "--dry-run")
    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_backend_that_cannot_is_said_before_a_model_is_loaded(team: Project) -> None:
    team.edit("several_policies=True, initial=True", "", file="plugin/scripted_plugin.py")
    for command in (("train", "train.toml", "--dry-run"), ("gateway", "train.toml")):
        done = team.run(*command)
        assert done.returncode == 2
        said = " ".join(done.stderr.split())
        assert "policies: the backend 'scripted' trains one policy" in said
        assert "routes.reference.frozen: the backend 'scripted' does not serve the model as it was loaded" in said


def test_agents_that_a_policy_waits_for_in_vain_are_named_and_stop_a_run_in_which_there_are_no_others(
    team: Project,
) -> None:
    """An agent that is called now and then may be missing from a step; that all are missing is a mistake."""
    team.edit('train = ["writer"]', 'train = ["wirter"]')
    team.edit("steps = 4", "steps = 1")
    said = "policies.writer.train names 'wirter', but the step's calls were made by 'critic', 'rewriter', 'writer'"
    both = f"policies.writer.train names 'wirter' and {said.replace('writer.train', 'second.train', 1)}"
    trained = team.run("train", "train.toml", "--set", 'policies.second.train=["rewriter"]')
    assert trained.returncode == 0, trained.stderr
    assert said in " ".join((trained.stderr + trained.stdout).split())
    stopped = team.run("train", "train.toml", "--set", 'policies.second.train=["wirter"]', "--set", 'name="other"')
    assert stopped.returncode == 2
    assert both in " ".join(stopped.stderr.split())


def test_an_unknown_model_is_answered_with_those_there_are(team: Project) -> None:
    team.edit('"rewriter", "rewriter"', '"rewirter", "rewriter"', file="agent.py")
    done = team.run("train", "train.toml")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert re.search(r"No route serves the model 'rewirter'.*Ask for one of: writer, rewriter, reference", said)


def test_one_model_cannot_be_measured_in_the_place_of_several_policies(team: Project) -> None:
    done = team.run("eval", "train.toml", "--model", "elsewhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--model is one model, and train.toml has the policies writer, second" in done.stderr
    assert "--run FOLDER" in done.stderr
