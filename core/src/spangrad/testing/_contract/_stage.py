"""A gateway whose models follow a script, a store, and everything that is recorded there during a test."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan

from spangrad import semconv
from spangrad.capture import RolloutScope, deliver_spans, end_work, flush_spans, use_scope
from spangrad.gateway import Engine, Gateway, Route, TokenEngine
from spangrad.store import Store, open_store
from spangrad.testing._byte_chat_format import ByteChatFormat
from spangrad.testing._contract._endpoint import ContractEndpoint
from spangrad.testing._contract._span_tree import tree_text
from spangrad.testing._scripted_sampler import Piece, Script, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import Call, Extraction, RewardRecord, RolloutRecord, RolloutStatus, extract

ATTEMPT = 1


def echo(prompt: ScriptedPrompt) -> list[Piece]:
    """Repeats the last message of the user, in two pieces."""
    return ["You said: ", said(prompt)]


def said(prompt: ScriptedPrompt) -> str:
    """The last message of the user."""
    return next(turn["content"] for turn in reversed(prompt.messages) if turn["role"] == "user")


def fine(prompt: ScriptedPrompt) -> str:
    """What the judge says."""
    del prompt
    return "fine"


@dataclass
class Stage:
    """One test's gateway."""

    gateway: Gateway
    store: Store
    endpoint: ContractEndpoint
    delivered: list[ReadableSpan] = field(default_factory=list)
    """Spans of all its rollouts, and of none."""
    script: Script = echo
    """What the policy's model says."""
    task_id: str = field(default_factory=lambda: f"task-{uuid.uuid4()}")
    """Of all its rollouts, and of no other stage's."""

    def take(self, spans: Sequence[ReadableSpan]) -> None:
        """Keeps spans that were delivered, but not those of an earlier test's: a stream that nobody read to its end may end its
        span when the garbage collector finds it.
        """
        own = {None, self.task_id}
        self.delivered.extend(span for span in spans if (span.attributes or {}).get(semconv.TASK_ID) in own)

    def answers(self, texts: Sequence[str] | Script) -> None:
        """What the policy's model says from now on: one text a call, or a script."""
        if callable(texts):
            self.script = texts
            return
        left = list(texts)
        self.script = lambda _prompt: left.pop(0)

    def open(self, rollout_id: str) -> RolloutScope:
        """A new rollout's scope."""
        access = self.gateway.open_rollout(rollout_id, ATTEMPT)
        url = self.gateway.base_url
        return RolloutScope(rollout_id, ATTEMPT, self.task_id, access.base_url, access.api_key, gateway_url=url)

    @asynccontextmanager
    async def rollout(self, rollout_id: str = "rollout", *, agent: str | None = None) -> AsyncIterator[RolloutScope]:
        """Runs the block inside a rollout, and ends that as the runner does."""
        scope = self.open(rollout_id).named(agent)
        try:
            with use_scope(scope):
                yield scope
        finally:
            await asyncio.wrap_future(self.gateway.close_rollout(rollout_id, ATTEMPT))
            end_work(scope)

    def calls(self, rollout_id: str | None = "rollout") -> list[Call]:
        """The rollout's calls (None: those of no rollout), in the order they were received."""
        return list(self.store.calls(rollout_id))

    def agents(self, rollout_id: str = "rollout") -> list[str | None]:
        """The agent of each call."""
        return [call.agent for call in self.calls(rollout_id)]

    def questions(self, rollout_id: str | None = "rollout") -> list[str]:
        """The last message of the user in each call."""
        chat = ByteChatFormat()
        turns = (chat.read(call.prompt_ids or ()) for call in self.calls(rollout_id))
        return [next(t["content"] for t in reversed(all_of) if t["role"] == "user") for all_of in turns]

    def extraction(self, rollout_id: str = "rollout") -> Extraction:
        """What the rollout's calls amount to, with a reward of 1."""
        times = {"started_at": 0.0, "finished_at": 1.0}
        record = RolloutRecord(
            rollout_id, ATTEMPT, self.task_id, "group", "train", 1, RolloutStatus.SUCCEEDED, "", "", **times
        )
        reward = RewardRecord(rollout_id, ATTEMPT, None, "reward", 1.0, "scope", at=1.0)
        return extract(record, self.calls(rollout_id), [reward])

    def spans(self, rollout_id: str | None = "rollout") -> list[ReadableSpan]:
        """The spans that say they are this rollout's (None: those that name no rollout), in the order they began."""
        flush_spans()
        own = [span for span in self.delivered if (span.attributes or {}).get(semconv.ROLLOUT_ID) == rollout_id]
        return sorted(own, key=lambda span: span.start_time or 0)

    def named(self, name: str, rollout_id: str = "rollout") -> list[ReadableSpan]:
        """The rollout's spans of that name."""
        return [span for span in self.spans(rollout_id) if span.name == name]

    def tree(self, rollout_id: str = "rollout", *, ordered: bool = True) -> str:
        """The rollout's spans as `Structure.tree` has them."""
        agents = {call.call_id: call.agent for call in self.calls(rollout_id)}
        return tree_text(self.spans(rollout_id), agents, ordered=ordered)


@asynccontextmanager
async def open_stage(folder: Path, engine: Engine | None = None) -> AsyncIterator[Stage]:
    """Opens one.

    Args:
        folder: for the store.
        engine: answers for the policy instead of the script.
    """
    store = open_store(folder / "contract.db")
    sampler = ScriptedSampler(lambda prompt: stage.script(prompt))  # noqa: PLW0108 - tests put another script there
    policy = engine or TokenEngine(sampler, ByteChatFormat(), "scripted")
    judge = TokenEngine(ScriptedSampler(fine), ByteChatFormat(), "frozen")
    try:
        with Gateway(store, [Route("policy", policy, policy="policy"), Route("judge", judge)]) as gateway:
            stage = Stage(gateway, store, ContractEndpoint(f"{gateway.base_url}/v1", "not-a-rollouts-key"))
            with deliver_spans(stage.take):
                try:
                    yield stage
                finally:
                    await stage.endpoint.close()
    finally:
        store.close()
