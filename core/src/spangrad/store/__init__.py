"""The store: durable memory of a run, and what it can tell of a rollout."""

from spangrad.store._contract import Store
from spangrad.store._explanation import (
    FAILURES_NOTE,
    REWARD_WEIGHTS_NOTE,
    ExplainedAttempt,
    ExplainedCall,
    ExplainedReward,
    Explanation,
    explain,
)
from spangrad.store._open import open_store
from spangrad.store._prompt_origin import PromptOrigin
from spangrad.store._work_tree import ExplainedWork
from spangrad.transitions import RewardRecord, RolloutRecord, RolloutStatus

__all__ = [
    "FAILURES_NOTE",
    "REWARD_WEIGHTS_NOTE",
    "ExplainedAttempt",
    "ExplainedCall",
    "ExplainedReward",
    "ExplainedWork",
    "Explanation",
    "PromptOrigin",
    "RewardRecord",
    "RolloutRecord",
    "RolloutStatus",
    "Store",
    "explain",
    "open_store",
]
