"""Three agents in a LangGraph: one writes SQL, one checks what it gave, one rewrites it.

Nothing here knows spangrad: the nodes of the graph are the agents, and their names are what `policy.train` names. Each asks for
a model of its own name; which one that is, the settings say.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import database
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

REWRITES = int(os.environ.get("REWRITES", "1"))
"""How often a query may be written anew."""
MAX_TOKENS = int(os.environ.get("MAX_TOKENS", "40"))

Messages = list[tuple[str, str]]


class State(TypedDict, total=False):
    """What the agents share."""

    question: str
    schema: str
    path: str
    sql: str
    outcome: str
    """What the query gave, in short, or why it failed."""
    verdict: str
    rewrites: int


def write_prompt(question: str, schema: str) -> Messages:
    """What the writer is asked."""
    return [("system", f"Write one SQLite query.\n{schema}"), ("user", question)]


def check_prompt(question: str, sql: str, outcome: str) -> Messages:
    """What the checker is asked."""
    return [
        ("system", "Does the query answer the question? Say ok or wrong."),
        ("user", f"{question}\n{sql}\n{outcome}"),
    ]


def rewrite_prompt(question: str, schema: str, sql: str, outcome: str) -> Messages:
    """What the rewriter is asked."""
    return [("system", f"The query is wrong. Write a right one.\n{schema}"), ("user", f"{question}\n{sql}\n{outcome}")]


@cache
def model(name: str) -> ChatOpenAI:
    """An agent's client for all rollouts; made when first used, with the environment of then."""
    return ChatOpenAI(model=name, max_completion_tokens=MAX_TOKENS)


async def ask(name: str, messages: Messages) -> str:
    """The answer of the model of that name as text."""
    return str((await model(name).ainvoke(messages)).content)


def query_in(answer: str) -> str:
    """The query in an answer: what a code fence holds, or else all of it."""
    fenced = re.search(r"```(?:sql)?\s*(.*?)```", answer, re.DOTALL)
    return (fenced[1] if fenced else answer).strip().rstrip(";")


async def writer(state: State) -> State:
    """Writes the first query."""
    return {"sql": query_in(await ask("writer", write_prompt(state["question"], state["schema"]))), "rewrites": 0}


async def execute(state: State) -> State:
    """Runs the query; no model takes part."""
    return {"outcome": await asyncio.to_thread(database.outcome, Path(state["path"]), state["sql"])}


async def checker(state: State) -> State:
    """Judges the query by what it gave."""
    return {"verdict": await ask("checker", check_prompt(state["question"], state["sql"], state["outcome"]))}


async def rewriter(state: State) -> State:
    """Writes another query, knowing what the last one gave."""
    answer = await ask("rewriter", rewrite_prompt(state["question"], state["schema"], state["sql"], state["outcome"]))
    return {"sql": query_in(answer), "rewrites": state["rewrites"] + 1}


def after_execution(state: State) -> str:
    """The last query that may be written is not checked: nothing could follow from it."""
    return END if state["rewrites"] >= REWRITES else "checker"


def after_check(state: State) -> str:
    """A query that was found wrong is rewritten."""
    return END if state["verdict"].strip().lower().startswith("ok") else "rewriter"


@cache
def graph() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The workflow of the paper's text-to-SQL agent."""
    flow = StateGraph(State)
    flow.add_node("writer", writer)
    flow.add_node("execute", execute)
    flow.add_node("checker", checker)
    flow.add_node("rewriter", rewriter)
    flow.add_edge(START, "writer")
    flow.add_edge("writer", "execute")
    flow.add_conditional_edges("execute", after_execution, ["checker", END])
    flow.add_conditional_edges("checker", after_check, ["rewriter", END])
    flow.add_edge("rewriter", "execute")
    return flow.compile()


async def solve(task: Mapping[str, Any]) -> dict[str, Any]:
    """Answers the task's question with a query: {"sql": ..., "rewrites": ...}."""
    path = database.path_of(task["database"])
    schema = await asyncio.to_thread(database.schema, path)
    begin: State = {"question": task["question"], "schema": schema, "path": str(path)}
    end = await graph().ainvoke(begin)
    return {"sql": end["sql"], "rewrites": end["rewrites"]}


def reward(task: Mapping[str, Any], output: Mapping[str, Any]) -> float:
    """1 if the query gives the rows that the reference query gives, else 0."""
    return float(database.same_rows(database.path_of(task["database"]), output["sql"], task["query"]))
