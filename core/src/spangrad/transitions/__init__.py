"""From calls and rewards to transitions, and a ledger that says what became of every call."""

from spangrad.transitions._call import Call, CallStatus, Choice
from spangrad.transitions._extraction import NO_CHOICE, Extraction, extract, fate_of, leftovers
from spangrad.transitions._ledger import Fate, LedgerEntry, Reason
from spangrad.transitions._prefix_tree import PackedSequences, PrefixTreePack, TokenSequence, pack_sequences
from spangrad.transitions._retries import superseded_by
from spangrad.transitions._reward_weights import RewardWeights, components_of
from spangrad.transitions._rollout import RewardRecord, RolloutRecord, RolloutStatus
from spangrad.transitions._span_facts import SpanFacts
from spangrad.transitions._transition import (
    BoolArray,
    FloatArray,
    IntArray,
    Transition,
    TransitionBatch,
)
from spangrad.transitions._value_targets import ValueTargets

__all__ = [
    "NO_CHOICE",
    "BoolArray",
    "Call",
    "CallStatus",
    "Choice",
    "Extraction",
    "Fate",
    "FloatArray",
    "IntArray",
    "LedgerEntry",
    "PackedSequences",
    "PrefixTreePack",
    "Reason",
    "RewardRecord",
    "RewardWeights",
    "RolloutRecord",
    "RolloutStatus",
    "SpanFacts",
    "TokenSequence",
    "Transition",
    "TransitionBatch",
    "ValueTargets",
    "components_of",
    "extract",
    "fate_of",
    "leftovers",
    "pack_sequences",
    "superseded_by",
]
