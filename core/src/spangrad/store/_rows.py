"""Records as table rows, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from spangrad.errors import RewardError, StoreError
from spangrad.spans import Span, span_from_json, span_to_json
from spangrad.transitions import (
    Call,
    CallStatus,
    Choice,
    Continuation,
    Continuity,
    Fate,
    LedgerEntry,
    Reason,
    RewardRecord,
    RolloutRecord,
    RolloutStatus,
)

Row = Mapping[str, Any]

_ID: Final = np.dtype("<i4")
_LOGPROB: Final = np.dtype("<f4")
_CONTINUATION: Final = ("continuity", "continued_from", "compared_with", "differs_at")
"""Columns of a call that are fields of its continuation."""


def to_json(value: Any, what: str) -> str:
    """Compact JSON text, ASCII only, so that text no encoding can hold (a lone surrogate) comes back as it was.

    Raises:
        StoreError: JSON has no word for something in it; `what` names it.
    """
    try:
        return json.dumps(value, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StoreError(f"Cannot save {what}: {exc}", cure="Only JSON values can be kept") from exc


def _plain(value: Any) -> Any:
    """JSON for what `json` does not know: mappings other than dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def rollout_row(record: RolloutRecord) -> Row:
    """The row of a rollout's attempt."""
    return {
        "rollout_id": record.rollout_id,
        "attempt": record.attempt,
        "task_id": record.task_id,
        "group_id": record.group_id,
        "phase": record.phase,
        "step": record.step,
        "status": record.status.value,
        "error": _prose(record.error),
        "output": _prose(record.output),
        "started_at": record.started_at,
        "finished_at": record.finished_at,
    }


def rollout_record(row: Row) -> RolloutRecord:
    """The rollout's attempt of a row."""
    return RolloutRecord(**{**row, "status": RolloutStatus(row["status"])})


def call_row(call: Call) -> Row:
    """The row of a call, without its choices."""
    what = f"call {call.call_id}"
    return {
        "call_id": call.call_id,
        "rollout_id": call.rollout_id,
        "attempt": call.attempt,
        "request_key": call.request_key,
        "retry": call.retry,
        "received_at": call.received_at,
        "finished_at": call.finished_at,
        "model": _prose(call.model),
        "policy": call.policy,
        "policy_version": call.policy_version,
        "endpoint": call.endpoint,
        "agent": None if call.agent is None else _prose(call.agent),
        "status": call.status.value,
        "reason": _prose(call.reason),
        "prompt_ids": _blob(call.prompt_ids, _ID, f"the prompt ids of {what}"),
        "temperature": call.temperature,
        "top_p": call.top_p,
        "top_k": call.top_k,
        "request": to_json(call.request, f"the request of {what}"),
        "state": None if call.state is None else _prose(call.state),
        "score": call.score,
        **_continuation_columns(call.continuation),
    }


def choice_rows(call: Call) -> list[Row]:
    """The rows of a call's choices."""
    what = f"call {call.call_id}"
    return [
        {
            "call_id": call.call_id,
            "position": choice.index,
            "token_ids": _blob(choice.token_ids, _ID, f"the token ids of {what}"),
            "logprobs": _blob(choice.logprobs, _LOGPROB, f"the log-probabilities of {what}"),
            "finish_reason": choice.finish_reason,
            "message": to_json(choice.message, f"the answer of {what}"),
        }
        for choice in call.choices
    ]


def call_records(rows: Iterable[Row], choices: Iterable[Row]) -> list[Call]:
    """The calls of `rows`, each with its own of `choices`; both orders are kept."""
    found: dict[str, list[Choice]] = {}
    for row in choices:
        choice = Choice(
            index=row["position"],
            token_ids=_numbers(row["token_ids"], _ID),
            logprobs=_numbers(row["logprobs"], _LOGPROB),
            finish_reason=row["finish_reason"],
            message=json.loads(row["message"]),
        )
        found.setdefault(row["call_id"], []).append(choice)
    return [
        Call(
            **{
                **{name: value for name, value in row.items() if name not in _CONTINUATION},
                "status": CallStatus(row["status"]),
                "prompt_ids": _numbers(row["prompt_ids"], _ID),
                "request": json.loads(row["request"]),
                "choices": tuple(found.get(row["call_id"], ())),
                "continuation": _continuation(row),
            }
        )
        for row in rows
    ]


def _continuation_columns(continuation: Continuation | None) -> dict[str, Any]:
    """The columns of a call's continuation."""
    if continuation is None:
        return dict.fromkeys(_CONTINUATION)
    values = {name: getattr(continuation, name) for name in _CONTINUATION}
    return values | {"continuity": continuation.continuity.value}


def _continuation(row: Row) -> Continuation | None:
    """The continuation of a call's row."""
    if row["continuity"] is None:
        return None
    return Continuation(**{name: row[name] for name in _CONTINUATION} | {"continuity": Continuity(row["continuity"])})


def reward_row(reward: RewardRecord) -> Row:
    """The row of a reward.

    Raises:
        RewardError: its value is no finite number, which no database would keep as such.
    """
    try:
        finite = math.isfinite(reward.value)
    except TypeError:
        finite = False
    if not finite:
        raise RewardError(
            f"The reward {reward.name!r} of rollout {reward.rollout_id} is {reward.value!r}",
            cure="Give a finite number",
        )
    return {
        "rollout_id": reward.rollout_id,
        "attempt": reward.attempt,
        "call_id": reward.call_id,
        "name": _prose(reward.name),
        "value": float(reward.value),
        "source": reward.source,
        "at": reward.at,
    }


def reward_record(row: Row) -> RewardRecord:
    """The reward of a row."""
    return RewardRecord(**{name: value for name, value in row.items() if name != "id"})


def span_row(span: Span) -> Row:
    """The row of a span."""
    return {
        "rollout_id": span.rollout_id or "",
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "start_ns": span.start_ns,
        "body": to_json(span_to_json(span), f"span {span.span_id}"),
    }


def span_record(row: Row) -> Span:
    """The span of a row."""
    return span_from_json(json.loads(row["body"]))


def ledger_row(entry: LedgerEntry) -> Row:
    """The row of a ledger entry.

    Raises:
        StoreError: a number in it is NaN, which databases silently turn into "none".
    """
    row: dict[str, Any] = {
        "call_id": entry.call_id,
        "choice": entry.choice,
        "rollout_id": entry.rollout_id,
        "attempt": entry.attempt,
        "step": entry.step,
        "fate": entry.fate.value,
        "reason": entry.reason.value,
        "detail": _prose(entry.detail),
        "tokens": entry.tokens,
        "reward": entry.reward,
        "episode_return": entry.episode_return,
        "advantage": entry.advantage,
    }
    for name in ("reward", "episode_return", "advantage"):
        if (value := row[name]) is not None and math.isnan(value):
            raise StoreError(
                f"Cannot save the ledger entry of call {entry.call_id}: its {name} is NaN",
                cure="This is a fault of the credit assigner or advantage estimator that computed it",
            )
    return row


def ledger_entry(row: Row) -> LedgerEntry:
    """The ledger entry of a row."""
    fields = {name: value for name, value in row.items() if name != "id"}
    return LedgerEntry(**{**fields, "fate": Fate(row["fate"]), "reason": Reason(row["reason"])})


def _prose(text: str) -> str:
    r"""Text that every database takes: lone surrogates and NUL, which some refuse, become `\udc80` and `\x00` in letters."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _blob(values: tuple[float, ...] | None, dtype: np.dtype[Any], what: str) -> bytes | None:
    """The numbers as bytes; None stays None."""
    if values is None:
        return None
    try:
        with np.errstate(over="ignore"):  # a log-probability below the smallest float32 is minus infinity
            return np.array(values, dtype=dtype).tobytes()
    except (TypeError, ValueError, OverflowError) as exc:
        raise StoreError(
            f"Cannot save {what}: {exc}", cure="They must be numbers, ids between 0 and 2**31 - 1"
        ) from exc


def _numbers(blob: bytes | None, dtype: np.dtype[Any]) -> tuple[Any, ...] | None:
    """The numbers of bytes; None stays None."""
    return None if blob is None else tuple(np.frombuffer(blob, dtype=dtype).tolist())
