"""How far calls go on from earlier ones, in a run's metrics and in `spangrad explain`."""

from __future__ import annotations

from tests.conftest import Project

AGENT = """\
from openai import AsyncOpenAI


async def ask(messages):
    answer = await AsyncOpenAI().chat.completions.create(model="policy", messages=messages, max_tokens=8)
    messages.append(answer.choices[0].message.model_dump(exclude_none=True))
    return answer.choices[0].message.content


async def solve(task):
    question = {"role": "user", "content": f"{task['a']}+{task['b']}"}
    messages = [question]
    answer = await ask(messages)
    messages.append(question)
    await ask(messages)
    await ask([{"role": "system", "content": "Be brief."}, *messages, question])
    return answer
"""


def test_each_step_says_how_many_calls_went_on_and_why_the_others_did_not(project: Project) -> None:
    text = (project.path / "agent.py").read_text()
    (project.path / "agent.py").write_text(AGENT + "\n\n" + text[text.index("def reward") :])
    done = project.run("train", "train.toml", "--set", "training.steps=2")
    assert done.returncode == 0, done.stderr

    # 4 tasks x 4 rollouts of three calls: the first repeats nothing, the second goes on, the third has a new system message.
    steps = [row["continuation"] for row in project.metrics() if row["kind"] == "step"]
    assert (
        steps
        == [
            {
                "merge_rate": 0.5,
                "drift_rate": {"new_system": 0.5},
                "calls": {"extended": 16, "first": 16, "new_system": 16},
            }
        ]
        * 2
    )

    rollout = project.json("rollouts", "--phase", "train")["rollouts"][0]["rollout_id"]
    first, second, third = project.json("explain", rollout)["attempts"][0]["calls"]
    assert second["prompt_origin"]["continued_from"] == first["call_id"]
    assert third["prompt_origin"]["compared_with"] == second["call_id"]
    told = project.run("explain", rollout).stdout
    assert f"goes on from call {first['call_id']}" in told
    # Both begin with a turn's start; then it is "user" or "system".
    assert (
        f"new prompt, not from call {second['call_id']}: the system message is another one, at token 1: 'user\\n"
        in told
    )
    assert "-> 'system'" in told
