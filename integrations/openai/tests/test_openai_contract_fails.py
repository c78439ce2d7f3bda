"""The contract's tests can fail: integrations broken on purpose do not pass them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from integrations.openai.tests.test_openai_contract import TestOpenAIContract as Contract
from openai import AsyncOpenAI, ConflictError
from openai.resources.chat.completions import AsyncCompletions
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

from spangrad import semconv
from spangrad.capture import RolloutScope, WorkRecorder, current_scope, tracer_provider
from spangrad.plugins import Integration
from spangrad.testing._contract._stage import Stage, open_stage
from spangrad_openai import OpenAIIntegration, _client_patch

WORK = WorkRecorder("broken")


class Broken:
    """The integration of openai, and a fault that comes and goes with it."""

    framework = "openai"

    def __init__(self, fault: Callable[[pytest.MonkeyPatch], None]) -> None:
        self._real = OpenAIIntegration()
        self._fault = fault

    def attach(self) -> Callable[[], None]:
        detach = self._real.attach()
        patch = pytest.MonkeyPatch()
        self._fault(patch)

        def undo() -> None:
            patch.undo()
            detach()

        return undo

    def describe(self) -> Mapping[str, str]:
        return self._real.describe()


class Absent:
    """One that hooks nothing."""

    framework = "openai"

    def attach(self) -> Callable[[], None]:
        return lambda: None

    def describe(self) -> Mapping[str, str]:
        return {"openai": "patched"}


def around_create(patch: pytest.MonkeyPatch, wrap: Callable[..., Awaitable[Any]]) -> None:
    """Puts a function around every asynchronous chat completion: it gets the real one first, then the arguments."""
    real = AsyncCompletions.create

    @functools.wraps(real)
    async def create(*args: Any, **kwargs: Any) -> Any:
        return await wrap(real, *args, **kwargs)

    patch.setattr(AsyncCompletions, "create", create)


def takes_all_for_the_first_rollout(patch: pytest.MonkeyPatch) -> None:
    first: list[RolloutScope] = []

    def scope() -> RolloutScope | None:
        if (current := current_scope()) is not None:
            first.append(current)
        return first[0] if first else None

    patch.setattr(_client_patch, "current_scope", scope)


def takes_every_other_call_for_nobodys(patch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()
    patch.setattr(_client_patch, "current_scope", lambda: current_scope() if next(calls) % 2 else None)


def takes_strangers_for_the_latest_rollout(patch: pytest.MonkeyPatch) -> None:
    latest: list[RolloutScope] = []
    enter = Stage.open

    def opened(stage: Stage, rollout_id: str) -> RolloutScope:
        latest.append(enter(stage, rollout_id))
        return latest[-1]

    patch.setattr(Stage, "open", opened)
    patch.setattr(_client_patch, "current_scope", lambda: current_scope() or latest[-1].named("solver"))


def names_the_wrong_agent(patch: pytest.MonkeyPatch) -> None:
    def scope() -> RolloutScope | None:
        current = current_scope()
        return None if current is None else current.named("somebody")

    patch.setattr(_client_patch, "current_scope", scope)


def calls_twice(patch: pytest.MonkeyPatch) -> None:
    async def twice(real: Any, *args: Any, **kwargs: Any) -> Any:
        await real(*args, **kwargs)
        return await real(*args, **kwargs)

    around_create(patch, twice)


def changes_the_answer(patch: pytest.MonkeyPatch) -> None:
    async def changed(real: Any, *args: Any, **kwargs: Any) -> Any:
        answer = await real(*args, **kwargs)
        answer.choices[0].message.content = "something else"
        return answer

    around_create(patch, changed)


def changes_the_error(patch: pytest.MonkeyPatch) -> None:
    async def changed(real: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await real(*args, **kwargs)
        except Exception as error:
            raise RuntimeError("spangrad") from error

    around_create(patch, changed)


def changes_the_request(patch: pytest.MonkeyPatch) -> None:
    async def changed(real: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["messages"] = [{"role": "system", "content": "You are traced."}, *kwargs["messages"]]
        return await real(*args, **kwargs)

    around_create(patch, changed)


def doubles_spans(patch: pytest.MonkeyPatch) -> None:
    async def doubled(real: Any, *args: Any, **kwargs: Any) -> Any:
        attributes = {semconv.OPERATION_NAME: "chat"}
        tracer = tracer_provider().get_tracer("doubled")
        with tracer.start_as_current_span("openai.chat", kind=SpanKind.CLIENT, attributes=attributes):
            return await real(*args, **kwargs)

    around_create(patch, doubled)


def leaves_work_open(patch: pytest.MonkeyPatch) -> None:
    async def opened(real: Any, *args: Any, **kwargs: Any) -> Any:
        WORK.begin(object(), "solver", operation=semconv.AGENT_OPERATION)
        return await real(*args, **kwargs)

    around_create(patch, opened)


def records_outside_of_rollouts(patch: pytest.MonkeyPatch) -> None:
    async def recorded(real: Any, *args: Any, **kwargs: Any) -> Any:
        if current_scope() is None:
            tracer_provider().get_tracer("eager").start_span("openai.chat").end()
        return await real(*args, **kwargs)

    around_create(patch, recorded)


def sets_the_global_provider(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(shutdown_on_exit=False))


def gets_between_the_programs_spans(patch: pytest.MonkeyPatch) -> None:
    async def between(real: Any, *args: Any, **kwargs: Any) -> Any:
        with TracerProvider(shutdown_on_exit=False).get_tracer("ours").start_as_current_span("ours"):
            return await real(*args, **kwargs)

    around_create(patch, between)


def changes_nothing(patch: pytest.MonkeyPatch) -> None:
    del patch


@contextmanager
def breaking(integration: Callable[[], object]) -> Iterator[Contract]:
    """The contract of an integration that is broken."""

    class Subject(Contract):
        def integration(self) -> Integration:
            return cast("Integration", integration())

    yield Subject()


@dataclass(frozen=True)
class Fault:
    """A way to break the integration, and where that has to be noticed."""

    breaks: Callable[[pytest.MonkeyPatch], None]
    test: str
    complaint: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    raises: type[Exception] | tuple[type[Exception], ...] = AssertionError

    async def run(self, stage: Stage, contract: Contract) -> None:
        """Runs the contract's test."""
        arguments: dict[str, Any] = dict(self.arguments)
        with pytest.MonkeyPatch.context() as patch:
            if self.breaks is sets_the_global_provider:
                arguments["monkeypatch"] = patch
            await getattr(contract, self.test)(stage, **arguments)


ASKING = "test_each_way_of_asking_makes_one_call_of_the_agent"
CHAT = {"way": "async chat"}
FAULTS = [
    Fault(
        takes_all_for_the_first_rollout,
        "test_rollouts_in_tasks_own_their_calls",
        r"The calls of rollout-\d|Attempt 1 of rollout 'rollout-\d' is closed",
        CHAT,
        (AssertionError, ConflictError),  # whether that rollout is over by then is chance
    ),
    Fault(takes_every_other_call_for_nobodys, "test_rollouts_in_tasks_own_their_calls", "The calls of nobody", CHAT),
    Fault(takes_strangers_for_the_latest_rollout, "test_a_worker_of_no_rollout_is_credited_to_none", "The calls of"),
    Fault(names_the_wrong_agent, ASKING, "The agents of the calls", CHAT),
    Fault(calls_twice, ASKING, "The questions of the calls", CHAT),
    Fault(changes_the_answer, ASKING, "the program gets something else", CHAT),
    Fault(
        changes_the_error, "test_an_error_of_the_model_reaches_the_program_as_ever", "the program gets something else"
    ),
    Fault(changes_the_request, "test_the_reference_conversation_gives_the_reference_transitions", "The prompts"),
    Fault(doubles_spans, ASKING, "The spans of rollout", CHAT),
    Fault(leaves_work_open, ASKING, "The spans of rollout", CHAT),
    Fault(records_outside_of_rollouts, "test_outside_of_rollouts_nothing_is_recorded", "Spans of work outside"),
    Fault(sets_the_global_provider, "test_the_programs_global_tracer_provider_is_left_alone", "global tracer provider"),
    Fault(
        gets_between_the_programs_spans,
        "test_the_programs_own_instrumentor_gets_its_spans_and_nothing_is_doubled",
        "The spans of OpenInference",
        {"instrumentor": "OpenInference", "first": "program"},
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.breaks.__name__)
async def test_a_fault_is_found(tmp_path: Path, fault: Fault) -> None:
    async with open_stage(tmp_path) as stage:
        with breaking(lambda: Broken(fault.breaks)) as contract, pytest.raises(fault.raises, match=fault.complaint):
            await fault.run(stage, contract)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.breaks.__name__)
async def test_the_same_test_passes_without_the_fault(tmp_path: Path, fault: Fault) -> None:
    async with open_stage(tmp_path) as stage:
        with breaking(lambda: Broken(changes_nothing)) as contract:
            await fault.run(stage, contract)


async def test_one_that_hooks_nothing_is_found(tmp_path: Path) -> None:
    with breaking(Absent) as contract:
        async with open_stage(tmp_path) as stage:
            with pytest.raises(AssertionError, match="Calls made in the rollout were taken for nobody's"):
                await contract.test_each_way_of_asking_makes_one_call_of_the_agent(stage, "async chat")
        with pytest.raises(AssertionError, match="Attaching changes nothing"):
            await contract.test_detaching_restores_every_attribute()


async def test_one_that_does_not_restore_is_found() -> None:
    left = pytest.MonkeyPatch()

    def leaves_an_attribute(_: pytest.MonkeyPatch) -> None:
        left.setattr(AsyncOpenAI, "left_behind", object(), raising=False)

    with breaking(lambda: Broken(leaves_an_attribute)) as contract:
        try:
            with pytest.raises(AssertionError, match=r"did not restore(?s:.*)AsyncOpenAI.left_behind"):
                await contract.test_detaching_restores_every_attribute()
        finally:
            left.undo()
