"""What examples/math_autogen needs for the paper's scale: Calc-X as published, its settings, Llama's chat template."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from tests.conftest import EXAMPLES
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from spangrad_torch._chat_format import TemplateFormat

EXAMPLE = ("math_autogen", "calc_x", "calculator")
FOLDER = EXAMPLES / "math_autogen"
GSM8K = {  # a row as the Hub's viewer of MU-NLPC/Calc-gsm8k shows its columns; the problem is made up
    "id": "gsm8k__0001",
    "question": "Mia sells 5,000 tickets for $2 each. How much does she take?",
    "chain": '<gadget id="calculator">5_000*2</gadget>\n<output>10_000</output>\n<result>10_000</result>',
    "result": "10_000",
    "result_float": 10000.0,
}


@pytest.fixture
def calc_x(example: SimpleNamespace) -> ModuleType:
    """The example's loader."""
    return cast("ModuleType", example.calc_x)


def write(path: Path, *rows: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_rows_of_several_data_sets_become_tasks(calc_x: ModuleType, tmp_path: Path) -> None:
    write(tmp_path / "Calc-gsm8k/data/train.jsonl", GSM8K, {**GSM8K, "id": "gsm8k__0002", "result": "2/3"})
    choice = {"id": "aqua_rat__1", "question": "Which?\nA) 1 B) 2", "result": "B", "options": {"A": "1"}}
    write(tmp_path / "Calc-aqua_rat/data/train-00000-of-00001.jsonl", choice)
    write(tmp_path / "Calc-gsm8k/data/test.jsonl", {**GSM8K, "id": "gsm8k__0003"})
    write(tmp_path / "Calc-gsm8k/original-splits/train.jsonl", {**GSM8K, "id": "gsm8k__0003"})

    assert calc_x.load(tmp_path, "train") == [
        {"task_id": "aqua_rat__1", "question": "Which?\nA) 1 B) 2", "answer": "B"},
        {"task_id": "gsm8k__0001", "question": GSM8K["question"], "answer": "10_000"},
        {"task_id": "gsm8k__0002", "question": GSM8K["question"], "answer": "2/3"},
    ]
    assert [task["task_id"] for task in calc_x.load(tmp_path, "test")] == ["gsm8k__0003"]


def test_rows_without_an_id_get_one_and_rows_that_cannot_be_judged_are_left_out(
    calc_x: ModuleType, tmp_path: Path
) -> None:
    old = {"question": "How many?", "chain": "", "result": "3/4 = around 0.75"}
    write(tmp_path / "validation.jsonl", old, {**old, "result": "north"}, {**old, "result": "5"})

    made = calc_x.load(tmp_path, "validation")

    assert [task["answer"] for task in made] == ["3/4", "5"]
    assert len({task["task_id"] for task in made}) == 2


def test_the_folder_is_named_by_the_environment(
    calc_x: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "validation", "test"):
        write(tmp_path / f"{split}.jsonl", {**GSM8K, "id": split})
    monkeypatch.setenv("CALC_X", str(tmp_path))

    made = [calc_x.train(), calc_x.validation(), calc_x.test()]

    assert [[task["task_id"] for task in tasks] for tasks in made] == [["train"], ["validation"], ["test"]]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "row 1 has no text in: question, result"),
        ('{"question": "How many?", "result": 3}', "row 1 has no text in: result"),
    ],
)
def test_what_is_no_file_of_calc_x_is_named(calc_x: ModuleType, tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "train.jsonl").write_text(line, encoding="utf-8")

    with pytest.raises(calc_x.CalcXError, match=f"train.jsonl, {problem}"):
        calc_x.load(tmp_path, "train")


def test_a_folder_without_the_split_says_what_to_download(calc_x: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(calc_x.CalcXError, match=r"Calc-gsm8k.*CALC_X"):
        calc_x.load(tmp_path, "train")


def test_parquet_files_are_read_as_they_are_published(calc_x: ModuleType, tmp_path: Path) -> None:
    pyarrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    rows = [{**GSM8K, "id": f"gsm8k__{number}", "result": str(number)} for number in range(5)]
    folder = tmp_path / "Calc-gsm8k" / "data"
    folder.mkdir(parents=True)
    for number, part in enumerate((rows[:4], rows[4:])):
        file = folder / f"train-0000{number}-of-00002.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(part), file, row_group_size=3)

    assert calc_x.load(tmp_path, "train") == [
        {"task_id": row["id"], "question": GSM8K["question"], "answer": row["result"]} for row in rows
    ]


def test_a_damaged_parquet_file_is_named(calc_x: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "train-00000-of-00001.parquet"
    file.write_bytes(b"PAR1 and no more")

    with pytest.raises(calc_x.CalcXError, match=f"{file} cannot be read"):
        calc_x.load(tmp_path, "train")


def test_parquet_without_its_reader_says_what_to_install(
    calc_x: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    with pytest.raises(calc_x.CalcXError, match="pip install pyarrow"):
        calc_x.load(tmp_path, "train")


def test_the_settings_of_the_papers_scale_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"{split}.jsonl", *({**GSM8K, "id": f"{split} {number}"} for number in range(32)))
    monkeypatch.setenv("CALC_X", str(tmp_path))
    command = [sys.executable, "-m", "spangrad", "train", str(FOLDER / "train.gpu.toml"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr


def test_the_llama_chat_template_lets_the_backend_read_tool_calls(tmp_path: Path) -> None:
    ends = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    folder = tmp_path / "model"
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers'
        tokenizer_object=tokenizer, bos_token=ends[0], eos_token=ends[1], additional_special_tokens=ends[2:]
    ).save_pretrained(folder)
    shutil.copy(FOLDER / "llama_chat_template.jinja", folder / "chat_template.jinja")
    call = {"id": "c", "type": "function", "function": {"name": "calc", "arguments": '{"expression": "6*7"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Calculate."},
        {"role": "user", "content": "6*7?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    tools = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]

    form = TemplateFormat(AutoTokenizer.from_pretrained(folder))

    assert form.handles_tools
    text = form.decode(form.render(messages, tools=tools))
    assert text.startswith("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCalculate.\nTools")
    assert text.endswith(
        '<|start_header_id|>assistant<|end_header_id|>\n\n<tool_call>{"name": "calc", "arguments": {"expression": "6*7"}}'
        "</tool_call><|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n42<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    asked, answer = form.render(messages[:2], tools=tools), form.render_answer(messages[2])
    assert form.render(messages, tools=tools)[: len(asked) + len(answer)] == asked + answer
    (read,) = form.parse(form.decode(answer, skip_special=True), tools=tools).tool_calls
    assert json.loads(read["function"]["arguments"]) == {"expression": "6*7"}
