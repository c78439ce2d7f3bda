"""The scope follows the code of its rollout, and no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import context as otel_context
from opentelemetry.instrumentation.threading import ThreadingInstrumentor

from spangrad.capture import RolloutScope, current_scope, scope_from_environment, scope_to_environment, use_scope
from spangrad.errors import ConfigError


def make_scope(rollout_id: str = "r1") -> RolloutScope:
    return RolloutScope(
        rollout_id=rollout_id,
        attempt=2,
        task_id="t1",
        base_url=f"http://127.0.0.1:1/rollouts/{rollout_id}/attempts/2/v1",
        api_key="sk-spangrad-secret",
        gateway_url="http://127.0.0.1:1",
    )


@pytest.fixture
def threading_instrumented() -> Iterator[None]:
    instrumentor = ThreadingInstrumentor()
    instrumentor.instrument()
    yield
    instrumentor.uninstrument()


def seen_in_thread() -> RolloutScope | None:
    seen: list[RolloutScope | None] = []
    thread = threading.Thread(target=lambda: seen.append(current_scope()))
    thread.start()
    thread.join()
    return seen[0]


def test_there_is_no_scope_outside_a_rollout() -> None:
    assert current_scope() is None


def test_a_scope_lasts_for_its_block_and_blocks_nest() -> None:
    outer, inner = make_scope("outer"), make_scope("inner")
    with use_scope(outer):
        with use_scope(inner):
            assert current_scope() == inner
        assert current_scope() == outer
    assert current_scope() is None


def test_a_block_of_no_scope_belongs_to_no_rollout(threading_instrumented: None) -> None:
    del threading_instrumented
    outer = make_scope()
    with use_scope(outer):
        with use_scope(None):
            assert current_scope() is None
            assert seen_in_thread() is None
        assert current_scope() == outer


def test_an_exception_leaves_the_block_unchanged_and_ends_the_scope() -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught, use_scope(make_scope()):
        raise error
    assert caught.value is error
    assert current_scope() is None


async def test_concurrent_tasks_and_to_thread_each_keep_their_own_scope() -> None:
    async def one(name: str) -> list[str]:
        seen = []
        with use_scope(make_scope(name)):
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(current_scope())
            seen.append(await asyncio.to_thread(current_scope))
            seen.append(await asyncio.create_task(asyncio.to_thread(current_scope)))
        return [scope.rollout_id for scope in seen if scope is not None]

    names = [f"r{i}" for i in range(20)]
    assert await asyncio.gather(*map(one, names)) == [[name] * 5 for name in names]


def test_a_raw_thread_loses_the_context_variable_but_not_the_mirrored_scope(threading_instrumented: None) -> None:
    del threading_instrumented
    scope = make_scope()
    with use_scope(scope), ThreadPoolExecutor(1) as pool:
        assert seen_in_thread() == scope
        assert pool.submit(current_scope).result() == scope
    assert seen_in_thread() is None


def test_without_threading_instrumentation_a_raw_thread_has_no_scope() -> None:
    with use_scope(make_scope()):
        assert seen_in_thread() is None


def test_the_otel_context_is_as_before_after_the_block() -> None:
    before = dict(otel_context.get_current())
    with use_scope(make_scope()):
        assert dict(otel_context.get_current()) != before
    assert dict(otel_context.get_current()) == before


async def test_a_block_left_in_another_context_restores_nothing_and_raises_nothing() -> None:
    block = use_scope(make_scope())
    await asyncio.create_task(asyncio.to_thread(block.__enter__))
    block.__exit__(None, None, None)
    assert current_scope() is None


def test_headers_name_the_rollout_and_the_agent_but_carry_no_key() -> None:
    scope = make_scope()
    assert scope.headers() == {"x-spangrad-rollout": "r1", "x-spangrad-attempt": "2"}
    assert scope.named("writer").headers()["x-spangrad-agent"] == "writer"


def test_the_key_does_not_show_when_a_scope_is_printed() -> None:
    assert "secret" not in repr(make_scope())


def test_a_scope_survives_the_way_through_the_environment() -> None:
    scope = make_scope()
    environment = scope_to_environment(scope)
    assert scope_from_environment(environment) == scope
    assert environment["OPENAI_BASE_URL"] == scope.base_url
    assert environment["OPENAI_API_KEY"] == scope.api_key


def test_an_environment_of_a_gateway_alone_names_no_rollout() -> None:
    assert scope_from_environment({"SPANGRAD_URL": "http://127.0.0.1:1", "SPANGRAD_KEY": "k"}) is None


def test_an_attempt_that_is_no_number_is_an_error_of_ours() -> None:
    environment = scope_to_environment(make_scope()) | {"SPANGRAD_ATTEMPT": "two"}
    with pytest.raises(ConfigError, match="SPANGRAD_ATTEMPT is 'two'"):
        scope_from_environment(environment)
