"""What all the contract's tests share: the fixtures, their parameters, and runs with the integration and without."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from spangrad import semconv
from spangrad.capture import flush_spans
from spangrad.testing._contract._expect import holds, same
from spangrad.testing._contract._span_tree import call_of, unordered
from spangrad.testing._contract._stage import Stage, echo, open_stage
from spangrad.testing._contract._subject import ContractSubject
from spangrad.testing._scripted_sampler import Script, scripted_logprob
from spangrad.transitions import Call, CallStatus, Transition

SOLVER: Final = "solver"
QUESTION: Final = "How are you, Jürgen?"
ANSWER: Final = f"You said: {QUESTION}"

Run = Callable[[], Awaitable[Any]]
Test = TypeVar("Test", bound=Callable[..., object])

_PARAMETERS: Final = {
    "way": "ways",
    "batch_way": "batch_ways",
    "stream_way": "stream_ways",
    "mode": "structured_modes",
    "structure": "structures",
    "instrumentor": "instrumentors",
}
"""Argument of a test -> attribute of the subject that lists its values."""


def needs(attribute: str) -> Callable[[Test], Test]:
    """A test that only integrations have for which this attribute of `ContractSubject` is true, or not empty."""

    def mark(test: Test) -> Test:
        vars(test)["needs"] = attribute
        return test

    return mark


class ContractChecks(ContractSubject):
    """Base of the contract's groups of tests."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Leaves out the tests that the integration has no use for."""
        super().__init_subclass__(**options)
        for base in cls.__mro__[1:]:
            for name, test in vars(base).items():
                needed = getattr(test, "needs", None)
                if needed is not None and name not in vars(cls):
                    setattr(cls, name, test if getattr(cls, needed) else None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Gives the tests the subject's own names of ways, modes and structures."""
        for argument, attribute in _PARAMETERS.items():
            if argument in metafunc.fixturenames:
                names = list(getattr(self, attribute))
                holds(names, f"{type(self).__name__}.{attribute} is empty")
                metafunc.parametrize(argument, names)

    @pytest.fixture
    async def stage(self, tmp_path: Path) -> AsyncIterator[Stage]:
        """A gateway of the test's own."""
        async with open_stage(tmp_path) as stage:
            yield stage

    @pytest.fixture(autouse=True)
    def loopback_only(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Fails a test from which anything, in whatever thread, tried to reach another machine."""
        left: list[str] = []
        connect = socket.socket.connect

        def guarded(own: socket.socket, address: Any) -> None:
            if own.family in {socket.AF_INET, socket.AF_INET6} and not ipaddress.ip_address(address[0]).is_loopback:
                left.append(str(address[0]))
                raise ConnectionRefusedError(address)
            connect(own, address)

        monkeypatch.setattr(socket.socket, "connect", guarded)
        yield
        flush_spans()  # what nobody looked at is not the next test's
        same(left, [], "Something tried to reach other machines")

    @contextmanager
    def attached(self) -> Iterator[None]:
        """The integration, attached for the block."""
        detach = self.integration().attach()
        try:
            yield
        finally:
            detach()

    async def compared(self, stage: Stage, run: Run, answers: Sequence[str] | Script | None = None) -> Any:
        """Runs without the integration, then with it in the rollout "rollout"; what the program gets must be the same.

        Args:
            stage: the gateway.
            run: builds an agent and asks it, or asks one that is shared by both runs.
            answers: what the model says in each of the runs, where it is not to repeat the question.

        Returns:
            What came out: ("returned", value) or ("raised", type, text).
        """
        stage.answers(echo if answers is None else answers)
        expected = await outcome(run)
        began = time.time()
        with self.attached():
            stage.answers(echo if answers is None else answers)
            async with stage.rollout():
                found = await outcome(run)
        same(found, expected, "With the integration attached the program gets something else than without")
        orphans = [call.request for call in stage.calls(None) if call.received_at >= began]
        same(orphans, [], "Calls made in the rollout were taken for nobody's")
        same(stage.spans(None), [], "Spans of the rollout do not say whose they are")
        return found

    def check_solver_tree(
        self, stage: Stage, rollout_id: str = "rollout", *, way: str | None = None, times: int = 1
    ) -> None:
        """Insists on the spans of asking the solver `times` times, one after the other or side by side."""
        tree = self.solver_tree if way is None else self.tree_of(way)
        expected = "\n".join([unordered(tree)] * times)
        same(stage.tree(rollout_id, ordered=False), expected, f"The spans of {rollout_id}")
        self.check_spans(stage, rollout_id)

    def check_spans(self, stage: Stage, rollout_id: str = "rollout") -> None:
        """Insists that the rollout's spans are whole: no call has two, none lacks its parent, none was left open."""
        spans = stage.spans(rollout_id)
        ids = {span.context.span_id for span in spans}
        calls = [call_id for span in spans if (call_id := call_of(span)) is not None]
        same(len(calls), len(set(calls)), f"Calls with more than one span in {rollout_id}")
        lost = [span.name for span in spans if span.parent is not None and span.parent.span_id not in ids]
        same(lost, [], f"Spans of {rollout_id} below a span that is not the rollout's")
        left = [span.name for span in spans if (span.attributes or {}).get(semconv.INCOMPLETE)]
        same(left, [], f"Spans of {rollout_id} that were left open")


async def outcome(run: Run) -> tuple[Any, ...]:
    """What the program gets of a run."""
    try:
        return ("returned", await run())
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same with the integration
        return ("raised", type(error), str(error))


def returned(found: tuple[Any, ...]) -> Any:
    """The value of an outcome that has to be one."""
    holds(found[0] == "returned", f"The run raised {found[1:]}")
    return found[1]


def check_transitions(stage: Stage, rollout_id: str = "rollout", *, calls: int | None = None) -> list[Transition]:
    """Insists that the answered calls of the policy are the rollout's transitions: once each, in order, with exact numbers.

    Args:
        stage: where they were made.
        rollout_id: the rollout.
        calls: how many there have to be.
    """
    found = list(stage.extraction(rollout_id).transitions)
    made = [c for c in stage.calls(rollout_id) if c.status is CallStatus.OK and c.policy == "policy"]
    same(
        [t.call_id for t in found],
        [c.call_id for c in made],
        "The transitions are not the answered calls of the policy",
    )
    if calls is not None:
        same(len(found), calls, "The number of transitions")
    for transition, call in zip(found, made, strict=True):
        _check_numbers(transition, call)
    return found


def _check_numbers(transition: Transition, call: Call) -> None:
    prompt, action = transition.prompt_ids, transition.action_ids
    same(prompt, call.prompt_ids, "A transition's observation is not the prompt")
    expected = tuple(scripted_logprob(prompt, i, token, 0) for i, token in enumerate(action))
    same(transition.logprobs, expected, "A transition's log-probabilities are not the sampler's")
    same(transition.agent, call.agent, "A transition's agent is not the call's")
