"""Spans: what an agent's framework says about the structure of its work."""

from spangrad.spans._genai import LLMCall, llm_call, stamped_call_id
from spangrad.spans._json import span_from_json, span_to_json
from spangrad.spans._otlp import from_otlp_json
from spangrad.spans._readable import from_readable
from spangrad.spans._span import Attributes, Span, SpanEvent, SpanKind, SpanStatus

__all__ = [
    "Attributes",
    "LLMCall",
    "Span",
    "SpanEvent",
    "SpanKind",
    "SpanStatus",
    "from_otlp_json",
    "from_readable",
    "llm_call",
    "span_from_json",
    "span_to_json",
    "stamped_call_id",
]
