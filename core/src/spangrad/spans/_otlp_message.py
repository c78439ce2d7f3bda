"""OTLP's trace messages in their JSON form, as models that check what came in.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: lowerCamelCase names, ids as hexadecimal text, 64-bit
integers as decimal text (numbers are taken too), enumerations as numbers (names are taken too), unknown names ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from spangrad.spans._attributes import owner
from spangrad.spans._span import Span, SpanEvent, SpanKind, SpanStatus

_KINDS: Final[Sequence[SpanKind]] = ("internal", "internal", "server", "client", "producer", "consumer")
_STATUSES: Final[Sequence[SpanStatus]] = ("unset", "ok", "error")
_KIND_NUMBERS: Final = {
    f"SPAN_KIND_{name}": number
    for number, name in enumerate(("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"))
}
_STATUS_NUMBERS: Final = {f"STATUS_CODE_{name}": number for number, name in enumerate(("UNSET", "OK", "ERROR"))}


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _parent(value: Any) -> Any:
    """Absent, empty and all-zero parents all mean: a root."""
    return None if isinstance(value, str) and not value.strip("0") else _lower(value)


# An id of zeros only is invalid in OpenTelemetry: some digit must be another one.
_TraceId = Annotated[
    str, BeforeValidator(_lower), Field(pattern=r"^0{0,31}[1-9a-f][0-9a-f]*$", min_length=32, max_length=32)
]
_SpanId = Annotated[
    str, BeforeValidator(_lower), Field(pattern=r"^0{0,15}[1-9a-f][0-9a-f]*$", min_length=16, max_length=16)
]
_Nanoseconds = Annotated[int, Field(ge=0, lt=2**63)]
_Kind = Annotated[
    int, BeforeValidator(lambda value: _KIND_NUMBERS.get(value, value) if isinstance(value, str) else value)
]
_Code = Annotated[
    int, BeforeValidator(lambda value: _STATUS_NUMBERS.get(value, value) if isinstance(value, str) else value)
]


class OTLPMessage(BaseModel):
    """A protobuf message: unknown names are ignored, and null means the same as absent."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _absent(cls, data: Any) -> Any:
        return {name: item for name, item in data.items() if item is not None} if isinstance(data, Mapping) else data


class OTLPValues(OTLPMessage):
    values: list[OTLPValue] = []


class OTLPPairs(OTLPMessage):
    values: list[OTLPPair] = []


class OTLPValue(OTLPMessage):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    double_value: float | None = None
    bytes_value: str | None = None
    array_value: OTLPValues | None = None
    kvlist_value: OTLPPairs | None = None

    def plain(self) -> Any:
        """The value itself; None when the message is empty. Bytes stay the base64 text they came as."""
        if self.array_value is not None:
            return [item.plain() for item in self.array_value.values]
        if self.kvlist_value is not None:
            return plain_pairs(self.kvlist_value.values)
        scalars = (self.string_value, self.bool_value, self.int_value, self.double_value, self.bytes_value)
        return next((value for value in scalars if value is not None), None)


class OTLPPair(OTLPMessage):
    key: str
    value: OTLPValue | None = None


class OTLPEvent(OTLPMessage):
    time_unix_nano: _Nanoseconds = 0
    name: str = ""
    attributes: list[OTLPPair] = []


class OTLPStatus(OTLPMessage):
    message: str = ""
    code: _Code = 0


class OTLPSpan(OTLPMessage):
    trace_id: _TraceId
    span_id: _SpanId
    parent_span_id: Annotated[_SpanId | None, BeforeValidator(_parent)] = None
    name: str = ""
    kind: _Kind = 0
    start_time_unix_nano: _Nanoseconds = 0
    end_time_unix_nano: _Nanoseconds = 0
    attributes: list[OTLPPair] = []
    events: list[OTLPEvent] = []
    status: OTLPStatus = OTLPStatus()


class OTLPScope(OTLPMessage):
    name: str = ""


class OTLPScopeSpans(OTLPMessage):
    scope: OTLPScope = OTLPScope()
    spans: list[OTLPSpan] = []


class OTLPResource(OTLPMessage):
    attributes: list[OTLPPair] = []


class OTLPResourceSpans(OTLPMessage):
    resource: OTLPResource = OTLPResource()
    scope_spans: list[OTLPScopeSpans] = []


class OTLPRequest(OTLPMessage):
    resource_spans: list[OTLPResourceSpans] = []

    def spans(self) -> list[Span]:
        """Its spans, in the order they stand there."""
        return [
            _span(span, scope.scope.name, plain_pairs(resource.resource.attributes))
            for resource in self.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def plain_pairs(pairs: Sequence[OTLPPair]) -> dict[str, Any]:
    """Attributes as a mapping; of pairs with one key the last counts."""
    return {pair.key: None if pair.value is None else pair.value.plain() for pair in pairs}


def _span(span: OTLPSpan, scope: str, resource: Mapping[str, Any]) -> Span:
    attributes = plain_pairs(span.attributes)
    rollout_id, attempt = owner(attributes, resource)
    return Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_span_id,
        rollout_id=rollout_id,
        attempt=attempt,
        name=span.name,
        # Protobuf enumerations are open: a number of a later version counts as unspecified.
        kind=_KINDS[span.kind] if 0 <= span.kind < len(_KINDS) else "internal",
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano or None,
        status=_STATUSES[span.status.code] if 0 <= span.status.code < len(_STATUSES) else "unset",
        status_message=span.status.message,
        attributes=attributes,
        events=tuple(SpanEvent(e.name, e.time_unix_nano, plain_pairs(e.attributes)) for e in span.events),
        scope=scope,
    )
