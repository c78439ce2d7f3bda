"""From calls and rewards to transitions, and a ledger that says what became of every call."""

from spangrad.transitions._call import Call, CallStatus, Choice
from spangrad.transitions._explanation import ExplainedAttempt, ExplainedCall, Explanation, explain
from spangrad.transitions._extraction import Extraction, extract, fate_of
from spangrad.transitions._ledger import Fate, LedgerEntry, Reason
from spangrad.transitions._prefix_tree import PackedSequences, PrefixTreePack, TokenSequence, pack_sequences
from spangrad.transitions._transition import (
    BoolArray,
    FloatArray,
    IntArray,
    Transition,
    TransitionBatch,
)

__all__ = [
    "BoolArray",
    "Call",
    "CallStatus",
    "Choice",
    "ExplainedAttempt",
    "ExplainedCall",
    "Explanation",
    "Extraction",
    "Fate",
    "FloatArray",
    "IntArray",
    "LedgerEntry",
    "PackedSequences",
    "PrefixTreePack",
    "Reason",
    "TokenSequence",
    "Transition",
    "TransitionBatch",
    "explain",
    "extract",
    "fate_of",
    "pack_sequences",
]
