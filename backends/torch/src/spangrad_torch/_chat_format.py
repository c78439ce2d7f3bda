"""Chat messages to prompt ids, and sampled text back to messages.

Two things differ from plain `apply_chat_template`. Text of a message never turns into a control token: `<|im_end|>` typed by
a user or returned by a tool is encoded as ordinary characters. And an assistant's turn is encoded apart from its header, so
that a longer conversation's ids begin with the ids of the shorter one plus the answer, wherever the template allows it.

The tokenizer's own template is used when it renders tools the way `_tool_calls` reads them, which is found out by trying.
Otherwise a tokenizer with the ChatML tokens gets the template in `_chat_template.jinja`. A tokenizer with another template
and no such tokens can chat, but is refused tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final, cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from spangrad.backend import Message, ParsedAnswer
from spangrad.errors import BackendError
from spangrad_torch._tool_calls import parse_tool_calls

CHAT_TEMPLATE: Final = (
    resources.files("spangrad_torch").joinpath("_chat_template.jinja").read_text("utf-8").rstrip("\n")
)
"""ChatML with tools: no default system prompt, append-only between turns."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_MARK = "\ue000"
"""Private-use character that, with one more, stands for text that must not become a control token."""
_FIRST_INDEX = 0xE001
_DUMMY: Final = ({"role": "user", "content": "x"},)


class TemplateFormat:
    """A tokenizer with a chat template; implements `spangrad.backend.ChatFormat`.

    Args:
        tokenizer: its `chat_template` is replaced by ours when its own does not handle tools, so saving it saves ours.

    Raises:
        BackendError: the tokenizer has neither a usable template nor the ChatML tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        specials = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._guarded = [_MARK, *sorted(set(specials), key=lambda text: (-len(text), text))]
        self._guard = re.compile("|".join(re.escape(text) for text in self._guarded))
        last = _FIRST_INDEX + len(self._guarded) - 1
        self._stands_for = re.compile(f"{_MARK}([{chr(_FIRST_INDEX)}-{chr(last)}])")
        self.handles_tools = True
        if not self._own_template_handles_tools():
            vocabulary = tokenizer.get_vocab()
            if "<|im_start|>" in vocabulary and "<|im_end|>" in vocabulary:
                tokenizer.chat_template = CHAT_TEMPLATE
            elif tokenizer.chat_template:
                self.handles_tools = False
            else:
                raise BackendError(
                    "The tokenizer has neither a chat template nor the ChatML tokens <|im_start|> and <|im_end|>",
                    cure="Use an instruction-tuned model, or add a chat_template.jinja to its folder",
                )
        self.is_ours = tokenizer.chat_template == CHAT_TEMPLATE
        opened = self._text(_DUMMY, header=True)
        self._header = opened.removeprefix(self._text(_DUMMY, header=False))
        closing = self._closing_id()
        self.turn_end = "" if closing is None else str(tokenizer.convert_ids_to_tokens(closing))
        """What the template closes an answer with."""
        self.end_ids = frozenset({tokenizer.eos_token_id, closing} - {None})
        """The ids that end a turn: the tokenizer's end of sequence, and `turn_end`."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        opening: str = "",
    ) -> tuple[int, ...]:
        """Prompt ids up to and including the header of the assistant's next turn, and `opening`, the text it has to begin with.

        Raises:
            BackendError: a message the format cannot represent, or no messages at all.
        """
        return self.encode(self.write(messages, tools=tools, opening=opening))

    def write(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        opening: str = "",
    ) -> str:
        """The template's text, with the text of control tokens inside messages replaced by private-use characters.

        Raises:
            BackendError: a message the format cannot represent, or no messages at all.
        """
        return self._text(self._clean(messages), tools=tools, header=True) + opening

    def plain(self, written: str) -> str:
        """The text with the private-use characters replaced by what they stand for."""
        return self._stands_for.sub(lambda m: self._guarded[ord(m[1]) - _FIRST_INDEX], written)

    def encode(self, written: str) -> tuple[int, ...]:
        """Ids of a written text: guarded text as characters, and nothing merged across an assistant's header."""
        ids: list[int] = []
        for piece in re.split(f"({_MARK}.)", written):
            if piece.startswith(_MARK):
                literal = self._guarded[ord(piece[1]) - _FIRST_INDEX]
                ids += self.tokenizer.encode(literal, add_special_tokens=False, split_special_tokens=True)
                continue
            for turn in re.split(f"(?<={re.escape(self._header)})", piece) if self._header else [piece]:
                ids += self.tokenizer.encode(turn, add_special_tokens=False)
        return tuple(ids)

    def render_answer(self, message: Message) -> tuple[int, ...]:
        """The ids a model would have to sample to give `message` as its turn, end of turn included.

        Raises:
            BackendError: `message` is not an assistant's, or the template closes no turn.
        """
        cleaned = self._clean([message])
        if cleaned[0]["role"] != "assistant":
            raise BackendError(f"An answer must be an assistant message, not one of role {message.get('role')!r}")
        prompt = self._text(_DUMMY, header=True)
        whole = self._text([*_DUMMY, *cleaned], header=False)
        ids = self.encode(whole.removeprefix(prompt))
        end = next((i for i, token in enumerate(ids) if token in self.end_ids), None)
        if end is None or not whole.startswith(prompt):
            raise BackendError(
                "The model's chat template does not render an answer behind the header it is sampled after",
                cure="Use a model with a ChatML-like template",
            )
        return ids[: end + 1]

    def parse(self, text: str, *, tools: Sequence[Mapping[str, Any]] = ()) -> ParsedAnswer:
        """Reads tool calls out of sampled text; see `parse_tool_calls`."""
        return parse_tool_calls(text, tools=tools)

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of `token_ids`."""
        text = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return cast("str", text)

    def _closing_id(self) -> int | None:
        """The control token the template closes an answer with; None if it closes none."""
        answer = {"role": "assistant", "content": "x"}
        prompt = self._text(_DUMMY, header=True)
        whole = self._text([*_DUMMY, answer], header=False)
        special = set(self.tokenizer.all_special_ids)
        return next((token for token in self.encode(whole.removeprefix(prompt)) if token in special), None)

    def _own_template_handles_tools(self) -> bool:
        """Whether the tokenizer's template shows a tool, a call as `_tool_calls` reads it, and the call's result."""
        if not self.tokenizer.chat_template:
            return False
        arguments = {"probe_argument": 17}
        tool = {"name": "probe_tool", "description": "probe_description", "parameters": {"type": "object"}}
        tools = [{"type": "function", "function": tool}]
        call = {"id": "call_1", "type": "function", "function": {"name": "probe_tool", "arguments": arguments}}
        turns: list[Message] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "probe_result"},
        ]
        try:
            asked = self._apply(turns[:1], tools=tools, header=True)
            whole = self._apply(turns, tools=tools, header=True)
        except (TemplateError, TypeError):  # what a template does with roles and members it does not know
            return False
        parsed = parse_tool_calls(whole.removeprefix(asked), tools=tools).tool_calls
        return (
            "probe_description" in asked
            and whole.startswith(asked)
            and "probe_result" in whole
            and [json.loads(found["function"]["arguments"]) for found in parsed] == [arguments]
        )

    def _clean(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages as a template takes them: roles it knows, content a string, empty members left out."""
        if not messages:
            raise BackendError("A conversation needs at least one message")
        return [_clean_message(message, keep_arguments=self.is_ours) for message in messages]

    def _text(self, messages: Sequence[Message], *, header: bool, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The template's text with message text guarded."""
        if not self.handles_tools and (tools or any(m["role"] == "tool" or "tool_calls" in m for m in messages)):
            raise BackendError(
                "The model's chat template does not handle tools",
                cure="Use a model whose template does, or whose tokenizer has the ChatML tokens",
            )
        guarded = [
            {key: value if key == "role" else self._guard_strings(value) for key, value in message.items()}
            for message in messages
        ]
        try:
            return self._apply(guarded, tools=self._guard_strings(list(tools)), header=header)
        except (TemplateError, TypeError) as error:  # a template may demand what this conversation lacks
            raise BackendError(
                f"The model's chat template refuses the conversation: {error}",
                cure="Compare the order of roles and the tools with what the template expects",
            ) from error

    def _apply(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]], header: bool) -> str:
        """The template's text as it is."""
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=header,
            tokenize=False,
        )
        return cast("str", text)

    def _guard_strings(self, value: Any) -> Any:
        """`value` with every text of a control token inside its strings replaced by two private-use characters."""
        if isinstance(value, str):
            return self._guard.sub(lambda m: _MARK + chr(_FIRST_INDEX + self._guarded.index(m.group())), value)
        if isinstance(value, Mapping):
            return {key: self._guard_strings(member) for key, member in value.items()}
        if isinstance(value, Sequence):
            return [self._guard_strings(member) for member in value]
        return value


def _clean_message(message: Message, *, keep_arguments: bool) -> dict[str, Any]:
    """One message as a template takes it.

    Args:
        message: as an agent sent it.
        keep_arguments: leave a call's arguments the JSON text they are; other people's templates expect the object.
    """
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise BackendError(
            f"A message has the unknown role {message.get('role')!r}", cure=f"Known roles: {', '.join(_ROLES)}"
        )
    cleaned: dict[str, Any] = {"role": role, "content": _plain_text(message.get("content"))}
    calls = message.get("tool_calls") or ()
    if calls and role != "assistant":
        raise BackendError(f"A message of role {role!r} has tool calls; only an assistant makes them")
    if calls:
        cleaned["tool_calls"] = [_clean_call(call, keep_arguments=keep_arguments) for call in calls]
    if role == "tool":
        cleaned |= {key: message[key] for key in ("tool_call_id", "name") if message.get(key)}
    return cleaned


def _plain_text(content: Any) -> str:
    """A message's content as one string.

    Raises:
        BackendError: a part of it is not text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise BackendError(f"A message's content must be text or a list of parts, not {type(content).__name__}")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise BackendError(
                f"This engine cannot represent a content part of type {kind!r}",
                cure="Send text only: leaving a part out silently would train on something the agent did not ask",
            )
        texts.append(part["text"])
    return "".join(texts)


def _clean_call(call: Any, *, keep_arguments: bool) -> dict[str, Any]:
    """One tool call of an assistant's message as a template takes it."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BackendError("A tool call of a message is not a function call with a name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise BackendError(f"The arguments of the tool call {function['name']!r} are not a string of JSON")
    cleaned: dict[str, Any] = {"name": function["name"], "arguments": arguments}
    if not keep_arguments:
        try:
            cleaned["arguments"] = json.loads(arguments or "{}")
        except json.JSONDecodeError as error:
            raise BackendError(f"The arguments of the tool call {function['name']!r} are not JSON: {error}") from error
    return {"id": call.get("id"), "type": "function", "function": cleaned}
