"""An agent of the OpenAI Agents SDK that searches a corpus, as often as it likes, and answers.

Nothing here knows spangrad.
"""

from __future__ import annotations

import json
import os
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import retrieval
from agents import Agent, FunctionTool, MaxTurnsExceeded, ModelBehaviorError, ModelSettings, Runner
from agents.tool_context import ToolContext

INSTRUCTIONS = "Search, then answer in answer tags."
SEARCH = "search"
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TURNS = 4
"""Model calls of a rollout at most."""
MAX_TOKENS = int(os.environ.get("MAX_TOKENS", "48"))


async def search(context: ToolContext[Any], arguments: str) -> str:
    """The tool: the best passages for the query, or what is wrong with the arguments."""
    del context
    try:
        query = json.loads(arguments)["query"]
    except (ValueError, KeyError, TypeError) as problem:
        return f"error: {problem}"
    return "\n".join(retrieval.index().best(str(query)))


@cache
def researcher() -> Agent[None]:
    """The agent, the same for all rollouts."""
    tool = FunctionTool(SEARCH, "Finds passages", PARAMETERS, search, strict_json_schema=False)
    settings = ModelSettings(max_tokens=MAX_TOKENS)
    return Agent(name="researcher", instructions=INSTRUCTIONS, tools=[tool], model="policy", model_settings=settings)


async def solve(task: Mapping[str, Any]) -> dict[str, Any]:
    """Answers the task's question: {"said": the last thing the agent said, "searches": how often it searched}."""
    try:
        result = await Runner.run(researcher(), task["question"], max_turns=TURNS)
    except (
        MaxTurnsExceeded,
        ModelBehaviorError,
    ):  # it went on searching or talking: no answer, and no fault of the program
        return {"said": "", "searches": 0}
    searches = sum(item.type == "tool_call_item" for item in result.new_items)
    return {"said": str(result.final_output), "searches": searches}


def reward(task: Mapping[str, Any], output: Mapping[str, Any]) -> float:
    """0.9 x word F1 of the answer + 0.1 x form, as in the paper: it searched, and answered in the tags and nothing else."""
    found = re.fullmatch(r"\s*<answer>(.*?)</answer>\s*", output["said"], re.DOTALL)
    if found is None:
        return 0.0
    right = max(word_f1(found[1], str(answer)) for answer in task["answers"])
    return 0.9 * right + 0.1 * bool(output["searches"])


def word_f1(said: str, answer: str) -> float:
    """Harmonic mean of precision and recall over words, as SQuAD counts them (Rajpurkar et al., 2016)."""
    got, wanted = words(said), words(answer)
    if not got or not wanted:
        return float(got == wanted)
    same = sum((Counter(got) & Counter(wanted)).values())
    return 2 * same / (len(got) + len(wanted))


def words(text: str) -> Sequence[str]:
    """The words of a text in lower case, without punctuation and articles."""
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return [word for word in bare.split() if word not in {"a", "an", "the"}]
