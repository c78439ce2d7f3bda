"""Tasks that are hard to read, to name or to send around."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spangrad import Task
from spangrad.errors import TaskError
from spangrad.training import load_tasks

DEEP: Any = "x"
for _ in range(101):
    DEEP = [DEEP]


def written(folder: Path, *lines: str) -> Path:
    (folder / "t.jsonl").write_bytes("\n".join(lines).encode())
    return folder


def test_characters_that_only_python_takes_for_line_ends_are_part_of_a_line(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    written(tmp_path, json.dumps({"q": text}, ensure_ascii=False), '{"q": 2}\r')

    assert [task.data["q"] for task in load_tasks("t.jsonl", tmp_path)] == [text, 2]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'\xef\xbb\xbf{"q": 1}\n')

    assert load_tasks("t.jsonl", tmp_path)[0].data == {"q": 1}


@pytest.mark.parametrize(
    "record",
    [
        '{"q": "x\\ud800y"}',
        '{"\\udc00": 1}',
        '{"q": {"r": [1, ["\\ud83d"]]}}',
        '{"task_id": "\\ud800"}',
    ],
)
def test_half_a_surrogate_pair_is_refused_with_its_line_wherever_it_is(tmp_path: Path, record: str) -> None:
    written(tmp_path, '{"q": "\\ud83c\\udf88 whole"}', record)

    with pytest.raises(TaskError, match=r"t\.jsonl: line 2 .*it holds \\ud[c8]\w\w, half of a surrogate pair"):
        load_tasks("t.jsonl", tmp_path)


@pytest.mark.parametrize("make", [lambda text: Task("t", {"q": text}), lambda text: Task(text, {})])
def test_half_a_surrogate_pair_is_refused_in_a_task_made_by_hand(make: Any) -> None:
    with pytest.raises(TaskError, match="half of a surrogate pair"):
        make("\ud800")


def test_a_long_id_is_refused_with_what_to_do(tmp_path: Path) -> None:
    written(tmp_path, json.dumps({"task_id": "k" * 200}), json.dumps({"task_id": "k" * 201}))

    with pytest.raises(TaskError, match=r"line 2: The task_id 'kkkk.* has 201 characters, more than 200") as caught:
        load_tasks("t.jsonl", tmp_path)
    assert "short id" in caught.value.cure


@pytest.mark.parametrize("depth", [101, 100_000])
def test_what_is_nested_too_deeply_is_refused(tmp_path: Path, depth: int) -> None:
    written(tmp_path, '{"q": 1}', f'{{"q": {"[" * depth}{"]" * depth}}}')

    with pytest.raises(TaskError, match=r"line 2 .*nested (too deeply|more than 100 levels deep)"):
        load_tasks("t.jsonl", tmp_path)


def test_a_hundred_levels_are_fine_and_one_more_is_not() -> None:
    assert Task("t", DEEP[0]).data == DEEP[0]
    with pytest.raises(TaskError, match="more than 100 levels"):
        Task("t", DEEP)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("async def train():\n    return []\n", "the function is async"),
        ("async def train():\n    yield {}\n", "the function is async"),
        ("async def inner():\n    return []\ndef train():\n    return inner()\n", "returns a coroutine"),
        (
            "async def one():\n    return {}\ndef train():\n    return [one(), one()]\n",
            "the function returns coroutines",
        ),
        ("import sys\ndef train():\n    sys.exit(3)\n", "raised SystemExit: 3"),
        ("def train():\n    return 3\n", "raised TypeError: 'int' object is not iterable"),
        ("def train():\n    x = []\n    x.append(x)\n    return [{'q': x}]\n", "entry 0 .*Circular reference"),
        ("def train():\n    return [{'q': object()}]\n", "entry 0 .*not JSON serializable"),
    ],
)
def test_a_function_that_gives_no_tasks_is_an_error_of_the_setting_that_names_it(
    tmp_path: Path, code: str, what: str
) -> None:
    module = f"hard_{abs(hash(code))}"
    (tmp_path / f"{module}.py").write_text(code)

    with pytest.raises(TaskError, match=f"tasks.heldout.big: {module}:train: .*{what}"):
        load_tasks(f"{module}:train", tmp_path, key="tasks.heldout.big")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("tasks.json", 'tasks.train: tasks.json: is neither a .jsonl file nor of the form "module:function"'),
        ("nosuchmodule:train", "The tasks.train function's module 'nosuchmodule' is neither in"),
        ("found:nosuch", "The tasks.train function 'found:nosuch' does not exist"),
        ("found:number", "The tasks.train function 'found:number' is of type int"),
        ("none.jsonl", "tasks.train: .*none.jsonl cannot be read"),
    ],
)
def test_a_source_that_is_not_there_is_called_by_its_setting(tmp_path: Path, source: str, what: str) -> None:
    (tmp_path / "found.py").write_text("number = 3\n")

    with pytest.raises(TaskError, match=what):
        load_tasks(source, tmp_path, key="tasks.train")
