"""OTLP's trace messages in their JSON form, as models that check what came in.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: lowerCamelCase names, ids as hexadecimal text, 64-bit
integers as decimal text (numbers are taken too), enumerations as numbers (names are taken too), unknown names ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NotRequired, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

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
    """A protobuf message: unknown names are ignored, and null means the same as absent.

    Every optional field takes None therefore; a validator that took nulls out would cost more than all others together.
    """

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


# Most of what comes in are attributes. Checked dictionaries cost a third of what checked objects do.
class OTLPValue(TypedDict, total=False):
    stringValue: str | None
    boolValue: bool | None
    intValue: int | None
    doubleValue: float | None
    bytesValue: str | None
    arrayValue: OTLPValues | None
    kvlistValue: OTLPPairs | None


"""A value: one of the fields is there, or none."""


class OTLPValues(TypedDict, total=False):
    values: list[OTLPValue] | None


class OTLPPair(TypedDict):
    key: str
    value: NotRequired[OTLPValue | None]


class OTLPPairs(TypedDict, total=False):
    values: list[OTLPPair] | None


class OTLPEvent(OTLPMessage):
    time_unix_nano: _Nanoseconds | None = None
    name: str | None = None
    attributes: list[OTLPPair] | None = None


class OTLPStatus(OTLPMessage):
    message: str | None = None
    code: _Code | None = None


class OTLPSpan(OTLPMessage):
    trace_id: _TraceId
    span_id: _SpanId
    parent_span_id: Annotated[_SpanId | None, BeforeValidator(_parent)] = None
    name: str | None = None
    kind: _Kind | None = None
    start_time_unix_nano: _Nanoseconds | None = None
    end_time_unix_nano: _Nanoseconds | None = None
    attributes: list[OTLPPair] | None = None
    events: list[OTLPEvent] | None = None
    status: OTLPStatus | None = None


class OTLPScope(OTLPMessage):
    name: str | None = None


class OTLPScopeSpans(OTLPMessage):
    scope: OTLPScope | None = None
    spans: list[OTLPSpan] | None = None


class OTLPResource(OTLPMessage):
    attributes: list[OTLPPair] | None = None


class OTLPResourceSpans(OTLPMessage):
    resource: OTLPResource | None = None
    scope_spans: list[OTLPScopeSpans] | None = None


class OTLPRequest(OTLPMessage):
    resource_spans: list[OTLPResourceSpans] | None = None

    def spans(self) -> list[Span]:
        """Its spans, in the order they stand there."""
        found = []
        for resource in self.resource_spans or ():
            attributes = plain_pairs(None if resource.resource is None else resource.resource.attributes)
            for scope in resource.scope_spans or ():
                name = (scope.scope and scope.scope.name) or ""
                found += [_span(span, name, attributes) for span in scope.spans or ()]
        return found


def plain_pairs(pairs: Sequence[OTLPPair] | None) -> dict[str, Any]:
    """Attributes as a mapping; of pairs with one key the last counts."""
    return {pair["key"]: _plain(pair.get("value")) for pair in pairs or ()}


def _plain(value: OTLPValue | None) -> Any:
    """The value itself; None when the message is empty. Bytes stay the base64 text they came as."""
    for name, item in (value or {}).items():
        if item is None:
            continue
        if name == "arrayValue":
            return [_plain(one) for one in cast("OTLPValues", item).get("values") or ()]
        if name == "kvlistValue":
            return plain_pairs(cast("OTLPPairs", item).get("values"))
        return item
    return None


_UNSET: Final = OTLPStatus()


def _span(span: OTLPSpan, scope: str, resource: Mapping[str, Any]) -> Span:
    attributes = plain_pairs(span.attributes)
    rollout_id, attempt = owner(attributes, resource)
    kind, status = span.kind or 0, span.status or _UNSET
    code = status.code or 0
    return Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_span_id,
        rollout_id=rollout_id,
        attempt=attempt,
        name=span.name or "",
        # Protobuf enumerations are open: a number of a later version counts as unspecified.
        kind=_KINDS[kind] if 0 <= kind < len(_KINDS) else "internal",
        start_ns=span.start_time_unix_nano or 0,
        end_ns=span.end_time_unix_nano or None,
        status=_STATUSES[code] if 0 <= code < len(_STATUSES) else "unset",
        status_message=status.message or "",
        attributes=attributes,
        events=tuple(_event(event) for event in span.events or ()),
        scope=scope,
    )


def _event(event: OTLPEvent) -> SpanEvent:
    return SpanEvent(event.name or "", event.time_unix_nano or 0, plain_pairs(event.attributes))
