"""MuSiQue's own files as tasks: musique_ans_v1.0_train.jsonl and musique_ans_v1.0_dev.jsonl, as published.

The environment variable MUSIQUE names the folder they lie in. What is searched is the file PASSAGES names; `write_passages` makes one
of the paragraphs that come with the questions.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TRAIN, DEV = "musique_ans_v1.0_train.jsonl", "musique_ans_v1.0_dev.jsonl"


class MusiqueError(Exception):
    """MuSiQue's files are not where they should be, or not what they should be."""


def train() -> list[dict[str, Any]]:
    """The training questions."""
    return [_task(entry) for entry in entries(TRAIN)]


def dev() -> list[dict[str, Any]]:
    """The development questions."""
    return [_task(entry) for entry in entries(DEV)]


def entries(name: str) -> Iterator[dict[str, Any]]:
    """The answerable questions of a file, with their paragraphs.

    Raises:
        MusiqueError: MUSIQUE is not set, the file is missing, or a line holds something else.
    """
    home = os.environ.get("MUSIQUE")
    if not home or not (Path(home) / name).is_file():
        where = home or "the folder MUSIQUE names, for MUSIQUE is not set"
        raise MusiqueError(f"there is no {name} in {where}; set MUSIQUE to the folder that holds it")
    with (Path(home) / name).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                entry = json.loads(line)
                missing = {"id", "question", "answer", "paragraphs"} - set(entry)
            except (ValueError, TypeError) as error:
                raise MusiqueError(f"{name}, line {number} is no JSON object: {error}") from error
            if missing:
                raise MusiqueError(f"{name}, line {number} has no {', '.join(sorted(missing))}")
            if entry.get("answerable", True):
                yield entry


def _task(entry: dict[str, Any]) -> dict[str, Any]:
    answers = [entry["answer"], *entry.get("answer_aliases", [])]
    return {"task_id": entry["id"], "question": entry["question"], "answers": answers}


def write_passages(target: Path) -> int:
    """Writes the distinct paragraphs of both files, one JSON object per line; returns how many."""
    seen: set[tuple[str, str]] = set()
    with target.open("w", encoding="utf-8") as file:
        for name in (TRAIN, DEV):
            for entry in entries(name):
                for paragraph in entry["paragraphs"]:
                    key = (paragraph["title"], paragraph["paragraph_text"])
                    if key not in seen:
                        seen.add(key)
                        file.write(json.dumps({"title": key[0], "text": key[1]}) + "\n")
    return len(seen)


if __name__ == "__main__":
    print(f"{write_passages(Path(sys.argv[1]))} passages written to {sys.argv[1]}")
