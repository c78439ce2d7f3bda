"""Recorded rollouts, made up: the same content for every system that reads spans."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, Final

from spangrad import semconv
from spangrad.spans import Span
from spangrad.transitions import Call, CallStatus, Choice, RewardRecord, RolloutRecord, RolloutStatus

FIRST_PROMPT: Final = 200
"""Tokens of a rollout's first prompt."""
ANSWER: Final = 40
"""Tokens sampled in a call."""
TOOL: Final = 40
"""Tokens of what a tool says between two calls."""
SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Step:
    """One call, and the reward for it."""

    call_id: str
    messages: list[dict[str, str]]
    answer: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float
    start: float
    """Unix seconds; it takes one, and the reward comes half a second later."""


@dataclass(frozen=True, slots=True)
class Other:
    """A span that is no LLM call: a chain or a tool around or beside them."""

    span_id: str
    parent_id: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A rollout: an agent's span, and under it calls and other spans."""

    rollout_id: str
    trace_id: str
    root_id: str
    steps: tuple[Step, ...]
    others: tuple[Other, ...]
    start: float
    end: float


def make(number: int, calls: int, others: int) -> Trace:
    """A rollout of so many calls, each of which extends the one before, and so many other spans, nested three deep."""
    at = random.Random(1000 * number + 10 * calls + others)
    start = 1_800_000_000.0 + number
    root = f"{at.getrandbits(64):016x}"
    prompt = tuple(at.randrange(32000) for _ in range(FIRST_PROMPT))
    messages = [{"role": "system", "content": "You answer questions with tools. " * 8}]
    steps = []
    for index in range(calls):
        messages = [*messages, {"role": "user", "content": f"What the tool said, number {index}: " + "word " * TOOL}]
        ids = tuple(at.randrange(32000) for _ in range(ANSWER))
        logprobs = tuple(round(-at.random(), 6) for _ in ids)
        answer = "an answer " * (ANSWER // 2)
        steps.append(
            Step(f"call-{number}-{index}", messages, answer, prompt, ids, logprobs, index / 4, start + 2 * index)
        )
        prompt += ids + tuple(at.randrange(32000) for _ in range(TOOL))
        messages = [*messages, {"role": "assistant", "content": answer}]
    end = start + 2 * calls
    found: list[Other] = []
    for index in range(others):
        parent = root if index % 3 == 0 else found[-1].span_id
        inside = 0.01 * (index % 3 + 1)
        moment = start + (end - start) * (index - index % 3) / others
        found.append(Other(f"{at.getrandbits(64):016x}", parent, moment + inside, moment + 0.1 - inside))
    return Trace(f"rollout-{number}", f"{at.getrandbits(128):032x}", root, tuple(steps), tuple(found), start, end)


def expected(trace: Trace) -> list[tuple[list[int], list[int], float]]:
    """(prompt ids, answer ids, reward) of each call."""
    return [(list(step.prompt_ids), list(step.answer_ids), step.reward) for step in trace.steps]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A rollout as spangrad's store gives it."""

    rollout: RolloutRecord
    calls: list[Call]
    rewards: list[RewardRecord]
    spans: list[Span]


def as_recorded(trace: Trace) -> Recorded:
    """The rollout as the gateway and a framework's hooks record it."""
    rollout = RolloutRecord(
        trace.rollout_id, 1, "task", "group", "train", 1, RolloutStatus.SUCCEEDED, "", "", trace.start, trace.end
    )
    calls = [_call(trace.rollout_id, step) for step in trace.steps]
    rewards = [
        RewardRecord(trace.rollout_id, 1, step.call_id, "reward", step.reward, "scope", step.start + 1.5)
        for step in trace.steps
    ]
    agent = _span(trace, trace.root_id, None, "invoke_agent", trace.start, trace.end, {semconv.AGENT_NAME: "solver"})
    spans = [agent, *(_llm_span(trace, step, index) for index, step in enumerate(trace.steps))]
    spans += [
        _span(trace, o.span_id, o.parent_id, "tool", o.start, o.end, {"tool.name": "search"}) for o in trace.others
    ]
    return Recorded(rollout, calls, rewards, sorted(spans, key=lambda span: span.start_ns))


def _call(rollout_id: str, step: Step) -> Call:
    message = {"role": "assistant", "content": step.answer}
    return Call(
        call_id=step.call_id,
        rollout_id=rollout_id,
        attempt=1,
        request_key=f"request of {step.call_id}",
        retry=0,
        received_at=step.start,
        finished_at=step.start + 1.0,
        model="policy",
        policy="policy",
        policy_version=1,
        endpoint="engine",
        agent=None,
        status=CallStatus.OK,
        reason="",
        prompt_ids=step.prompt_ids,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        request={"model": "policy", "messages": step.messages},
        choices=(Choice(0, step.answer_ids, step.logprobs, "stop", message),),
    )


def _llm_span(trace: Trace, step: Step, index: int) -> Span:
    attributes = {
        semconv.OPERATION_NAME: "chat",
        semconv.REQUEST_MODEL: "policy",
        semconv.CALL_ID: step.call_id,
        semconv.REQUEST_KEY: f"request of {step.call_id}",
        semconv.RESPONSE_ID: f"chatcmpl-{step.call_id}",
        semconv.INPUT_TOKENS: len(step.prompt_ids),
        semconv.OUTPUT_TOKENS: len(step.answer_ids),
    }
    return _span(trace, f"{index + 1:016x}", trace.root_id, "chat policy", step.start, step.start + 1.0, attributes)


def _span(  # noqa: PLR0917 - the fields of a span in their order
    trace: Trace, span_id: str, parent_id: str | None, name: str, start: float, end: float, attributes: dict[str, Any]
) -> Span:
    return Span(
        trace_id=trace.trace_id,
        span_id=span_id,
        parent_id=parent_id,
        rollout_id=trace.rollout_id,
        attempt=1,
        name=name,
        kind="internal",
        start_ns=int(start * SECOND),
        end_ns=int(end * SECOND),
        status="ok",
        status_message="",
        attributes=attributes,
        events=(),
        scope="benchmark",
    )


def as_plain(trace: Trace) -> dict[str, Any]:
    """The rollout as plain values, for a peer to make its own spans of: the call's content as AgentOps lays it out."""
    spans = [_plain(trace.root_id, None, "agent", trace.start, trace.end, {"agent.name": "solver"})]
    for index, step in enumerate(trace.steps):
        spans += [
            _plain(
                f"{index + 1:016x}",
                trace.root_id,
                "openai.chat.completion",
                step.start,
                step.start + 1.0,
                _content(step),
            )
        ]
        spans += [
            _plain(f"f{index + 1:015x}", trace.root_id, "reward", step.start + 1.5, step.start + 1.5, {}, step.reward)
        ]
    spans += [_plain(o.span_id, o.parent_id, "tool", o.start, o.end, {"tool.name": "search"}) for o in trace.others]
    return {
        "rollout_id": trace.rollout_id,
        "trace_id": trace.trace_id,
        "spans": sorted(spans, key=lambda s: s["start"]),
    }


def _content(step: Step) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.request.model": "policy",
        "gen_ai.response.id": f"chatcmpl-{step.call_id}",
        "gen_ai.response.model": "policy",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": step.answer,
        "prompt_token_ids": list(step.prompt_ids),
        "response_token_ids": list(step.answer_ids),
        "logprobs.content": json.dumps([{"token": "t", "logprob": value} for value in step.logprobs]),
    }
    for index, message in enumerate(step.messages):
        attributes[f"gen_ai.prompt.{index}.role"] = message["role"]
        attributes[f"gen_ai.prompt.{index}.content"] = message["content"]
    return attributes


def _plain(  # noqa: PLR0917 - as above
    span_id: str,
    parent_id: str | None,
    name: str,
    start: float,
    end: float,
    attributes: dict[str, Any],
    reward: float | None = None,
) -> dict[str, Any]:
    return {
        "span_id": span_id,
        "parent_id": parent_id,
        "name": name,
        "start": start,
        "end": end,
        "attributes": attributes,
        "reward": reward,
    }
