"""Calc-X (arXiv 2305.15017) as tasks: the files its authors publish, read from a folder you name in `CALC_X`.

Of each row `id`, `question` and `result` are used. The collection's data sets (MU-NLPC/Calc-gsm8k, Calc-ape210k,
Calc-math_qa, Calc-aqua_rat, ... on the Hugging Face Hub) have further columns, such as `chain` and `result_float`, and come as
`data/train-00000-of-00001.parquet`. The same rows as JSON lines, `train.jsonl`, work too. Several data sets may lie side by
side, each in a folder of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from calculator import number

VARIABLE = "CALC_X"
"""The environment variable with the folder's path; without it `calc_x` beside this file."""
OTHER_SPLITS = "original-splits"
"""A folder with the same problems split otherwise: training problems of it are held out here."""
COLUMNS = ("question", "result")


class CalcXError(Exception):
    """The files are not there, or not what they should be."""


def train() -> list[dict[str, Any]]:
    """The training split."""
    return load(folder(), "train")


def validation() -> list[dict[str, Any]]:
    """The validation split."""
    return load(folder(), "validation")


def test() -> list[dict[str, Any]]:
    """The test split."""
    return load(folder(), "test")


def folder() -> Path:
    """Where the files are looked for."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).with_name("calc_x"))


def load(path: Path, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, from all its files below a folder, in the order of file names and rows.

    Rows whose result is neither a number nor the letter of a choice cannot be judged and are left out.

    Raises:
        CalcXError: there is no file of the split, or one cannot be read.
    """
    files = sorted(
        file
        for file in path.rglob("*")
        if re.fullmatch(rf"{split}(-.*)?\.(jsonl|parquet)", file.name) and OTHER_SPLITS not in file.parts
    )
    if not files:
        raise CalcXError(
            f"There is no {split}.jsonl or {split}-*.parquet below {path.absolute()}: download a data set of Calc-X, "
            f"such as MU-NLPC/Calc-gsm8k, and put its folder's path into {VARIABLE}"
        )
    tasks: dict[str, dict[str, Any]] = {}
    for file in files:
        for place, row in enumerate(_rows(file), start=1):
            if (task := _task(row, f"{file}, row {place}", f"{file.parent.name}-{file.stem}-{place}")) is not None:
                tasks.setdefault(task["task_id"], task)  # a data set that lies there in both formats is read once
    return list(tasks.values())


def _rows(file: Path) -> Iterable[Mapping[str, Any]]:
    return _parquet(file) if file.suffix == ".parquet" else _json_lines(file)


def _json_lines(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for place, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise CalcXError(f"{file}, line {place} is not JSON: {error}") from error


def _parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise CalcXError(f"{file} is a parquet file: pip install pyarrow, or give JSON lines instead") from error
    try:
        for batch in parquet.ParquetFile(file).iter_batches():
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these
        raise CalcXError(f"{file} cannot be read: {error}") from error


def _task(row: Any, where: str, otherwise: str) -> dict[str, Any] | None:
    """A row as a task; None if its result cannot be judged.

    Args:
        row: as read.
        where: for messages.
        otherwise: the id of a row that has none.
    """
    if not isinstance(row, Mapping) or (missing := [name for name in COLUMNS if not isinstance(row.get(name), str)]):
        names = ", ".join(COLUMNS if not isinstance(row, Mapping) else missing)
        raise CalcXError(f"{where} has no text in: {names}; is it a file of Calc-X?")
    result = row["result"].split("=")[0].strip()  # some have a rounded value behind it: 2/3 = around 0.666667
    if not re.fullmatch(r"[A-Za-z]", result) and number(result) is None:
        return None
    return {"task_id": str(row.get("id") or otherwise), "question": row["question"], "answer": result}
