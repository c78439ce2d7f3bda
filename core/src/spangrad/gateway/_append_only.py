"""Whether a chat template writes earlier turns the same once there are later ones, found out by trying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spangrad.backend import ChatFormat, Message
from spangrad.errors import BackendError
from spangrad.gateway._branches import Branches
from spangrad.gateway._conversation import Conversation
from spangrad.gateway._prompt import make_prompt

_CALC: Final[Mapping[str, Any]] = {"name": "calc", "description": "Computes.", "parameters": {"type": "object"}}
_TOOLS: Final = ({"type": "function", "function": _CALC},)
_CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "calc", "arguments": '{"a": 1}'}}
_TOLD: Final = {"role": "system", "content": "Be exact."}
_ASKED: Final = {"role": "user", "content": "What is 1 and 1?"}
_SAID: Final = {"role": "assistant", "content": "It is 2."}
_THOUGHT: Final = {"role": "assistant", "content": "<think>\nOne and one.\n</think>\n\nIt is 2."}
_CALLED: Final = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
_THOUGHT_AND_CALLED: Final = {**_CALLED, "content": "<think>\nLet me see.\n</think>\n\n"}
_RESULT: Final = {"role": "tool", "tool_call_id": "call_1", "content": "2"}


@dataclass(frozen=True, slots=True)
class _Probe:
    """A conversation in which an assistant speaks at least once before the end."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()


_PROBES: Final[Mapping[str, _Probe]] = {
    "turns": _Probe([_ASKED, _SAID, _ASKED]),
    "rounds": _Probe([_ASKED, _SAID, _ASKED, _SAID, _ASKED]),
    "system": _Probe([_TOLD, _ASKED, _SAID, _ASKED]),
    "tools": _Probe([_ASKED, _CALLED, _RESULT], _TOOLS),
    "turns after tools": _Probe([_ASKED, _CALLED, _RESULT, _SAID, _ASKED], _TOOLS),
    "thinking": _Probe([_ASKED, _THOUGHT, _ASKED]),
    "thinking before tools": _Probe([_ASKED, _THOUGHT_AND_CALLED, _RESULT], _TOOLS),
}


def append_only(chat_format: ChatFormat) -> dict[str, bool]:
    """For each kind of conversation, whether a call goes on from the tokens of the call before it.

    "turns": a question after an answer. "rounds": several of them. "system": a question after an answer under a system message.
    "tools": the result of a tool after the call for it. "turns after tools": a question after that. "thinking": a question after
    an answer that begins with `<think>...</think>`. "thinking before tools": such thoughts before a tool call, and its result.
    Kinds that the format refuses are left out.
    """
    found = {name: _goes_on(chat_format, probe) for name, probe in _PROBES.items()}
    return {name: goes_on for name, goes_on in found.items() if goes_on is not None}


def append_only_note(chat_format: ChatFormat) -> str:
    """What a user should know of the model's template, as a sentence; empty when nothing."""
    anew = [name for name, goes_on in append_only(chat_format).items() if not goes_on]
    if not anew:
        return ""
    return (
        f"The model's chat template writes earlier turns otherwise once there are later ones ({', '.join(anew)}): "
        "calls after such turns are rendered anew and share few tokens with those before them; see docs/gateway.md"
    )


def _goes_on(chat_format: ChatFormat, probe: _Probe) -> bool | None:
    """Plays the conversation call by call; None if the format refuses it."""
    branches = Branches()
    calls = [at for at, message in enumerate(probe.messages) if message["role"] == "assistant"]
    for number, at in enumerate([*calls, len(probe.messages)]):
        try:
            prompt = make_prompt(chat_format, Conversation.of("probe", probe.messages[:at], probe.tools), "", branches)
        except BackendError:
            return None
        if number and not prompt.continuation.continuity.goes_on:
            return False
        if at < len(probe.messages):
            answer = probe.messages[at]
            try:
                sampled = chat_format.render_answer(answer)
            except BackendError:  # it closes no turn, or never begins a prompt twice alike
                return False
            branches.keep(prompt.answered(str(number), answer, sampled, "stop"))
    return True
