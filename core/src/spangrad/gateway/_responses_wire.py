"""Answers of OpenAI's Responses API: whole, and as a stream of typed events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spangrad.gateway._answer import Answer
from spangrad.gateway._engine import EngineDelta, EngineError
from spangrad.gateway._errors import error_body
from spangrad.gateway._responses_object import finished_response, item_frame, output_items, reasoning_text, text_part
from spangrad.gateway._wire import sse

_Event = dict[str, Any]


class ResponsesWire:
    """Writes a response.

    Args:
        call_id: of the call; the ids of the output items are made of it.
        frame: the response before it has output.
        logprobs: the agent asked for log-probabilities.
        token_ids: the agent asked for token ids (`return_token_ids`, as vLLM has it).
    """

    def __init__(self, call_id: str, frame: Mapping[str, Any], *, logprobs: bool, token_ids: bool) -> None:
        self._call_id = call_id
        self._frame = frame
        self._logprobs = logprobs
        self._token_ids = token_ids
        self._sequence = 0
        self._opened: list[str] = []
        """Types of the items that were begun while the answer was sampled, in their order."""
        self._held: list[Mapping[str, Any]] = []
        """Log-probabilities of tokens whose text has not been shown yet."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer in one piece."""
        output = output_items(self._call_id, answer.choices[0], logprobs=self._logprobs)
        return finished_response(self._frame, answer, output, token_ids=self._token_ids)

    def progress(self, delta: EngineDelta) -> bytes:
        """A delta's text, as events."""
        events: list[_Event] = []
        if not self._sequence:
            events += [{"type": f"response.{name}", "response": self._frame} for name in ("created", "in_progress")]
        if self._logprobs:
            self._held += delta.logprob_content
        if thought := reasoning_text(delta.extra):
            events += self._open("reasoning", {"type": "reasoning_text", "text": ""})
            events.append({"type": "response.reasoning_text.delta", **self._place("reasoning"), "delta": thought})
        if delta.text:
            events += self._open("message", text_part(""))
            entries, self._held = self._held, []
            place = self._place("message")
            events.append(
                {
                    "type": "response.output_text.delta",
                    **place,
                    "delta": delta.text,
                    "logprobs": _without_bytes(entries),
                }
            )
        return self._written(events)

    def ending(self, answer: Answer) -> bytes:
        """What completes the items that were begun, the function calls, and the whole response."""
        items = output_items(self._call_id, answer.choices[0], logprobs=self._logprobs)
        order = {kind: number for number, kind in enumerate(self._opened)}
        items.sort(key=lambda item: order.get(item["type"], len(order)))
        events: list[_Event] = []
        for index, item in enumerate(items):
            if item["type"] == "function_call":
                events += _call_events(item, index)
            else:
                events += self._item_end(item)
        response = finished_response(self._frame, answer, items, token_ids=self._token_ids)
        events.append({"type": f"response.{response['status']}", "response": response})
        return self._written(events)

    def failure(self, error: EngineError) -> bytes:
        """The error as the stream's last event. OpenAI's clients raise it for the member `error`."""
        details = error_body(error)["error"]
        fields = {name: details[name] for name in ("code", "message", "param")}
        return self._written([{"type": "error", **fields, "error": details}])

    def _open(self, kind: str, part: Mapping[str, Any]) -> list[_Event]:
        """Begins an item, unless that has happened already."""
        if kind in self._opened:
            return []
        self._opened.append(kind)
        place = self._place(kind)
        return [
            {
                "type": "response.output_item.added",
                "output_index": place["output_index"],
                "item": item_frame(kind, self._call_id),
            },
            {"type": "response.content_part.added", **place, "part": part},
        ]

    def _item_end(self, item: Mapping[str, Any]) -> list[_Event]:
        """Completes a message or a reasoning item; begins it before, if it was not."""
        (part,) = item["content"]
        is_text = part["type"] == "output_text"
        events = self._open(item["type"], text_part("") if is_text else {**part, "text": ""})
        place = self._place(item["type"])
        done: _Event = {"type": f"response.{part['type']}.done", **place, "text": part["text"]}
        if is_text:
            done["logprobs"] = _without_bytes(part["logprobs"])
        events += [done, {"type": "response.content_part.done", **place, "part": part}]
        return [
            *events,
            {"type": "response.output_item.done", "output_index": place["output_index"], "item": item},
        ]

    def _place(self, kind: str) -> dict[str, Any]:
        """Which content of which item an event is about."""
        item_id = item_frame(kind, self._call_id)["id"]
        return {"item_id": item_id, "output_index": self._opened.index(kind), "content_index": 0}

    def _written(self, events: Iterable[_Event]) -> bytes:
        """The events, numbered."""
        data = []
        for event in events:
            data.append(sse({**event, "sequence_number": self._sequence}, event["type"]))
            self._sequence += 1
        return b"".join(data)


def _call_events(item: Mapping[str, Any], index: int) -> list[_Event]:
    """A function call in one piece: it is only known when the whole answer is."""
    place = {"item_id": item["id"], "output_index": index}
    arguments = item["arguments"]
    return [
        {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {**item, "arguments": "", "status": "in_progress"},
        },
        {"type": "response.function_call_arguments.delta", **place, "delta": arguments},
        {"type": "response.function_call_arguments.done", **place, "arguments": arguments},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def _without_bytes(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Log-probabilities as events have them."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [
                {"token": top["token"], "logprob": top["logprob"]} for top in entry.get("top_logprobs") or ()
            ],
        }
        for entry in entries
    ]
