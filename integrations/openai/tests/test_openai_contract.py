"""The contract, kept by plain openai clients: agents are functions, and `use_scope(scope.named(...))` says which one runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from spangrad.capture import current_scope, use_scope
from spangrad.plugins import Integration
from spangrad.testing import ContractEndpoint, IntegrationContract, ReferenceRun, Structure
from spangrad_openai import OpenAIIntegration


class Answer(BaseModel):
    word: str
    number: int


@dataclass
class Solver:
    """An agent as people write it without a framework."""

    client: AsyncOpenAI
    sync: OpenAI
    model: str
    tools: Sequence[Mapping[str, Any]] = ()
    functions: Mapping[str, Callable[..., object]] | None = None
    name: str = "solver"
    system: str = "Answer."


def add(a: int, b: int) -> int:
    return a + b


def multiply(a: int, b: int) -> int:
    return a * b


def fail(reason: str) -> str:
    raise LookupError(reason)


def schema(name: str, **properties: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@contextmanager
def agent(name: str) -> Iterator[None]:
    """Says which agent the block is."""
    scope = current_scope()
    if scope is None:
        yield
        return
    with use_scope(scope.named(name)):
        yield


TOOLS: Mapping[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "add": (add, schema("add", a="integer", b="integer")),
    "multiply": (multiply, schema("multiply", a="integer", b="integer")),
    "fail": (fail, schema("fail", reason="string")),
}


class TestOpenAIContract(IntegrationContract):
    packages = ("openai", "threading", "concurrent.futures.thread", "opentelemetry.instrumentation.openai")
    records_work = False
    solver_tree = "call solver"
    ways = ("async chat", "sync chat", "async responses", "sync responses", "raw response")
    batch_ways = ("gather",)
    stream_ways = ("async stream", "sync stream", "stream helper", "responses stream")
    structured_modes = ("parse", "json_schema", "json_object", "tool", "responses parse")
    structures: ClassVar[Mapping[str, Structure]] = {
        "one after the other": Structure(
            answers=("a plan", "a text"), agents=("planner", "writer"), tree="call planner\ncall writer"
        ),
        "side by side": Structure(
            answers=lambda prompt: f"on {prompt.last}",
            agents=("left", "right"),
            tree="call left\ncall right",
            ordered=False,
        ),
    }
    has_judge = True

    def integration(self) -> Integration:
        return OpenAIIntegration()

    async def solver(self, endpoint: ContractEndpoint, *, tools: bool = False) -> Solver:
        client, sync = self.clients(endpoint)
        shown = [shape for _, shape in TOOLS.values()] if tools else []
        return Solver(client, sync, endpoint.model, shown, {name: function for name, (function, _) in TOOLS.items()})

    def clients(self, endpoint: ContractEndpoint) -> tuple[AsyncOpenAI, OpenAI]:
        client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        sync = OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        endpoint.on_close(client.close)
        endpoint.on_close(sync.close)
        return client, sync

    async def ask(self, solver: Solver, way: str, question: str) -> str:
        with agent(solver.name):
            if way == "sync chat":
                return await asyncio.to_thread(self._chat, solver, question)
            if way == "sync responses":
                response = await asyncio.to_thread(
                    solver.sync.responses.create, model=solver.model, input=question, instructions=solver.system
                )
                return response.output_text
            if way == "async responses":
                response = await solver.client.responses.create(
                    model=solver.model, input=question, instructions=solver.system
                )
                return response.output_text
            if way == "raw response":
                raw = await solver.client.chat.completions.with_raw_response.create(
                    model=solver.model, messages=messages(solver, question)
                )
                return raw.parse().choices[0].message.content or ""
            return await converse(solver, question)

    def ask_sync(self, solver: Solver, question: str) -> str:
        with agent(solver.name):
            return self._chat(solver, question)

    def _chat(self, solver: Solver, question: str) -> str:
        answer = solver.sync.chat.completions.create(model=solver.model, messages=messages(solver, question))
        return answer.choices[0].message.content or ""

    async def batch(self, solver: Solver, way: str, questions: Sequence[str]) -> list[str]:
        assert way == "gather"
        return list(await asyncio.gather(*(self.ask(solver, "async chat", question) for question in questions)))

    async def stream(self, solver: Solver, way: str, question: str) -> list[str]:
        with agent(solver.name):
            if way == "sync stream":
                return await asyncio.to_thread(lambda: list(sync_pieces(solver, question)))
            return [piece async for piece in STREAMS[way](solver, question)]

    async def close_early(self, solver: Solver, way: str, question: str) -> None:
        with agent(solver.name):
            if way == "sync stream":
                await asyncio.to_thread(read_one, sync_pieces(solver, question))
                return
            async with aclosing(STREAMS[way](solver, question)) as pieces:
                async for _ in pieces:
                    break

    async def structured(self, endpoint: ContractEndpoint, mode: str, question: str) -> Mapping[str, Any]:
        solver = await self.solver(endpoint)
        with agent(solver.name):
            return await structured(solver, mode, question)

    async def run_structure(self, endpoint: ContractEndpoint, name: str, question: str) -> str:
        solver = await self.solver(endpoint)

        async def role(role: str, text: str) -> str:
            return await self.ask(replace(solver, name=role), "async chat", text)

        if name == "side by side":
            return " and ".join(
                await asyncio.gather(role("left", f"{question} left"), role("right", f"{question} right"))
            )
        return await role("writer", await role("planner", question))

    async def judged(self, endpoint: ContractEndpoint, question: str) -> str:
        solver = await self.solver(endpoint)
        answer = await self.ask(solver, "async chat", question)
        verdict = await self.ask(replace(solver, name="judge", model=endpoint.judge), "async chat", answer)
        assert verdict == "fine"
        return answer

    async def reference(self, endpoint: ContractEndpoint, run: ReferenceRun) -> str:
        solver = await self.solver(endpoint)
        name = run.tool["function"]["name"]

        def measure(**arguments: Any) -> str:
            return run.call_tool(arguments)

        with agent(solver.name):
            told = replace(solver, system=run.system, tools=[run.tool], functions={name: measure})
            return await converse(told, run.question)


def messages(solver: Solver, question: str) -> list[Any]:
    return [{"role": "system", "content": solver.system}, {"role": "user", "content": question}]


async def converse(solver: Solver, question: str) -> str:
    """Calls the model until it answers without a tool call."""
    said = messages(solver, question)
    functions = solver.functions or {}
    options: dict[str, Any] = {"tools": list(solver.tools)} if solver.tools else {}
    while True:
        answer = await solver.client.chat.completions.create(model=solver.model, messages=said, **options)
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        said.append(message)
        for call in message.tool_calls:
            assert call.type == "function"
            result = functions[call.function.name](**json.loads(call.function.arguments))
            said.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})


async def chat_pieces(solver: Solver, question: str) -> AsyncGenerator[str]:
    stream = await solver.client.chat.completions.create(
        model=solver.model, messages=messages(solver, question), stream=True
    )
    async with stream:
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content


async def helper_pieces(solver: Solver, question: str) -> AsyncGenerator[str]:
    async with solver.client.chat.completions.stream(model=solver.model, messages=messages(solver, question)) as events:
        async for event in events:
            if event.type == "content.delta":
                yield event.delta


async def responses_pieces(solver: Solver, question: str) -> AsyncGenerator[str]:
    stream = await solver.client.responses.create(
        model=solver.model, input=question, instructions=solver.system, stream=True
    )
    async with stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                yield event.delta


def sync_pieces(solver: Solver, question: str) -> Generator[str]:
    with solver.sync.chat.completions.create(
        model=solver.model, messages=messages(solver, question), stream=True
    ) as stream:
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content


def read_one(pieces: Generator[str]) -> None:
    next(pieces)
    pieces.close()


STREAMS = {"async stream": chat_pieces, "stream helper": helper_pieces, "responses stream": responses_pieces}


async def structured(solver: Solver, mode: str, question: str) -> Mapping[str, Any]:
    told, client = messages(solver, question), solver.client
    if mode == "responses parse":
        response = await client.responses.parse(model=solver.model, input=question, text_format=Answer)
        assert response.output_parsed is not None
        return response.output_parsed.model_dump()
    if mode == "parse":
        parsed = await client.chat.completions.parse(model=solver.model, messages=told, response_format=Answer)
        assert parsed.choices[0].message.parsed is not None
        return parsed.choices[0].message.parsed.model_dump()
    shape = {"name": "answer", "schema": Answer.model_json_schema()}
    options: dict[str, dict[str, Any]] = {
        "json_schema": {"response_format": {"type": "json_schema", "json_schema": shape}},
        "json_object": {"response_format": {"type": "json_object"}},
        "tool": {
            "tools": [schema("answer", word="string", number="integer")],
            "tool_choice": {"type": "function", "function": {"name": "answer"}},
        },
    }
    answer = await client.chat.completions.create(model=solver.model, messages=told, **options[mode])
    message = answer.choices[0].message
    text = message.tool_calls[0].function.arguments if message.tool_calls else message.content
    answered: Mapping[str, Any] = json.loads(text or "")
    return answered
