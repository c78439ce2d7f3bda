"""The examples are what their READMEs say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.rollouts import RolloutJob, Runner, Task, load_agent
from spangrad.store import RolloutStatus, open_store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler

EXAMPLES = Path(__file__).parent.parent / "examples"
FROM_SCRATCH = EXAMPLES / "from_scratch"


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The example's own modules `agent` and `tasks`, which other examples have too."""
    loaded = []
    for name in ("agent", "tasks"):
        spec = importlib.util.spec_from_file_location(name, FROM_SCRATCH / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        loaded.append(module)
    yield loaded[0], loaded[1]
    for name in ("agent", "tasks"):
        del sys.modules[name]


def numbers(question: str) -> tuple[int, int]:
    """The large and the small number of a question."""
    found = sorted(int(number) for number in re.findall(r"\d+", question))
    assert len(found) == 2
    return found[1], found[0]


@pytest.mark.parametrize("config", sorted(EXAMPLES.glob("*/train.toml")), ids=lambda path: path.parent.name)
def test_an_examples_settings_are_valid(config: Path) -> None:
    command = [sys.executable, "-m", "spangrad", "train", str(config), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr


def test_no_pair_of_numbers_is_both_held_out_and_trained_on(modules: tuple[ModuleType, ModuleType]) -> None:
    _, tasks = modules
    shown = [demonstration["messages"][1]["content"] for demonstration in tasks.demonstrations()]
    trained = {numbers(question) for question in [*shown, *(task["question"] for task in tasks.train())]}
    heldout = {numbers(task["question"]) for task in [*tasks.heldout(), *tasks.unseen_phrasings()]}

    assert len(tasks.heldout()) >= 64
    assert len(heldout) > 80
    assert trained.isdisjoint(heldout)


def test_the_phrasings_of_the_second_heldout_set_occur_nowhere_else(modules: tuple[ModuleType, ModuleType]) -> None:
    _, tasks = modules

    def shape(question: str) -> str:
        words = "|".join((*tasks.NAMES, *tasks.THINGS))
        return re.sub(rf"\d+|\b(?:{words})\b", "_", question)

    seen = {shape(task["question"]) for task in [*tasks.train(), *tasks.heldout()]}
    seen |= {shape(demonstration["messages"][1]["content"]) for demonstration in tasks.demonstrations()}
    unseen = {shape(task["question"]) for task in tasks.unseen_phrasings()}

    assert len(seen) == 12
    assert len(unseen) == 6
    assert seen.isdisjoint(unseen)


def test_the_demonstrations_never_subtract(modules: tuple[ModuleType, ModuleType]) -> None:
    _, tasks = modules
    text = str([demonstration["messages"] for demonstration in tasks.demonstrations()])

    assert {"+", "*"} <= set(text)
    assert not re.search(r"\d-\d", text)


def test_the_same_seed_makes_the_same_tasks(modules: tuple[ModuleType, ModuleType]) -> None:
    _, tasks = modules

    assert tasks.train(seed=3) == tasks.train(seed=3)
    assert tasks.train(seed=3) != tasks.train(seed=4)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"result": "103", "answer": "answer: 103"}, 1.0),
        ({"result": "103", "answer": "It is 103."}, 0.8),
        ({"result": None, "answer": "answer: 103"}, 0.8),
        ({"result": "94", "answer": "answer: 94"}, 0.2),
        ({"result": "error: no", "answer": "answer: error: no"}, 0.0),
        ({"result": None, "answer": "answer: 7"}, 0.0),
        ({"result": "103", "answer": None}, 0.0),
    ],
)
def test_the_reward_is_the_right_answer_plus_a_small_part_for_the_form(
    modules: tuple[ModuleType, ModuleType], output: dict[str, str | None], expected: float
) -> None:
    agent, _ = modules

    assert agent.reward({"answer": 103}, output) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ('{"expression": "97+3"}', "100"),
        ('{"expression": "2*(5-7)"}', "-4"),
        ('{"expression": "__import__(\'os\')"}', "error: only integers and + - *"),
        ('{"expression": "9**9"}', "error: only integers and + - *"),
        ('{"expression": 5}', "error: expected string or bytes-like object, got 'int'"),
        ('{"value": "1"}', "error: 'expression'"),
        ("97+3", "error: Extra data: line 1 column 3 (char 2)"),
    ],
)
def test_the_calculator_works_or_says_what_is_wrong(
    modules: tuple[ModuleType, ModuleType], arguments: str, result: str
) -> None:
    agent, _ = modules

    assert agent.use_calc(arguments) == result


async def test_the_agents_prompts_are_those_of_the_demonstrations(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driven through the gateway by a model that says what the demonstration says."""
    agent, tasks = modules
    monkeypatch.setattr(agent, "MAX_TOKENS", 200)  # here a token is a byte
    (task,) = tasks.train(count=1)
    conversation = tasks.worked(task)
    form = ByteChatFormat()

    def answer(prompt: ScriptedPrompt) -> str:
        turn = conversation[4] if prompt.messages[-1]["role"] == "tool" else conversation[2]
        return form.decode(form.render_answer(turn), skip_special=True)

    store = open_store(tmp_path / "store.db")
    engine = TokenEngine(ScriptedSampler(answer), form, "scripted")
    with Gateway(store, [Route("policy", engine, "policy")]) as gateway:

        async def solve(data: Any, rollout: Any) -> float:
            async with agent.AsyncOpenAI(base_url=rollout.base_url, api_key=rollout.api_key) as client:
                monkeypatch.setattr(agent, "client", lambda: client)
                return float(agent.reward(data, await agent.solve(data)))

        runner = Runner(load_agent(solve, tmp_path), None, gateway, store, concurrency=1, timeout=30)
        (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", dict(task)), "train", 1)])
        calls = store.calls("r")
    store.close()

    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 1.0)
    assert [call.prompt_ids for call in calls] == [
        form.render(conversation[:2], tools=[agent.CALC]),
        form.render(conversation[:4], tools=[agent.CALC]),
    ]
