"""What a rollout's spans say was done, in `explain`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from spangrad import semconv
from spangrad.spans import Span
from spangrad.store import RewardRecord, RolloutRecord, explain, open_store

TRACE = "0af7651916cd43dd8448eb211c80319c"


def span(
    number: int,
    name: str,
    parent: int | None = None,
    more: Mapping[str, Any] | None = None,
    *,
    error: str = "",
    attempt: int = 0,
) -> Span:
    status: Literal["error", "unset"] = "error" if error else "unset"
    return Span(
        trace_id=TRACE,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        rollout_id="rollout-0",
        attempt=attempt,
        name=name,
        kind="internal",
        start_ns=number,
        end_ns=number + 1,
        status=status,
        status_message=error,
        attributes=more or {},
        events=(),
        scope="test",
    )


SPANS = [
    span(1, "invoke_agent writer", None, {semconv.AGENT_NAME: "writer", semconv.OPERATION_NAME: "invoke_agent"}),
    span(2, "chat policy", 1, {semconv.OPERATION_NAME: "chat", semconv.CALL_ID: "call-1"}),
    span(
        3,
        "execute_tool add",
        1,
        {
            semconv.TOOL_NAME: "add",
            semconv.TOOL_CALL_ID: "t1",
            semconv.TOOL_ARGUMENTS: '{"a": 1}',
            semconv.TOOL_RESULT: "2\nand more",
        },
    ),
    span(4, "invoke_agent helper", 3, {semconv.INCOMPLETE: True}),
    span(5, "execute_tool fail", 1, error="ValueError: no"),
    span(6, "lost", 99),
    span(7, "of another attempt", attempt=1),
    span(8, "ring a", 9),
    span(9, "ring b", 8),
]

SHOWN = """\
  What ran:
    invoke_agent writer
      chat policy, call call-1
      execute_tool add
        arguments: {"a": 1}
        result: 2 and more
        invoke_agent helper, still under way when the rollout ended
      execute_tool fail
        error: ValueError: no
    lost
    ring a
      ring b"""


def test_work_is_shown_as_a_tree_in_the_order_it_began(
    tmp_path: Path,
    make_rollout_record: Callable[..., RolloutRecord],
    make_reward_record: Callable[..., RewardRecord],
) -> None:
    store = open_store(tmp_path / "spangrad.db")
    try:
        store.save_rollout(make_rollout_record())
        store.add_reward(make_reward_record())
        store.add_spans(list(reversed(SPANS)))
        explanation = explain(store, "rollout-0", decode=lambda ids: str(list(ids)))
    finally:
        store.close()

    (attempt,) = explanation.attempts
    assert [(work.depth, work.name) for work in attempt.work] == [
        (0, "invoke_agent writer"),
        (1, "chat policy"),
        (1, "execute_tool add"),
        (2, "invoke_agent helper"),
        (1, "execute_tool fail"),
        (0, "lost"),
        (0, "ring a"),
        (1, "ring b"),
    ]
    assert [work.call_id for work in attempt.work if work.call_id] == ["call-1"]
    add = attempt.work[2]
    assert (add.tool, add.tool_call_id, add.arguments, add.result) == ("add", "t1", '{"a": 1}', "2\nand more")
    assert attempt.work[0].agent == "writer"
    assert SHOWN in explanation.render()
