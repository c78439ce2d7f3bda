"""`POST /v1/responses`: a translation to chat completions and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spangrad.backend import Message, SamplingParams
from spangrad.gateway._answer import Answer
from spangrad.gateway._request import ChatBody
from spangrad.gateway._response_memory import ResponseMemory
from spangrad.gateway._responses_input import messages_from_items
from spangrad.gateway._responses_object import output_items, response_frame, response_id
from spangrad.gateway._responses_request import ResponsesBody, chat_request, read_responses
from spangrad.gateway._responses_wire import ResponsesWire
from spangrad.gateway._wire import Wire


class ResponsesDialect:
    """OpenAI's Responses API."""

    def read(self, body: Mapping[str, Any], memory: ResponseMemory) -> ResponsesQuestion:
        """Reads a request, and puts its conversation together.

        Raises:
            EngineError: 400, naming what is wrong or cannot be honoured.
        """
        asked = read_responses(body)
        earlier = memory.recall(asked.previous_response_id) if asked.previous_response_id else ()
        messages = [*earlier, *messages_from_items(asked.input if asked.input is not None else ())]
        return ResponsesQuestion(asked, body, messages, chat_request(asked, body, messages))


@dataclass(frozen=True, slots=True)
class ResponsesQuestion:
    """A request of the Responses API."""

    asked: ResponsesBody
    sent: Mapping[str, Any]
    """Its JSON."""
    messages: Sequence[Message]
    """The conversation, without `instructions`."""
    body: Mapping[str, Any]
    """The chat completions request that asks the same."""

    def wire(self, call_id: str, created: float, chat: ChatBody, params: SamplingParams) -> Wire:
        """What writes its answer."""
        frame = response_frame(call_id, created, self.sent, params)
        return ResponsesWire(call_id, frame, logprobs=bool(chat.logprobs), token_ids=bool(chat.return_token_ids))

    def remember(self, call_id: str, answer: Answer, memory: ResponseMemory) -> None:
        """Keeps the conversation with its answer, unless the request said not to."""
        if self.asked.store is not False:
            said = messages_from_items(output_items(call_id, answer.choices[0]))
            memory.keep(response_id(call_id), [*self.messages, *said])
