"""From calls and rewards to transitions, and a ledger that says what became of every call."""

from spangrad.transitions._call import Call, CallStatus, Choice
from spangrad.transitions._continuation import Continuation, Continuity, continuation_figures
from spangrad.transitions._extraction import NO_CHOICE, Extraction, extract, leftovers
from spangrad.transitions._failure import (
    FAILURE_REWARD,
    FAILURE_SOURCE,
    Done,
    FailureKind,
    FailurePolicies,
    FailurePolicy,
    Handling,
    Treatment,
    handling,
    kind_of,
)
from spangrad.transitions._ledger import Fate, LedgerEntry, Reason, entry_of, fate_of
from spangrad.transitions._prefix_tree import PackedSequences, PrefixTreePack, TokenSequence, pack_sequences
from spangrad.transitions._retries import superseded_by
from spangrad.transitions._reward_weights import RewardWeights, components_of
from spangrad.transitions._rollout import LENGTH_SOURCE, RULE_SOURCE, RewardRecord, RolloutRecord, RolloutStatus
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
    "FAILURE_REWARD",
    "FAILURE_SOURCE",
    "LENGTH_SOURCE",
    "NO_CHOICE",
    "RULE_SOURCE",
    "BoolArray",
    "Call",
    "CallStatus",
    "Choice",
    "Continuation",
    "Continuity",
    "Done",
    "Extraction",
    "FailureKind",
    "FailurePolicies",
    "FailurePolicy",
    "Fate",
    "FloatArray",
    "Handling",
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
    "Treatment",
    "ValueTargets",
    "components_of",
    "continuation_figures",
    "entry_of",
    "extract",
    "fate_of",
    "handling",
    "kind_of",
    "leftovers",
    "pack_sequences",
    "superseded_by",
]
