"""From calls and rewards to transitions, and a ledger that says what became of every call."""

from spangrad.transitions._call import Call, CallStatus, Choice
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
    "pack_sequences",
]
