"""A small agent in plain Python: its model asks for a calculator, reads the result, answers."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from openai import AsyncOpenAI

MODEL_CALLS = 2
MAX_TOKENS = 48
SYSTEM = "Use calc, then answer."
CALC: Any = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Integer + - *",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


async def solve(task: Mapping[str, Any]) -> dict[str, str | None]:
    """Answers the task's question: the last tool result and the final answer, None where there was none."""
    messages: list[Any] = prompt(task)
    result = None
    for _ in range(MODEL_CALLS):
        reply = await client().chat.completions.create(
            model="policy", messages=messages, tools=[CALC], max_tokens=MAX_TOKENS
        )
        message = reply.choices[0].message
        if not message.tool_calls:
            return {"result": result, "answer": message.content}
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = use_calc(call.function.arguments) if call.type == "function" else f"error: no {call.type} tool"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return {"result": result, "answer": None}


@cache
def client() -> AsyncOpenAI:
    """One client, and so one pool of connections, for all rollouts; made when first used, with the environment of then."""
    return AsyncOpenAI()


def prompt(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation as the model first sees it."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task["question"]}]


def use_calc(arguments: str) -> str:
    """The tool: the result as text, or what was wrong with the arguments."""
    try:
        return str(calculate(json.loads(arguments)["expression"]))
    except (ValueError, KeyError, TypeError, SyntaxError) as problem:
        return f"error: {problem}"


def calculate(expression: str) -> int:
    """Works out whole numbers joined by + - * and brackets."""
    if not re.fullmatch(r"[-+*() 0-9]{1,40}", expression):
        raise ValueError("only integers and + - *")

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return int(OPERATORS[type(op)](value(left), value(right)))
            case _:
                raise ValueError("only integers and + - *")

    return value(ast.parse(expression.strip(), mode="eval").body)


def success(task: Mapping[str, Any], output: Mapping[str, str | None]) -> bool:
    """Whether the last number of the answer is the right one."""
    numbers = re.findall(r"-?\d+", output["answer"] or "")
    return bool(numbers) and numbers[-1] == str(task["answer"])


def reward(task: Mapping[str, Any], output: Mapping[str, str | None]) -> float:
    """0.8 for the right number; 0.2 for the form: the calculator was used and what it gave is said as `answer: N`."""
    form = bool(re.fullmatch(r"-?\d+", output["result"] or "")) and output["answer"] == f"answer: {output['result']}"
    return 0.8 * success(task, output) + 0.2 * form
