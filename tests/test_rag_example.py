"""The corpus, retrieval, tasks, reward and agent of examples/rag_openai_agents. That it learns is what its README shows."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents.models import openai_provider

from spangrad.gateway import Gateway, Route, TokenEngine
from spangrad.plugins import load_plugins
from spangrad.rollouts import RolloutJob, Runner, Task, load_agent
from spangrad.store import RolloutStatus, open_store
from spangrad.testing import ByteChatFormat, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import continuation_figures

FOLDER = Path(__file__).parents[1] / "examples" / "rag_openai_agents"
MODULES = ("agent", "corpus", "musique", "retrieval", "tasks")
SETS = ("train", "heldout", "unseen_phrasings")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The example's modules, forgotten afterwards."""
    for variable in ("PASSAGES", "EMBEDDINGS", "MUSIQUE", "BEST_PASSAGES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", SETS)
def test_tasks_are_the_same_every_time_and_each_has_its_answer_in_the_corpus(
    example: SimpleNamespace, name: str
) -> None:
    made = getattr(example.tasks, name)()
    people = {person.name: person for person in example.corpus.people()}

    assert made == getattr(example.tasks, name)()
    assert json.loads(json.dumps(made)) == made
    assert len({task["task_id"] for task in made}) == len(made) >= 64
    for task in made:
        (person,) = [person for person in people.values() if person.name in task["question"]]
        assert any(f" {task['answers'][0]}." in fact for fact in person.facts.values())


def test_nobody_in_a_heldout_question_is_asked_about_in_training_or_shown(example: SimpleNamespace) -> None:
    tasks, names = example.tasks, [person.name for person in example.corpus.people()]
    held = [task["question"] for make in (tasks.heldout, tasks.unseen_phrasings) for task in make()]
    seen = [task["question"] for seed in range(3) for task in tasks.train(seed=seed)]
    seen += [json.dumps(conversation) for conversation in tasks.demonstrations(count=200)]

    asked = {name for name in names if any(name in question for question in held)}
    assert len(names) == len(set(names)) == 96
    assert len(asked) > 25
    assert not [name for name in asked if any(name in text for text in seen)]


def test_unseen_phrasings_are_in_no_other_set(example: SimpleNamespace) -> None:
    kinds = example.tasks.KINDS

    assert not {p for kind in kinds for p in kind.phrasings} & {p for kind in kinds for p in kind.unseen}


def test_a_name_finds_exactly_the_four_passages_about_that_person(example: SimpleNamespace) -> None:
    for person in example.corpus.people():
        assert sorted(example.retrieval.index().best(person.name)) == sorted(person.facts.values())


async def test_every_demonstration_shows_what_its_query_finds_and_earns_the_whole_reward(
    example: SimpleNamespace,
) -> None:
    for conversation in example.tasks.demonstrations(count=64):
        _, _, ask, found, answer = conversation["messages"]
        assert await example.agent.search(None, ask["tool_calls"][0]["function"]["arguments"]) == found["content"]
        said = answer["content"].removeprefix("<answer>").removesuffix("</answer>")
        output = {"said": answer["content"], "searches": 1}
        assert example.agent.reward({"answers": [said]}, output) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("said", "searches", "answers", "reward"),
    [
        ("<answer>Oslo</answer>", 1, ["Oslo"], 1.0),
        ("<answer>oslo.</answer>", 2, ["Lima", "Oslo"], 1.0),
        ("<answer>Oslo</answer>", 0, ["Oslo"], 0.9),  # right, but without a search
        ("<answer>Lima</answer>", 1, ["Oslo"], 0.1),
        ("Oslo", 1, ["Oslo"], 0.0),  # an answer that is not marked is none
        ("It is <answer>Oslo</answer>", 1, ["Oslo"], 0.0),
        ("", 4, ["Oslo"], 0.0),
        # words: said {oslo, in, norway}, wanted {oslo}: precision 1/3, recall 1, F1 = 1/2
        ("<answer>Oslo in Norway</answer>", 1, ["Oslo"], 0.9 * 0.5 + 0.1),
        # said {city, oslo}, wanted {city, of, oslo}: precision 1, recall 2/3, F1 = 4/5; articles count for nothing
        ("<answer>the city Oslo</answer>", 1, ["a city of Oslo"], 0.9 * 0.8 + 0.1),
    ],
)
def test_reward_is_word_f1_and_form(
    example: SimpleNamespace, said: str, searches: int, answers: list[str], reward: float
) -> None:
    output = {"said": said, "searches": searches}

    assert example.agent.reward({"answers": answers}, output) == pytest.approx(reward)


@pytest.mark.parametrize("arguments", ["no json", "[]", "3", "null", "{}", '"query"'])
async def test_bad_arguments_of_the_tool_are_answered_with_what_is_wrong(
    example: SimpleNamespace, arguments: str
) -> None:
    assert (await example.agent.search(None, arguments)).startswith("error: ")


def test_a_query_that_fits_nothing_finds_nothing(example: SimpleNamespace) -> None:
    assert example.retrieval.index().best("zzz") == []
    assert example.retrieval.index().best("") == []


def test_a_passages_file_is_read_in_both_of_its_forms(
    example: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"title": "Oslo", "text": "The capital of Norway."}, {"id": "7", "contents": "Lima\nThe capital of Peru."}]
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv("PASSAGES", str(tmp_path / "passages.jsonl"))

    assert example.retrieval.index().best("Norway") == ["Oslo\nThe capital of Norway."]
    assert example.retrieval.index().best("capital Peru", count=2)[0] == "Lima\nThe capital of Peru."


@pytest.mark.parametrize(("text", "said"), [("", "no passages"), ("{}\n", "line 1"), ('{"text": "a"}\nx\n', "line 2")])
def test_a_passages_file_that_is_none_is_refused_with_the_line(
    example: SimpleNamespace, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "passages.jsonl").write_text(text)

    with pytest.raises(example.retrieval.PassagesError, match=said):
        example.retrieval.read(tmp_path / "passages.jsonl")
    with pytest.raises(example.retrieval.PassagesError, match="cannot be read"):
        example.retrieval.read(tmp_path / "nothing.jsonl")


def published(**changes: Any) -> dict[str, Any]:
    """A question in the form of MuSiQue's files."""
    return {
        "id": "2hop__1_2",
        "paragraphs": [
            {"idx": 0, "title": "Green", "paragraph_text": "Green is by Steve Hillage.", "is_supporting": True},
            {"idx": 1, "title": "Blue", "paragraph_text": "Blue is a colour.", "is_supporting": False},
        ],
        "question": "Who made Green?",
        "question_decomposition": [{"id": 1, "question": "Green >> performer", "answer": "Steve Hillage"}],
        "answer": "Steve Hillage",
        "answer_aliases": ["Hillage"],
        "answerable": True,
        **changes,
    }


def test_musiques_own_files_are_read_as_published(
    example: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSIQUE", str(tmp_path))
    entries = [published(), published(id="2hop__3_4", answerable=False)]
    (tmp_path / example.musique.TRAIN).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (tmp_path / example.musique.DEV).write_text(json.dumps(published(id="dev", answer_aliases=[])) + "\n")

    answers = ["Steve Hillage", "Hillage"]
    assert example.musique.train() == [{"task_id": "2hop__1_2", "question": "Who made Green?", "answers": answers}]
    assert [task["answers"] for task in example.musique.dev()] == [["Steve Hillage"]]
    assert example.musique.write_passages(tmp_path / "passages.jsonl") == 2
    assert example.retrieval.read(tmp_path / "passages.jsonl")[1] == "Blue\nBlue is a colour."


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda _: None, "MUSIQUE is not set"),
        (lambda folder: folder, "there is no musique_ans_v1.0_train.jsonl"),
        (lambda folder: _written(folder, "nothing\n"), "line 1 is no JSON object"),
        (
            lambda folder: _written(folder, json.dumps(published()) + '\n{"id": 1}\n'),
            "line 2 has no answer, paragraphs",
        ),
    ],
)
def test_musique_files_that_are_not_there_are_named(
    example: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Path], Path | None],
    said: str,
) -> None:
    if (folder := prepare(tmp_path)) is not None:
        monkeypatch.setenv("MUSIQUE", str(folder))

    with pytest.raises(example.musique.MusiqueError, match=said):
        example.musique.train()


def _written(folder: Path, text: str) -> Path:
    (folder / "musique_ans_v1.0_train.jsonl").write_text(text)
    return folder


def test_the_settings_of_the_papers_scale_are_valid(tmp_path: Path) -> None:
    for name in ("musique_ans_v1.0_train.jsonl", "musique_ans_v1.0_dev.jsonl"):
        (tmp_path / name).write_text(json.dumps(published()) + "\n")
    options = ["--dry-run", "--set", "training.tasks_per_step=1"]
    command = [sys.executable, "-m", "spangrad", "train", str(FOLDER / "train.gpu.toml"), *options]
    environment = {**os.environ, "MUSIQUE": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr


def closing(example: SimpleNamespace) -> Callable[[Any], Awaitable[float]]:
    """The agent and its reward; the HTTP client that the SDK keeps for the whole process ends with it, as its loop does."""

    async def solve(data: Any) -> float:
        try:
            return float(example.agent.reward(data, await example.agent.solve(data)))
        finally:
            await openai_provider.shared_http_client().aclose()
            openai_provider._http_client = None

    return solve


async def test_the_agents_prompts_are_those_of_the_demonstrations(example: SimpleNamespace, tmp_path: Path) -> None:
    """Driven through the gateway by a model that says what the demonstration says."""
    example.agent.MAX_TOKENS = 200  # here a token is a byte
    person = example.corpus.people()[0]
    conversation = example.tasks.worked(example.tasks.KINDS[0], person)
    messages, tools = conversation["messages"], conversation["tools"]
    task = {"question": messages[1]["content"], "answers": [person.city]}
    form = ByteChatFormat()

    def script(prompt: ScriptedPrompt) -> str:
        turn = messages[4] if prompt.messages[-1]["role"] == "tool" else messages[2]
        return form.decode(form.render_answer(turn), skip_special=True)

    store = open_store(tmp_path / "store.db")
    engine = TokenEngine(ScriptedSampler(script), form, "scripted")
    with Gateway(store, [Route("policy", engine, "policy")]) as gateway, load_plugins().attached():
        runner = Runner(load_agent(closing(example), tmp_path), None, gateway, store, concurrency=1, timeout=30)
        (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", task), "train", 1)])
        calls = store.calls("r")
    store.close()

    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 1.0)
    assert [call.prompt_ids for call in calls] == [
        form.render(messages[:2], tools=tools),
        form.render(messages[:4], tools=tools),
    ]
    assert [call.agent for call in calls] == ["researcher"] * 2
    assert continuation_figures(call.continuation for call in calls)["calls"] == {"first": 1, "extended": 1}


@pytest.mark.parametrize(
    ("said", "calls_made"),
    [('<tool_call>{"name": "search", "arguments": {"query": "Ada"}}</tool_call>', 4), ("and " * 200, 1)],
    ids=["searching", "talking"],
)
async def test_an_agent_that_never_stops_earns_nothing_and_is_no_failure(
    example: SimpleNamespace, tmp_path: Path, said: str, calls_made: int
) -> None:
    example.agent.MAX_TOKENS = 200
    task = {"question": "Where was Ada Adler born?", "answers": ["Oslo"]}

    store = open_store(tmp_path / "store.db")
    engine = TokenEngine(ScriptedSampler(lambda _: said), ByteChatFormat(), "scripted")
    with Gateway(store, [Route("policy", engine, "policy")]) as gateway, load_plugins().attached():
        runner = Runner(load_agent(closing(example), tmp_path), None, gateway, store, concurrency=1, timeout=30)
        (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", task), "train", 1)])
        calls = store.calls("r")
    store.close()

    assert (result.status, result.reward) == (RolloutStatus.SUCCEEDED, 0.0)
    assert len(calls) == calls_made
