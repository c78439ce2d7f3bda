"""Spans of a framework's work, and where in it code is running."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import StatusCode

from spangrad import semconv
from spangrad.capture import (
    CallSite,
    RolloutScope,
    WorkRecorder,
    add_probe,
    current_site,
    deliver_spans,
    end_work,
    use_scope,
)


def scope(rollout_id: str = "r", attempt: int = 1) -> RolloutScope:
    url = f"http://127.0.0.1:1/rollouts/{rollout_id}/attempts/{attempt}/v1"
    return RolloutScope(rollout_id, attempt, "t", url, "key", "http://127.0.0.1:1")


@contextmanager
def collected() -> Iterator[dict[str, ReadableSpan]]:
    found: list[ReadableSpan] = []
    by_name: dict[str, ReadableSpan] = {}
    with deliver_spans(found.extend):
        yield by_name
    assert len({span.name for span in found}) == len(found)
    by_name.update({span.name: span for span in found})


def parent(spans: dict[str, ReadableSpan], name: str) -> str | None:
    above = spans[name].parent
    return None if above is None else next(n for n, s in spans.items() if s.context.span_id == above.span_id)


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def test_work_below_work_is_found_by_the_frameworks_ids_and_inherits_the_agent() -> None:
    recorder = WorkRecorder("test")
    with collected() as spans, use_scope(scope()):
        recorder.begin(1, "writer", operation=semconv.AGENT_OPERATION, agent="writer")
        recorder.begin(2, "draft", operation=semconv.NODE_OPERATION, parent=1, attributes={semconv.NODE: "draft"})
        recorder.begin(3, "search", operation=semconv.TOOL_OPERATION, parent=2)
        recorder.end(1)
        recorder.end(3, attributes={semconv.TOOL_RESULT: ["ä", 1]})
        recorder.end(2)

    assert [parent(spans, name) for name in ("invoke_agent writer", "invoke_node draft", "execute_tool search")] == [
        None,
        "invoke_agent writer",
        "invoke_node draft",
    ]
    tool = attributes(spans["execute_tool search"])
    assert (tool[semconv.AGENT_NAME], tool[semconv.OPERATION_NAME]) == ("writer", "execute_tool")
    assert (tool[semconv.ROLLOUT_ID], tool[semconv.ATTEMPT], tool[semconv.TASK_ID]) == ("r", 1, "t")
    assert tool[semconv.TOOL_RESULT] == '["ä", 1]'
    assert semconv.INCOMPLETE not in tool
    assert (scope_name := spans["invoke_node draft"].instrumentation_scope) is not None
    assert scope_name.name == "test"


def test_outside_a_rollout_nothing_is_kept() -> None:
    recorder = WorkRecorder("test")
    with collected() as spans:
        recorder.begin(1, "writer", operation=semconv.AGENT_OPERATION)
        assert recorder.site(1) is None
        recorder.end(1)
    assert spans == {}


def test_work_that_fails_says_how() -> None:
    recorder = WorkRecorder("test")
    with collected() as spans, use_scope(scope()):
        recorder.begin(1, "a", operation="x")
        recorder.begin(2, "b", operation="x")
        recorder.end(1, error=LookupError("gone"))
        recorder.end(2, error="timed out")

    assert spans["x a"].status.status_code is StatusCode.ERROR
    assert (spans["x a"].status.description, attributes(spans["x a"])[semconv.ERROR_TYPE]) == ("gone", "LookupError")
    assert (spans["x b"].status.description, attributes(spans["x b"])[semconv.ERROR_TYPE]) == ("timed out", "error")


def test_an_end_without_a_beginning_and_a_second_end_do_nothing() -> None:
    recorder = WorkRecorder("test")
    with collected() as spans, use_scope(scope()):
        recorder.end("never begun")
        recorder.begin(1, "a", operation="x")
        recorder.end(1)
        recorder.end(1, error="late")
    assert spans["x a"].status.status_code is StatusCode.UNSET


def test_work_begun_anew_under_an_open_id_ends_the_old_one_as_incomplete() -> None:
    recorder = WorkRecorder("test")
    with collected() as spans, use_scope(scope()):
        recorder.begin(1, "first", operation="x")
        recorder.begin(1, "second", operation="x", parent=1)
        recorder.end(1)
    assert attributes(spans["x first"])[semconv.INCOMPLETE] is True
    assert semconv.INCOMPLETE not in attributes(spans["x second"])
    assert parent(spans, "x second") == "x first"


def test_at_the_end_of_a_rollout_its_open_work_is_ended_as_incomplete_and_no_other() -> None:
    recorder = WorkRecorder("test")
    with collected() as spans:
        for rollout in (scope("r"), scope("r", 2), scope("s")):
            with use_scope(rollout):
                recorder.begin(rollout, f"{rollout.rollout_id}{rollout.attempt}", operation="x")
        end_work(scope("r"))
        assert recorder.site(scope("r")) is None
        assert recorder.site(scope("r", 2)) is not None
        recorder.end(scope("r"), error="late")
        recorder.end(scope("r", 2))
        recorder.end(scope("s"))
    assert {name: attributes(span).get(semconv.INCOMPLETE) for name, span in spans.items()} == {
        "x r1": True,
        "x r2": None,
        "x s1": None,
    }


def test_work_of_another_rollout_is_no_parent() -> None:
    recorder = WorkRecorder("test")
    with collected() as spans:
        with use_scope(scope("r")):
            recorder.begin(1, "in r", operation="x", agent="r's")
        with use_scope(scope("s")):
            recorder.begin(2, "in s", operation="x", parent=1)
            recorder.end(2)
        recorder.end(1)
    assert parent(spans, "x in s") is None
    assert semconv.AGENT_NAME not in attributes(spans["x in s"])


def test_the_programs_own_span_is_no_parent() -> None:
    recorder = WorkRecorder("test")
    own = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    with collected() as spans, use_scope(scope()), own.start_as_current_span("request"):
        recorder.begin(1, "a", operation="x")
        recorder.end(1)
    assert spans["x a"].parent is None


def test_values_that_opentelemetry_does_not_take_become_text() -> None:
    class Odd:
        def __str__(self) -> str:
            raise KeyError("no text")

    loop: list[object] = []
    loop.append(loop)
    recorder = WorkRecorder("test")
    given = {
        "object": {"b": [1, None]},
        "half": "\ud83d!",
        "loop": loop,
        "odd": Odd(),
        "none": None,
        "keys": {(1, 2): 3},
    }
    with collected() as spans, use_scope(scope()):
        recorder.begin(1, "a", operation="x", attributes=given)
        recorder.end(1)
    found = attributes(spans["x a"])
    assert (found["object"], found["half"], found["loop"]) == ('{"b": [1, null]}', "?!", "[[...]]")
    assert found["odd"] == "<Odd whose text raises KeyError>"
    assert found["keys"] == "{(1, 2): 3}"
    assert "none" not in found


async def test_many_rollouts_at_once_in_tasks_and_threads_keep_their_work_apart() -> None:
    recorder = WorkRecorder("test")

    def tool(name: str) -> None:
        recorder.begin((name, "tool"), f"{name} tool", operation="x", parent=name)
        recorder.end((name, "tool"))

    async def one(number: int) -> None:
        name = f"r{number}"
        with use_scope(scope(name)):
            recorder.begin(name, f"{name} agent", operation="x", agent=name)
            await asyncio.sleep(0)
            await asyncio.gather(asyncio.to_thread(tool, name), asyncio.sleep(0))
            recorder.end(name)

    with collected() as spans:
        await asyncio.gather(*map(one, range(20)))
    for number in range(20):
        found = spans[f"x r{number} tool"]
        assert parent(spans, f"x r{number} tool") == f"x r{number} agent"
        assert (attributes(found)[semconv.ROLLOUT_ID], attributes(found)[semconv.AGENT_NAME]) == (f"r{number}",) * 2


def test_a_second_framework_nested_in_the_first_is_placed_below_the_innermost_site() -> None:
    outer, inner = WorkRecorder("outer"), WorkRecorder("inner")
    running: ContextVar[str | None] = ContextVar("running", default=None)
    inner_running: ContextVar[str | None] = ContextVar("inner_running", default=None)
    removes = [add_probe(lambda: inner.site(inner_running.get())), add_probe(lambda: outer.site(running.get()))]
    try:
        with collected() as spans, use_scope(scope()):
            outer.begin("agent", "agent", operation="x", agent="manager")
            outer.begin("tool", "tool", operation="x", parent="agent")
            token = running.set("tool")
            inner.begin("sub", "sub", operation="y", agent="helper")
            inner.begin("unnamed", "unnamed", operation="y")
            inner_token = inner_running.set("sub")
            site = current_site()
            assert site is not None
            assert (site.span.name, site.agent) == ("y sub", "helper")
            inner_running.reset(inner_token)
            inner.end("sub")
            assert (site := current_site()) is not None
            assert (site.span.name, site.agent) == ("x tool", "manager")
            running.reset(token)
            for key in ("unnamed",):
                inner.end(key)
            for key in ("tool", "agent"):
                outer.end(key)
    finally:
        for remove in removes:
            remove()
    assert parent(spans, "y sub") == "x tool"
    assert attributes(spans["y unnamed"])[semconv.AGENT_NAME] == "manager"


def test_a_site_counts_only_while_its_work_is_open_and_in_its_own_rollout() -> None:
    recorder = WorkRecorder("test")
    remove = add_probe(lambda: recorder.site(1) or kept)
    kept: CallSite | None = None
    try:
        with use_scope(scope("r")):
            recorder.begin(1, "a", operation="x", agent="a")
            kept = recorder.site(1)
            assert current_site() == kept
        with use_scope(scope("s")):
            assert current_site() is None
        assert current_site() is None
        with use_scope(scope("r")):
            recorder.end(1)
            assert current_site() is None
    finally:
        remove()
        remove()


def test_a_probe_that_raises_is_said_once_and_the_others_are_asked(caplog: pytest.LogCaptureFixture) -> None:
    recorder = WorkRecorder("test")

    def broken() -> CallSite | None:
        raise AttributeError("the framework changed")

    removes = [add_probe(broken), add_probe(lambda: recorder.site(1))]
    try:
        with use_scope(scope()):
            recorder.begin(1, "a", operation="x", agent="a")
            for _ in range(3):
                assert (site := current_site()) is not None
                assert site.agent == "a"
            recorder.end(1)
    finally:
        for remove in removes:
            remove()
    assert [record.message for record in caplog.records] == [
        "A framework's probe failed, so calls may lack their agent: AttributeError: the framework changed"
    ]


def test_a_forked_copy_of_the_process_does_not_end_the_originals_work() -> None:
    program = """
import json, os, sys
from spangrad.capture import RolloutScope, WorkRecorder, deliver_spans, end_work, use_scope
scope = RolloutScope("r", 1, "t", "http://127.0.0.1:1/v1", "key")
recorder, found = WorkRecorder("test"), []
with deliver_spans(found.extend), use_scope(scope):
    recorder.begin(1, "original", operation="x", agent="a")
    reader, writer = os.pipe()
    if os.fork() == 0:
        recorder.begin(2, "copy", operation="x", parent=1)
        end_work(scope)
        from spangrad.capture import flush_spans
        flush_spans()
        told = [(s.name, s.parent and s.parent.span_id) for s in found]
        os.write(writer, json.dumps(told).encode())
        os._exit(0)
    os.wait()
    told = json.loads(os.read(reader, 1000))
    mine = recorder.site(1).span.context.span_id
    recorder.end(1)
print(json.dumps([told == [["x copy", mine]], [s.name for s in found]]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout) == [True, ["x original"]]


def test_recorders_are_used_by_many_threads_at_once() -> None:
    recorder = WorkRecorder("test")

    def use(thread: int) -> None:
        with use_scope(scope(f"r{thread}")):
            for number in range(50):
                recorder.begin((thread, number), f"{thread} {number}", operation="x")
            end_work(scope(f"r{thread}"))

    with collected() as spans:
        threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(spans) == 300
