"""What an integration's tests tell the contract suite: how agents are built and asked in the framework's own idiom."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spangrad.plugins import Integration
from spangrad.testing._contract._endpoint import ContractEndpoint
from spangrad.testing._contract._reference_run import ReferenceRun
from spangrad.testing._scripted_sampler import Script


@dataclass(frozen=True, slots=True)
class Structure:
    """A form of several agents, or of one agent's parts, and what running it once has to leave behind."""

    answers: Sequence[str] | Script
    """What the model says: one text a call, in the order of the calls, or a script, where calls come side by side. A tool call
    is written as `tool_call_text("add", a=2, b=3)` gives it."""
    agents: Sequence[str | None]
    """The agent of each call, in the order of the calls."""
    tree: str
    """The spans, one a line, each two spaces further in than its parent, in the order they begin: the name of a span
    ("invoke_agent writer", "execute_tool add"), or "call AGENT" for the span of a model call. Lines are stripped of the
    indentation they all have, as by `textwrap.dedent`."""
    ordered: bool = True
    """False where branches run side by side: then neither calls nor spans of one parent are compared by order."""
    attributes: Mapping[str, Mapping[str, Any]] | None = None
    """Name of a span -> attributes it must have, such as {"handoff writer": {"spangrad.handoff.target": "writer"}}."""


class ContractSubject(ABC):
    """The part of `IntegrationContract` that a subclass fills in.

    Build agents as the framework's own documentation does, from the endpoint's `base_url`, `api_key` and `model`, and without a
    word of spangrad. Leave the client's retries on. What needs closing is left to `endpoint.on_close`. Methods are called both
    with the integration attached and without it, inside rollouts and outside.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    """Names of the modules the integration hooks into, with all below them, such as ("openai", "threading"): attaching and
    detaching must leave every attribute of theirs, and of their classes, as it was."""

    records_work: ClassVar[bool] = True
    """Whether it records agents and tools; the integration of a plain client only sees calls."""

    solver_tree: ClassVar[str] = "invoke_agent solver\n  call solver"
    """The spans of asking the solver once, in the form of `Structure.tree`."""

    ways: ClassVar[tuple[str, ...]] = ()
    """Names of the ways to ask an agent once and get its answer whole (invoke, ainvoke, run, run_sync in a thread...). The first
    one is used where the way does not matter."""

    batch_ways: ClassVar[tuple[str, ...]] = ()
    """Names of the ways to ask several questions at once."""

    stream_ways: ClassVar[tuple[str, ...]] = ()
    """Names of the ways to get an answer piece by piece."""

    structured_modes: ClassVar[tuple[str, ...]] = ()
    """Names of the ways to ask for an object instead of text."""

    structured_agent: ClassVar[str | None] = "solver"
    """The agent of the calls of `structured`."""

    structures: ClassVar[Mapping[str, Structure]] = {}
    """By name: nested agents, an agent as a tool, handoffs, teams, parallel branches."""

    instrumentors: ClassVar[Mapping[str, str]] = {
        "OpenInference": "openinference.instrumentation.openai:OpenAIInstrumentor",
        "OpenLLMetry": "opentelemetry.instrumentation.openai:OpenAIInstrumentor",
    }
    """Instrumentors a program may have set up itself, as "module:class"; a subclass may add its framework's own."""

    has_cache: ClassVar[bool] = False
    """Whether the framework can cache a model's answers; `cached_solver` is then to be filled in."""

    has_judge: ClassVar[bool] = False
    """Whether the framework has guardrails, or agents that judge others; `judged` is then to be filled in."""

    judge_agent: ClassVar[str | None] = "judge"
    """The agent of the judge's call in `judged`; None where it has no name."""

    def tree_of(self, way: str) -> str:
        """The spans of asking the solver once in this one of `ways` or `stream_ways`; `solver_tree`, unless a subclass knows better."""
        del way
        return self.solver_tree

    @abstractmethod
    def integration(self) -> Integration:
        """A new object of the integration, not attached."""

    @abstractmethod
    async def solver(self, endpoint: ContractEndpoint, *, tools: bool = False) -> Any:
        """An agent named "solver" that answers a question with one model call.

        Args:
            endpoint: where its model is.
            tools: give it the tools `add(a: int, b: int) -> int`, `multiply(a: int, b: int) -> int`, and `fail(reason: str) -> str`,
                which raises `LookupError(reason)`. It then goes on calling the model until that answers without a tool call, and
                its answer is that last one's text. How the framework takes a failing tool is the framework's affair.

        Returns:
            Whatever `ask` and the others need. One solver is shared by many rollouts at the same time.
        """

    @abstractmethod
    async def ask(self, solver: Any, way: str, question: str) -> str:
        """Asks the solver in one of `ways`. The question must be the last user message, just as it is.

        Returns:
            The answer's text.
        """

    def ask_sync(self, solver: Any, question: str) -> str:
        """Asks without a running event loop, from whatever thread calls it.

        By default runs the first of `ways` in an event loop of its own; a framework that has a synchronous way should use that.
        """
        return asyncio.run(self._ask_first(solver, question))

    threads_share: ClassVar[bool] = True
    """Whether `ask_sync` works in many threads with one solver; otherwise each thread gets one made by `thread_solver`."""

    def thread_solver(self, endpoint: ContractEndpoint) -> Any:
        """A solver made in the thread that asks it; for frameworks whose clients belong to one event loop."""
        raise NotImplementedError

    async def batch(self, solver: Any, way: str, questions: Sequence[str]) -> list[str]:
        """Asks several questions at once in one of `batch_ways`; each takes one call. Returns the answers in order."""
        raise NotImplementedError

    async def stream(self, solver: Any, way: str, question: str) -> list[str]:
        """Asks in one of `stream_ways`. Returns the texts of all pieces, in order; together they are the answer."""
        raise NotImplementedError

    async def close_early(self, solver: Any, way: str, question: str) -> None:
        """Asks in one of `stream_ways`, and lets go of the stream after the first piece of text, as programs do there."""
        raise NotImplementedError

    async def structured(self, endpoint: ContractEndpoint, mode: str, question: str) -> Mapping[str, Any]:
        """Asks in one of `structured_modes` for an object {"word": string, "number": integer}, with one call.

        The model answers with a call of the first tool it is shown, where it is shown any, and else with the JSON.

        Returns:
            The object.
        """
        raise NotImplementedError

    async def run_structure(self, endpoint: ContractEndpoint, name: str, question: str) -> str:
        """Runs one of `structures` once. Returns its answer."""
        raise NotImplementedError

    async def cached_solver(self, endpoint: ContractEndpoint) -> Any:
        """A solver with the framework's own cache of model answers switched on, asked in the first of `ways`."""
        raise NotImplementedError

    async def judged(self, endpoint: ContractEndpoint, question: str) -> str:
        """Asks a solver whose question or answer a guardrail or judge looks at: one call of the policy, and one of `endpoint.judge`,
        whose model says "fine".

        Returns:
            The solver's answer.
        """
        raise NotImplementedError

    @abstractmethod
    async def reference(self, endpoint: ContractEndpoint, run: ReferenceRun) -> str:
        """Runs the reference conversation: system prompt, question, one tool call, its result, the final answer.

        The tool must reach the wire exactly as `run.tool` has it; so frameworks that make schemas from functions are given the
        schema in their own way.

        Returns:
            The final answer.
        """

    def fingerprint(self) -> Mapping[str, object]:
        """What attaching changes outside of `packages`' own attributes (lists inside objects, say), in comparable form."""
        return {}

    async def _ask_first(self, solver: Any, question: str) -> str:
        return await self.ask(solver, self.ways[0], question)
