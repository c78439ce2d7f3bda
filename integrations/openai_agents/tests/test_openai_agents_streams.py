"""Streams that nobody reads to their end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    Runner,
)

from spangrad.capture import flush_spans

if TYPE_CHECKING:
    from integrations.openai_agents.tests.conftest import Stage

pytestmark = pytest.mark.usefixtures("attached", "api")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """A stream that is dropped ends its span when it is collected: not in the middle of another test."""
    yield
    gc.collect()
    flush_spans()


def agent(*tools: Any, **options: Any) -> Agent[Any]:
    return Agent(name="solver", instructions="Solve it.", tools=list(tools), **options)


async def test_a_cancelled_stream_leaves_no_piece_of_work_open(stage: Stage) -> None:
    async def slowly() -> None:
        await asyncio.sleep(30)

    stage.script = lambda _prompt: ["First ", "word", slowly, "never"]

    with stage.rollout():
        result = Runner.run_streamed(agent(), "go")
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                result.cancel()
                break
        await drained(result.stream_events())

    assert stage.tree() == ["invoke_agent solver"]
    assert stage.trained() == []


async def drained(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


async def test_a_stream_that_is_left_early_does_not_touch_the_next_run(stage: Stage) -> None:
    stage.answers("First answer", "Second answer")

    with stage.rollout():
        left = Runner.run_streamed(agent(), "one")
        async for _ in left.stream_events():
            break
        await drained(left.stream_events())
        result = await Runner.run(Agent(name="next"), "two")

    assert result.final_output == "Second answer"
    assert stage.trained() == ["solver", "next"]
    assert stage.tree() == ["invoke_agent solver", "invoke_agent next"]
