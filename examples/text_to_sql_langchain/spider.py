"""Spider's own files as tasks: train_spider.json, train_others.json, dev.json and database/NAME/NAME.sqlite, as published.

The environment variable SPIDER names the folder they lie in.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class SpiderError(Exception):
    """Spider's files are not where they should be, or not what they should be."""


def train() -> list[dict[str, Any]]:
    """The training questions."""
    return load("train_spider.json")


def dev() -> list[dict[str, Any]]:
    """The development questions, on databases that training has none of."""
    return load("dev.json")


def load(name: str) -> list[dict[str, Any]]:
    """The questions of one of Spider's files.

    Raises:
        SpiderError: SPIDER is not set, or a file is missing or holds something else.
    """
    home = Path(os.environ.get("SPIDER", ""))
    if not os.environ.get("SPIDER") or not (home / name).is_file():
        raise SpiderError(
            f"there is no {name} in {home if os.environ.get('SPIDER') else 'the folder SPIDER names, for SPIDER is not set'}; "
            f"set SPIDER to the folder that holds {name} and database/"
        )
    tasks = []
    for position, entry in enumerate(json.loads((home / name).read_text(encoding="utf-8"))):
        missing = {"db_id", "question", "query"} - set(entry)
        if missing:
            raise SpiderError(f"{home / name}: entry {position} has no {', '.join(sorted(missing))}")
        path = home / "database" / entry["db_id"] / f"{entry['db_id']}.sqlite"
        if not path.is_file():
            raise SpiderError(f"{home / name}: entry {position} asks about {entry['db_id']}, but there is no {path}")
        tasks.append(
            {
                "task_id": f"{Path(name).stem}-{position}",
                "database": str(path.resolve()),
                "question": entry["question"],
                "query": entry["query"],
            }
        )
    return tasks
