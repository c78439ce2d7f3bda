"""Builders of records, shared by the tests of core."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from spangrad.gateway import Engine, Gateway, RolloutAccess, Route, TokenEngine
from spangrad.rollouts import RolloutJob, RolloutResult, Runner, Task, load_agent, load_reward
from spangrad.store import RewardRecord, RolloutRecord, RolloutStatus, Store, open_store
from spangrad.testing import ByteChatFormat, Piece, Script, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import Call, CallStatus, Choice, Transition, TransitionBatch

# What takes how long is the machine's affair, and the same examples every time make a failure repeatable.
settings.register_profile("spangrad", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spangrad")

if TYPE_CHECKING:
    import openai

RolloutShape = tuple[str, float, Sequence[int]]
"""A rollout in short: its group, its reward, and the sampled tokens of each of its calls."""


@pytest.fixture(scope="session")
def make_transition_batch() -> Callable[..., TransitionBatch]:
    """Makes a batch of rollouts. What else calls have is keyed by (rollout, call), both counted from 0; `rollout_components`
    by the rollout alone.
    """

    def make(
        rollouts: Sequence[RolloutShape],
        *,
        call_rewards: Mapping[tuple[int, int], float] | None = None,
        depths: Mapping[tuple[int, int], int] | None = None,
        agents: Mapping[tuple[int, int], str] | None = None,
        states: Mapping[tuple[int, int], str] | None = None,
        scores: Mapping[tuple[int, int], float] | None = None,
        prompts: Mapping[tuple[int, int], tuple[int, ...]] | None = None,
        components: Mapping[tuple[int, int], Mapping[str, float]] | None = None,
        rollout_components: Mapping[int, Mapping[str, float]] | None = None,
    ) -> TransitionBatch:
        return TransitionBatch(
            tuple(
                Transition(
                    rollout_id=f"rollout-{r}",
                    attempt=0,
                    group_id=group,
                    call_id=f"call-{r}-{c}",
                    choice=0,
                    index=c,
                    agent=(agents or {}).get((r, c)),
                    policy="policy",
                    policy_version=0,
                    prompt_ids=(prompts or {}).get((r, c), (1, 2, 3)),
                    action_ids=tuple(range(tokens)),
                    logprobs=(-1.0,) * tokens,
                    temperature=1.0,
                    top_p=1.0,
                    top_k=0,
                    reward=(call_rewards or {}).get((r, c)),
                    rollout_reward=reward,
                    depth=(depths or {}).get((r, c)),
                    state=(states or {}).get((r, c)),
                    score=(scores or {}).get((r, c)),
                    components=(components or {}).get((r, c), {}),
                    rollout_components=(rollout_components or {}).get(r, {}),
                )
                for r, (group, reward, calls) in enumerate(rollouts)
                for c, tokens in enumerate(calls)
            )
        )

    return make


@pytest.fixture(scope="session")
def make_rollout_record() -> Callable[..., RolloutRecord]:
    """Makes the record of a rollout that succeeded, with the named fields set otherwise."""

    def make(**fields: Any) -> RolloutRecord:
        usual: dict[str, Any] = {
            "rollout_id": "rollout-0",
            "attempt": 0,
            "task_id": "task-0",
            "group_id": "group-0",
            "phase": "train",
            "step": 1,
            "status": RolloutStatus.SUCCEEDED,
            "error": "",
            "output": "",
            "started_at": 100.0,
            "finished_at": 200.0,
        }
        return RolloutRecord(**usual | fields)

    return make


@pytest.fixture(scope="session")
def make_reward_record() -> Callable[..., RewardRecord]:
    """Makes a reward of 1 for rollout-0, with the named fields set otherwise."""

    def make(**fields: Any) -> RewardRecord:
        usual: dict[str, Any] = {
            "rollout_id": "rollout-0",
            "attempt": 0,
            "call_id": None,
            "name": "reward",
            "value": 1.0,
            "source": "return_value",
            "at": 200.0,
        }
        return RewardRecord(**usual | fields)

    return make


@pytest.fixture(scope="session")
def make_call() -> Callable[..., Call]:
    """Makes a call of rollout-0, received and answered at second `number`, with the named fields set otherwise."""

    def make(number: int, **fields: Any) -> Call:
        call_id = fields.get("call_id", f"call-{number}")
        usual: dict[str, Any] = {
            "call_id": call_id,
            "rollout_id": "rollout-0",
            "attempt": 0,
            "request_key": call_id,
            "retry": 0,
            "received_at": 100.0 + number,
            "finished_at": 100.5 + number,
            "model": "agent-model",
            "policy": "policy",
            "policy_version": 4,
            "endpoint": "engine",
            "agent": None,
            "status": CallStatus.OK,
            "reason": "",
            "prompt_ids": (1, 2, 3),
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "request": {"messages": [{"role": "user", "content": f"question {number}"}]},
            "choices": (Choice(0, (7, 8), (-0.5, -0.25), "stop", {"role": "assistant", "content": "answer"}),),
        }
        return Call(**usual | fields)

    return make


@pytest.fixture
def echo_store(tmp_path: Path) -> Iterator[Store]:
    """The store of `echo_gateway`."""
    store = open_store(tmp_path / "echo.db")
    yield store
    store.close()


@pytest.fixture
def echo_gateway(echo_store: Store) -> Iterator[Gateway]:
    """A gateway whose one model, "echo", answers with the last message; the message "wait" is answered after a minute."""

    def script(prompt: ScriptedPrompt) -> list[Piece]:
        return [lambda: asyncio.sleep(60), "late"] if prompt.last == "wait" else [prompt.last]

    engine = TokenEngine(ScriptedSampler(script), ByteChatFormat(), "scripted")
    with Gateway(echo_store, [Route("echo", engine, "policy")]) as gateway:
        yield gateway


@pytest.fixture
def gateway_store(tmp_path: Path) -> Iterator[Store]:
    """A real store in a file of its own."""
    store = open_store(tmp_path / "gateway.db")
    yield store
    store.close()


@pytest.fixture
def make_gateway(gateway_store: Store) -> Iterator[Callable[..., Gateway]]:
    """Starts gateways: over an engine, or over a scripted sampler (`make_gateway(script)`), as the model `model` of `policy`."""
    with ExitStack() as running:

        def make(engine: Engine | Script, **options: Any) -> Gateway:
            if callable(engine):
                engine = TokenEngine(ScriptedSampler(engine), ByteChatFormat(), "scripted")
            return running.enter_context(Gateway(gateway_store, [Route("model", engine, "policy")], **options))

        yield make


@pytest.fixture
def play_agent(echo_gateway: Gateway, echo_store: Store) -> Callable[..., Awaitable[RolloutResult]]:
    """Runs an agent once, as rollout "r" on {"text": "x"}; a reward function and settings of the runner may be given."""

    async def play(
        agent: Callable[..., Any] | list[str], reward: Callable[..., Any] | None = None, **settings: Any
    ) -> RolloutResult:
        usual: dict[str, Any] = {"concurrency": 8, "timeout": 20}
        judge = None if reward is None else load_reward(reward, Path())
        runner = Runner(load_agent(agent, Path()), judge, echo_gateway, echo_store, **usual | settings)
        (result,) = await runner.run([RolloutJob("r", 1, "g", Task("t", {"text": "x"}), "train", 1)])
        assert echo_store.rollout("r") == result.record
        return result

    return play


@pytest.fixture
def connect_openai() -> Iterator[Callable[..., openai.OpenAI]]:
    """Makes openai clients for a rollout's access; without retries, unless `max_retries` says otherwise."""
    import openai  # noqa: PLC0415 - only tests marked `openai_client` may need it

    with ExitStack() as opened:

        def make(access: RolloutAccess, **options: Any) -> openai.OpenAI:
            merged: dict[str, Any] = {"max_retries": 0} | options
            client = openai.OpenAI(base_url=access.base_url, api_key=access.api_key, **merged)
            return opened.enter_context(client)

        yield make
