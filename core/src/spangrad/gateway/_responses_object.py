"""The JSON of OpenAI's Responses API: the response object and its output items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spangrad.backend import SamplingParams
from spangrad.gateway._answer import Answer, AnswerChoice

_REASONING: Final = ("reasoning_content", "reasoning")
"""Where servers put what a model thought: vLLM's older name and its newer one."""
_INCOMPLETE: Final[Mapping[str, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons that leave an answer incomplete, in the API's words."""


def response_id(call_id: str) -> str:
    """The id of a call's response."""
    return f"resp_{call_id}"


def response_frame(call_id: str, created: float, sent: Mapping[str, Any], params: SamplingParams) -> dict[str, Any]:
    """A response as it is before anything is sampled: what was asked, as the API repeats it, and with what it is really sampled.

    Args:
        call_id: of the call.
        created: Unix seconds.
        sent: the request's body.
        params: the sampling settings after the rollout's overrides.
    """
    tools = [{"parameters": None, "strict": None, **tool} for tool in sent.get("tools") or ()]
    asked = {name: sent.get(name) for name in ("instructions", "max_output_tokens", "previous_response_id", "user")}
    parallel = sent.get("parallel_tool_calls")
    return {
        "id": response_id(call_id),
        "object": "response",
        "created_at": int(created),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        **asked,
        "metadata": sent.get("metadata") or {},
        "model": sent["model"],
        "output": [],
        "parallel_tool_calls": True if parallel is None else parallel,
        "reasoning": {"effort": None, "summary": None},
        "temperature": params.temperature,
        "text": {"format": {"type": "text"}, **(sent.get("text") or {})},
        "tool_choice": sent.get("tool_choice") or "auto",
        "tools": tools,
        "top_logprobs": sent.get("top_logprobs") or 0,
        "top_p": params.top_p,
        "truncation": sent.get("truncation") or "disabled",
        "usage": None,
    }


def finished_response(
    frame: Mapping[str, Any], answer: Answer, output: Sequence[Mapping[str, Any]], *, token_ids: bool
) -> dict[str, Any]:
    """A response with its answer.

    Args:
        frame: as it was before.
        answer: the whole answer.
        output: its items.
        token_ids: with `prompt_token_ids` and `token_ids`.
    """
    choice = answer.choices[0]
    reason = _INCOMPLETE.get(choice.finish_reason or "")
    response = {
        **frame,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output,
        "usage": _usage(answer.usage()),
    }
    return response | {"prompt_token_ids": answer.prompt_ids, "token_ids": choice.token_ids} if token_ids else response


def output_items(call_id: str, choice: AnswerChoice, *, logprobs: bool = False) -> list[dict[str, Any]]:
    """What a model said, as items: its reasoning if it is told, its message unless it only calls functions, its calls.

    Args:
        call_id: of the call; the items' ids are made of it.
        choice: the answer.
        logprobs: the message's text comes with log-probabilities.
    """
    message = choice.message
    status = "incomplete" if choice.finish_reason in _INCOMPLETE else "completed"
    items: list[dict[str, Any]] = []
    if thought := reasoning_text(message):
        part = {"type": "reasoning_text", "text": thought}
        items.append({**item_frame("reasoning", call_id), "content": [part], "status": status})
    calls = message.get("tool_calls") or ()
    if message["content"] or not calls:
        entries = choice.logprob_content if logprobs else []
        items.append(
            {**item_frame("message", call_id), "content": [text_part(message["content"], entries)], "status": status}
        )
    for number, call in enumerate(calls):
        function = {"call_id": call["id"], **call["function"], "status": status}
        items.append({**item_frame("function_call", f"{call_id}_{number}"), **function})
    return items


def item_frame(kind: str, key: str) -> dict[str, Any]:
    """An item as it is before it has content."""
    if kind == "message":
        return {"id": f"msg_{key}", "type": kind, "status": "in_progress", "role": "assistant", "content": []}
    if kind == "reasoning":
        return {"id": f"rs_{key}", "type": kind, "status": "in_progress", "summary": [], "content": []}
    return {"id": f"fc_{key}", "type": kind, "status": "in_progress"}


def text_part(text: str, entries: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The content of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(entries)}


def reasoning_text(message: Mapping[str, Any]) -> str:
    """What the model thought before it answered, where its server tells."""
    return next((message[name] for name in _REASONING if isinstance(message.get(name), str)), "")


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Token counts in this API's words."""
    prompt, completion = (usage.get(f"{part}_tokens_details") or {} for part in ("prompt", "completion"))
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": prompt.get("cached_tokens") or 0,
            "cache_write_tokens": prompt.get("cache_write_tokens") or 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens") or 0},
        "total_tokens": usage["total_tokens"],
    }
