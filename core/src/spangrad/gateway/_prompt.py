"""The prompt of a call: an earlier call's own tokens and what was added, where that can be proved right; else rendered anew.

Proved is, per call, that the chat template writes the earlier messages now as it did then, at the beginning of what it writes
now; that behind them stands the earlier answer, in the words that were sampled or in others that mean the same; and that the
turn ends where the sampled tokens end it. What stands behind the turn's end is then all that has to be made into ids.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spangrad.backend import ChatFormat, Message, ParsedAnswer
from spangrad.gateway._branches import Answered, Branches
from spangrad.gateway._conversation import Conversation
from spangrad.gateway._message_meaning import canonical_arguments
from spangrad.transitions import Continuation, Continuity

_MOST_TRIES: Final = 4
"""How many earlier answers are tried: a template that drops something from all of them need not be asked about each."""
_THOUGHT: Final = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a call is sampled from, and what must be known to go on from it."""

    ids: tuple[int, ...]
    conversation: Conversation
    opening: str
    opening_ids: int
    begins: int
    continuation: Continuation

    def answered(
        self, call_id: str, message: Message, sampled_ids: Sequence[int], finish_reason: str | None
    ) -> Answered:
        """One answer to it, to be remembered.

        Args:
            call_id: of the call.
            message: the answer as the agent got it.
            sampled_ids: its tokens.
            finish_reason: the sampler's word.
        """
        alone, whole = self.conversation.answered(message)
        return Answered(
            call_id=call_id,
            engine=self.conversation.engine,
            shown=self.conversation.shown,
            messages=self.conversation.digests,
            systems=self.conversation.systems,
            asked=self.conversation.chain[-1],
            answer=alone,
            whole=whole,
            prompt_ids=array("i", self.ids),
            sampled_ids=array("i", sampled_ids),
            opening=self.opening,
            opening_ids=self.opening_ids,
            begins=self.begins,
            finish_reason=finish_reason,
        )


@dataclass(frozen=True, slots=True)
class _Onward:
    """What became of trying to go on from an answer."""

    continuity: Continuity
    ids: tuple[int, ...] | None = None
    """The prompt; None if it does not go on."""
    differs_at: int | None = None


def make_prompt(chat_format: ChatFormat, conversation: Conversation, opening: str, branches: Branches) -> Prompt:
    """The prompt of a call of a rollout.

    Args:
        chat_format: of the model.
        conversation: what the model is shown.
        opening: the text its answer has to begin with.
        branches: the earlier answers of the rollout's attempt.

    Raises:
        BackendError: a message that cannot be represented.
    """
    messages, tools = conversation.messages, conversation.tools
    unopened = chat_format.write(messages, tools=tools)
    written = chat_format.write(messages, tools=tools, opening=opening) if opening else unopened
    ids, continuation = _tokens(chat_format, conversation, written, branches)
    return Prompt(
        ids=ids,
        conversation=conversation,
        opening=opening,
        opening_ids=len(chat_format.encode(written[len(unopened) :])) if opening else 0,
        begins=hash(unopened),
        continuation=continuation,
    )


def _tokens(
    chat_format: ChatFormat, conversation: Conversation, written: str, branches: Branches
) -> tuple[tuple[int, ...], Continuation]:
    """The prompt's ids and where they came from: the latest answer that can be gone on from, else nowhere."""
    found = branches.continued(conversation)
    failed = branches.obstacle(conversation, found[0][0] if found else -1)
    for at, earlier in found[:_MOST_TRIES]:
        onward = _onward(chat_format, conversation, at, earlier, written)
        if onward.ids is None:
            failed = failed or (onward.continuity, earlier)
        elif failed is None:
            origin = Continuation(onward.continuity, earlier.call_id, earlier.call_id, onward.differs_at)
            return onward.ids, origin
        else:
            return onward.ids, _broken(*failed, onward.ids, earlier.call_id)
    ids = chat_format.encode(written)
    return ids, Continuation(Continuity.FIRST) if failed is None else _broken(*failed, ids, None)


def _broken(why: Continuity, compared: Answered, ids: tuple[int, ...], continued_from: str | None) -> Continuation:
    """Where a prompt came from that does not go on from the latest answer it repeats."""
    differs_at = _first_difference(ids, (*compared.prompt_ids, *compared.sampled_ids))
    return Continuation(why, continued_from, compared.call_id, differs_at)


def _onward(chat_format: ChatFormat, conversation: Conversation, at: int, earlier: Answered, written: str) -> _Onward:
    """Tries to go on from the answer that stands at `at` in a conversation."""
    before = chat_format.write(conversation.messages[:at], tools=conversation.tools)
    if hash(before) != earlier.begins or not written.startswith(before):
        return _Onward(Continuity.TEMPLATE)
    answer, end, rest = _split(written[len(before) :], chat_format.turn_end)
    end_and_rest = chat_format.encode(end + rest)  # together, since some tokenizers treat the beginning of a text apart
    if not end or chat_format.encode(end) != end_and_rest[:1]:
        return _Onward(Continuity.TEMPLATE)
    closed = tuple(earlier.sampled_ids[-1:]) == end_and_rest[:1]
    if not closed and _ends_otherwise(chat_format, earlier):
        return _Onward(Continuity.END_TOKEN)
    body = earlier.sampled_ids[:-1] if closed else earlier.sampled_ids
    anew = chat_format.encode(answer)
    said, again = earlier.opening + chat_format.decode(body), chat_format.plain(answer)
    if said != again and not _is_respelled(chat_format, conversation.tools, said, again, earlier, closed=closed):
        return _Onward(_why_other_words(chat_format, body, cut=not closed and earlier.finish_reason == "stop"))
    ids = (*earlier.prompt_ids, *earlier.sampled_ids, *end_and_rest[closed:])
    header = len(earlier.prompt_ids) - earlier.opening_ids
    taken = (*ids[header : len(earlier.prompt_ids)], *body)
    if taken == anew:
        return _Onward(Continuity.EXTENDED, ids)
    continuity = Continuity.RETOKENISED if said == again else Continuity.RESPELLED
    return _Onward(continuity, ids, header + _first_difference(taken, anew))


def _split(text: str, end: str) -> tuple[str, str, str]:
    """What stands before the end of a turn, the end, and what stands behind it; all of it before, if the turn is not closed."""
    return text.partition(end) if end else (text, "", "")


def _ends_otherwise(chat_format: ChatFormat, earlier: Answered) -> bool:
    """Whether the sampler took another token than the template's for the end of the turn."""
    last = earlier.sampled_ids[-1:]
    return earlier.finish_reason == "stop" and bool(last) and not chat_format.decode(last, skip_special=True)


def _why_other_words(chat_format: ChatFormat, body: Sequence[int], *, cut: bool) -> Continuity:
    """Why the template's words for an answer are not those that were sampled; `cut` by a stop string."""
    if cut:
        return Continuity.STOP_STRING
    hidden = chat_format.decode(body) != chat_format.decode(body, skip_special=True)
    return Continuity.CONTROL_TOKENS if hidden else Continuity.TEMPLATE


def _is_respelled(
    chat_format: ChatFormat,
    tools: Sequence[Mapping[str, Any]],
    said: str,
    again: str,
    earlier: Answered,
    *,
    closed: bool,
) -> bool:
    """Whether two texts of an answer are one message. Where a stop string cut it, they must be equal to the letter: white space
    may be just what was cut.
    """
    if not closed and earlier.finish_reason == "stop":
        return False
    return _message(chat_format.parse(said, tools=tools)) == _message(chat_format.parse(again, tools=tools))


def _message(answer: ParsedAnswer) -> tuple[str, str, list[tuple[str, Any]]]:
    """What an answer thinks, says and calls, without the ids that reading it makes up. An empty thought is as good as none:
    templates write one into a turn and leave it out of later prompts.
    """
    text = answer.content or ""
    thought = _THOUGHT.match(text)
    functions = (call["function"] for call in answer.tool_calls)
    calls = [(function["name"], canonical_arguments(function["arguments"])) for function in functions]
    if thought is None:
        return "", text.strip(), calls
    return thought[1].strip(), text[thought.end() :].strip(), calls


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Where two sequences differ first; the length of the shorter one if that is all of the other's beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
