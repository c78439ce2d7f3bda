"""Rules over spans, from train.toml to `spangrad explain`: an agent whose tool fails now and then."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import Project

AGENT = """\
import json

from openai import AsyncOpenAI

from spangrad import semconv
from spangrad.capture import WorkRecorder

RECORDER = WorkRecorder("test.agent")
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def run_tool(call):
    name, arguments = call.function.name, call.function.arguments
    attributes = {semconv.TOOL_NAME: name, semconv.TOOL_CALL_ID: call.id, semconv.TOOL_ARGUMENTS: arguments}
    RECORDER.begin(call.id, name, operation=semconv.TOOL_OPERATION, attributes=attributes)
    try:
        result, error = str(sum(json.loads(arguments)["terms"])), None
    except TypeError as raised:
        result, error = "error", raised
    RECORDER.end(call.id, error=error)
    return {"role": "tool", "tool_call_id": call.id, "content": result}


async def solve(task):
    messages = [{"role": "user", "content": f"{task['a']}+{task['b']}"}]
    async with AsyncOpenAI() as client:
        while True:
            answer = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            if not message.tool_calls:
                return message.content
            messages += [message.model_dump(exclude_none=True), *map(run_tool, message.tool_calls)]


def reward(task, output):
    return float(output == str(task["a"] + task["b"]))


def ended(calls, spans):
    assert any(span.attributes.get("gen_ai.tool.name") == "add" for span in spans)
    return {calls[-1].call_id: 0.25}


def broken(calls, spans):
    return {}["nothing"]


def without_spans(calls):
    return {}
"""
PLUGIN = """\
import json
import random

from spangrad.plugins import hookimpl
from spangrad.testing import ScriptedFactory


def script(prompt):
    if prompt.last == "error":
        return "I do not know."
    if prompt.messages[-1]["role"] == "tool":
        return prompt.last
    terms = prompt.last.split("+")
    if random.Random(f"{prompt.ids} {prompt.params.seed}").random() < 0.5:
        terms = [int(term) for term in terms]  # texts cannot be added up
    return "<tool_call>" + json.dumps({"name": "add", "arguments": {"terms": terms}}) + "</tool_call>"


@hookimpl
def spangrad_register(register):
    register.backend("scripted", ScriptedFactory(script))
"""
RULES = """\
[algorithm]
credit = "return_to_go"

[[rewards.rules]]
when = "tool_error"
reward = -0.5

[[rewards.rules]]
name = "end"
when = "function"
call = "agent:ended"

[tasks]"""


@pytest.fixture
def tooled(project: Project) -> Project:
    text = (project.path / "agent.py").read_text()
    (project.path / "agent.py").write_text(AGENT + text[text.index("\n\ndef train") :])
    (project.path / "plugin/scripted_plugin.py").write_text(PLUGIN)
    project.edit("steps = 4", "steps = 1")
    return project


def attempts(project: Project, phase: str) -> list[dict[str, Any]]:
    rollouts = project.json("rollouts", "--phase", phase)["rollouts"]
    return [project.json("explain", one["rollout_id"])["attempts"][0] for one in rollouts[:6]]


def test_explain_names_the_rule_and_the_call_it_rewarded(tooled: Project) -> None:
    tooled.edit("[tasks]", RULES)
    done = tooled.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    kinds = set()
    for attempt in attempts(tooled, "train"):
        asking, ending = attempt["calls"]
        (tool,) = [work for work in attempt["work"] if work["operation"] == "execute_tool"]
        failed = tool["error"] is not None
        kinds.add(failed)
        given = {r["name"]: (r["value"], r["source"], r["call_id"], r["counted"]) for r in attempt["rewards"]}
        end = (0.25, "rule end", ending["call_id"], True)
        error = (-0.5, "rule tool_error", asking["call_id"], True)
        whole = (float(not failed), "reward_function", None, True)
        assert given == {"reward": whole, "end": end} | ({"tool_error": error} if failed else {})
        # To go at the first call: the rollout's reward, its own, and the last call's; at the last one without the first's.
        assert asking["episode_return"] == (0.0 - 0.5 + 0.25 if failed else 1.0 + 0.25)
        assert ending["episode_return"] == (0.25 if failed else 1.25)
        assert (asking["reward"], ending["reward"]) == (-0.5 if failed else None, 0.25)
    assert kinds == {True, False}
    (step,) = [row for row in tooled.metrics() if row["kind"] == "step"]
    assert step["rules"]["unlinked"] == 0
    assert step["rules"]["rewards"]["end"] == 16
    assert 0 < step["rules"]["rewards"]["tool_error"] < 16


def test_measuring_is_without_rules(tooled: Project) -> None:
    tooled.edit("[tasks]", RULES)
    done = tooled.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    for attempt in attempts(tooled, "evaluate"):
        assert [reward["name"] for reward in attempt["rewards"]] == ["reward"]


def test_work_of_no_known_call_gives_nothing_and_is_said(tooled: Project) -> None:
    tooled.edit("semconv.TOOL_CALL_ID: call.id", 'semconv.TOOL_CALL_ID: "of my own"', file="agent.py")
    tooled.edit("[tasks]", '[[rewards.rules]]\nwhen = "tool_ok"\nreward = 0.5\n\n[tasks]')
    done = tooled.run("train", "train.toml")
    assert done.returncode == 0, done.stderr
    (step,) = [row for row in tooled.metrics() if row["kind"] == "step"]
    assert step["rules"]["rewards"] == {}
    assert step["rules"]["unlinked"] > 0
    said = f"rewards.rules were met {step['rules']['unlinked']} times by work of which no call is known"
    assert said in " ".join((done.stderr + done.stdout).split())


def test_a_function_that_fails_fails_the_rollout_and_is_named(tooled: Project) -> None:
    tooled.edit("[tasks]", '[[rewards.rules]]\nname = "mine"\nwhen = "function"\ncall = "agent:broken"\n\n[tasks]')
    done = tooled.run("train", "train.toml")
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "no_reward): The function 'agent:broken' of the rule 'mine' raised KeyError: 'nothing' (" in said
    assert "Traceback" not in done.stderr


def test_rules_do_not_stand_in_for_a_reward_that_is_missing(tooled: Project) -> None:
    tooled.edit('reward = "agent:reward"\n', "")
    tooled.edit("[tasks]", '[[rewards.rules]]\nwhen = "tool_error"\nreward = -0.5\n\n[tasks]')
    done = tooled.run("train", "train.toml")
    assert done.returncode == 1
    assert "Nobody gave a reward" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        (['when = "tool_eror"\nreward = 1.0'], "line 10: rewards.rules.0.when: Input should be 'tool_error'"),
        (['when = "tool_ok"'], "line 9: rewards.rules.0: 'tool_ok' needs reward"),
        (['when = "tool_ok"\nreward = 0.0'], "line 11: rewards.rules.0.reward: a reward of 0 would do nothing"),
        (['when = "slow_tool"\nreward = -1.0'], "line 9: rewards.rules.0: 'slow_tool' needs seconds"),
        (
            ['when = "malformed_tool_call"\nreward = -1.0\ntool = "add"'],
            "line 9: rewards.rules.0: 'malformed_tool_call' does not use tool; it would do nothing",
        ),
        (
            ['when = "function"\ncall = "agent:ended"\nreward = 1.0'],
            "line 9: rewards.rules.0: 'function' does not use reward; it would do nothing",
        ),
        (['when = "tool_ok"\nrewrad = 1.0'], "line 11: rewards.rules.0.rewrad: unknown key (did you mean reward?)"),
        (
            ['when = "tool_ok"\nreward = 1.0', 'when = "tool_ok"\nreward = 2.0\ntool = "add"'],
            "line 14: rewards.rules.1.when: another rule has the name 'tool_ok'; give each a name of its own",
        ),
        (
            ['when = "tool_ok"\nreward = 1.0', 'when = "function"\ncall = "agent:missing"'],
            "line 15: rewards.rules.1.call: The rule's function 'agent:missing' does not exist",
        ),
        (
            ['when = "function"\ncall = "agent:without_spans"'],
            "line 11: rewards.rules.0.call: The rule's function 'agent:without_spans' cannot be called with calls and spans",
        ),
        (
            ['when = "tool_ok"\nreward = 1.0', "[rewards.weights]\nreward = 1.0"],
            "line 10: rewards.rules.0.when: rewards.weights has no weight for 'tool_ok'",
        ),
    ],
)
def test_rules_that_cannot_be_are_said_with_their_lines(tooled: Project, rules: list[str], complaint: str) -> None:
    blocks = [block if block.startswith("[") else f"[[rewards.rules]]\n{block}" for block in rules]
    tooled.edit("[tasks]", "\n\n".join([*blocks, "[tasks]"]))
    done = tooled.run("train", "train.toml", "--dry-run")
    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.split())
