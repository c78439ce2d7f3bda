"""The tables, in SQL that any database understands.

Large things are stored compactly: token ids as little-endian int32, log-probabilities as little-endian float32, messages and
attributes as JSON text. Float32 is what samplers compute in, so a sampler's numbers come back exactly; a float64 comes back
rounded to 24 bits, a relative error below 6e-8. `status` and the like hold the words of the enumerations in the records.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
)

SCHEMA_VERSION: Final = 3
"""Raised by every change of a table. A store of another version than this is refused."""

metadata: Final = MetaData()

meta: Final = Table(
    "spangrad_meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
"""What the file says about itself: `schema_version`. The name also tells a store from any other database."""

notes: Final = Table(
    "notes",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

rollouts: Final = Table(
    "rollouts",
    metadata,
    Column("rollout_id", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("step", Integer),
    Column("status", Text, nullable=False),
    Column("error", Text, nullable=False),
    Column("output", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double),
    PrimaryKeyConstraint("rollout_id", "attempt"),
    Index("rollouts_by_start", "started_at"),
)

calls: Final = Table(
    "calls",
    metadata,
    Column("call_id", Text, primary_key=True),
    Column("rollout_id", Text),
    Column("attempt", Integer, nullable=False),
    Column("request_key", Text, nullable=False),
    Column("retry", Integer, nullable=False),
    Column("received_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("model", Text, nullable=False),
    Column("policy", Text),
    Column("policy_version", Integer),
    Column("endpoint", Text, nullable=False),
    Column("agent", Text),
    Column("status", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("prompt_ids", LargeBinary),
    Column("temperature", Double, nullable=False),
    Column("top_p", Double, nullable=False),
    Column("top_k", Integer, nullable=False),
    Column("request", Text, nullable=False),
    Column("state", Text),
    Column("score", Double),
    Column("continuity", Text),
    Column("continued_from", Text),
    Column("compared_with", Text),
    Column("differs_at", Integer),
    Index("calls_by_rollout", "rollout_id", "received_at", "call_id"),
)

choices: Final = Table(
    "choices",
    metadata,
    Column("call_id", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("token_ids", LargeBinary),
    Column("logprobs", LargeBinary),
    Column("finish_reason", Text),
    Column("message", Text, nullable=False),
    PrimaryKeyConstraint("call_id", "position"),
)

rewards: Final = Table(
    "rewards",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("rollout_id", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("call_id", Text),
    Column("name", Text, nullable=False),
    Column("value", Double, nullable=False),
    Column("source", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("rewards_by_rollout", "rollout_id", "attempt"),
)

spans: Final = Table(
    "spans",
    metadata,
    Column("rollout_id", Text, nullable=False),
    Column("trace_id", Text, nullable=False),
    Column("span_id", Text, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    # The rollout is part of the key so that no rollout can replace another's spans; empty for spans of no rollout.
    PrimaryKeyConstraint("rollout_id", "trace_id", "span_id"),
)

ledger: Final = Table(
    "ledger",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("call_id", Text, nullable=False),
    Column("choice", Integer, nullable=False),
    Column("rollout_id", Text),
    Column("attempt", Integer, nullable=False),
    Column("step", Integer),
    Column("fate", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("reward", Double),
    Column("episode_return", Double),
    Column("advantage", Double),
    Index("ledger_by_choice", "call_id", "choice", unique=True),
    Index("ledger_by_rollout", "rollout_id"),
    Index("ledger_by_step", "step"),
)
