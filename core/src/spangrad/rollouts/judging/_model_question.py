"""What a model that judges is asked, and how numbers are read out of what it says."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_NUMBER: Final = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_ONE: Final = re.compile(rf"\bscore\W*?[:=]\W*?({_NUMBER})", re.IGNORECASE)
_SEVERAL: Final = re.compile(r"\bscores\W*?[:=][^\S\n]*([^\n]*)", re.IGNORECASE)
_ALONE: Final = re.compile(rf"\s*({_NUMBER})\s*")


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """Which model judges, and by what."""

    endpoint: str | None
    """URL of an OpenAI-compatible server, `/v1` included; None for the run's own gateway, whose URL is known once it runs."""
    model: str
    api_key: str
    """Empty when the server wants none."""
    criteria: str
    """What makes an answer a good one, in the user's words."""
    lowest: float = 0.0
    highest: float = 1.0


def question_about(settings: JudgeSettings, task: Any, answer: str) -> str:
    """The question that has one answer scored by itself."""
    return (
        f"You judge the answer of an agent to a task.\n\nThe task:\n{_shown(task)}\n\nThe answer:\n{answer}\n\n"
        f"What counts:\n{settings.criteria}\n\n{_demand(settings, 1)}"
    )


def question_among(settings: JudgeSettings, task: Any, answers: Sequence[str]) -> str:
    """The question that has the answers of a group scored against each other."""
    numbered = "\n\n".join(f"Answer {number}:\n{answer}" for number, answer in enumerate(answers, start=1))
    return (
        f"You compare the answers of several agents to one task.\n\nThe task:\n{_shown(task)}\n\n{numbered}\n\n"
        f"What counts:\n{settings.criteria}\n\n{_demand(settings, len(answers))}"
    )


def reminder(settings: JudgeSettings, count: int) -> str:
    """What is said when no scores could be read."""
    return f"No score could be read out of that. {_demand(settings, count)}"


def scores_in(settings: JudgeSettings, text: str, count: int) -> list[float] | None:
    """The scores that a reply ends on, `count` of them within the settings' bounds; None where it does not.

    One score follows `Score:`, or is all there is; several follow `Scores:` on one line, separated by commas.
    """
    numbers = _one(text) if count == 1 else _several(text)
    if numbers is None or len(numbers) != count:
        return None
    return numbers if all(settings.lowest <= number <= settings.highest for number in numbers) else None


def _demand(settings: JudgeSettings, count: int) -> str:
    bounds = f"from {settings.lowest:g} (worst) to {settings.highest:g} (best)"
    if count == 1:
        return f"End your reply with a line `Score: X`, where X is a number {bounds}."
    return (
        f"End your reply with a line `Scores: X1, X2, ...`: {count} numbers {bounds}, one for each answer in the order above, "
        "separated by commas."
    )


def _one(text: str) -> list[float] | None:
    found = _ONE.findall(text) or _ALONE.fullmatch(text)
    if not found:
        return None
    number = float(found[-1] if isinstance(found, list) else found[1])
    return [number] if math.isfinite(number) else None


def _several(text: str) -> list[float] | None:
    lines = _SEVERAL.findall(text)
    if not lines:
        return None
    words = [word.strip(" \t*`[]().") for word in lines[-1].split(",")]
    matches = [re.fullmatch(_NUMBER, word) for word in words]
    return [float(match[0]) for match in matches if match is not None] if all(matches) else None


def _shown(task: Any) -> str:
    return task if isinstance(task, str) else json.dumps(task, ensure_ascii=False, indent=1)
