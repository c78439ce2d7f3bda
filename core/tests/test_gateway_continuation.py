"""A call's prompt goes on from the tokens of an earlier call of its rollout, or says why it does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.backend import SamplingParams
from spangrad.gateway import EngineRequest, TokenEngine, append_only, append_only_note
from spangrad.gateway._branches import Branches
from spangrad.testing import ByteChatFormat, Script, ScriptedSampler
from spangrad.transitions import Continuation, Continuity

FORMAT = ByteChatFormat()
QUESTION = {"role": "user", "content": "1+1?"}
MORE = {"role": "user", "content": "And 2+2?"}
CALC: dict[str, Any] = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
ADD: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@dataclass(frozen=True)
class Said:
    """What came of a call."""

    call_id: str
    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    message: dict[str, Any]
    continuation: Continuation

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.prompt, *self.sampled)


@dataclass
class Rollout:
    """An engine over a script, and the answers of one rollout's attempt."""

    script: Script
    branches: Branches = field(default_factory=Branches)
    calls: int = 0

    def ask(self, *messages: Any, tools: Sequence[dict[str, Any]] = (), choices: int = 1, **fields: Any) -> list[Said]:
        """Asks for several answers."""
        self.calls += 1
        params = SamplingParams(max_tokens=fields.pop("max_tokens", 256), stop=fields.pop("stop", ()))
        request = EngineRequest(
            model="model",
            messages=messages,
            tools=tools,
            tool_choice=fields.pop("tool_choice", None),
            params=params,
            limited=True,
            choices=choices,
            logprobs=False,
            top_logprobs=0,
            stream=False,
            body={"messages": messages, **fields},
            call_id=f"call-{self.calls}",
            branches=self.branches,
        )
        return asyncio.run(self._answers(request))

    def say(self, *messages: Any, **fields: Any) -> Said:
        """Asks for one answer."""
        (said,) = self.ask(*messages, **fields)
        return said

    async def _answers(self, request: EngineRequest) -> list[Said]:
        engine = TokenEngine(ScriptedSampler(self.script), FORMAT, "scripted")
        deltas = [delta async for delta in engine.chat(request)]
        prompt, continuation = deltas[0].prompt_ids, deltas[0].continuation
        assert prompt is not None
        assert continuation is not None
        said = []
        for choice in range(request.choices):
            mine = [delta for delta in deltas if delta.choice == choice]
            message: dict[str, Any] = {"role": "assistant", "content": "".join(delta.text for delta in mine)}
            if calls := [call for delta in mine for call in delta.tool_calls]:
                message |= {"tool_calls": calls, "content": message["content"] or None}
            sampled = tuple(token for delta in mine for token in delta.token_ids or ())
            said.append(Said(request.call_id, prompt, sampled, message, continuation))
        return said


def telling(*answers: str) -> Script:
    """A script that gives these answers, one a call."""
    left = iter(answers)
    return lambda _prompt: next(left)


def calling(arguments: str, *, name: str = "calc", spacing: str = "") -> str:
    return f'<tool_call>{spacing}{{"name": "{name}", "arguments": {arguments}}}{spacing}</tool_call>'


def result(message: dict[str, Any], content: str = "2") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": content}


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    return next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def broken(said: Said, why: Continuity, compared: Said) -> bool:
    """Whether a prompt was rendered anew, for that reason, and says where it differs."""
    where = first_difference(said.prompt, compared.ids)
    return said.continuation == Continuation(why, None, compared.call_id, where)


def test_the_first_call_has_nothing_to_go_on_from() -> None:
    said = Rollout(telling("2")).say(QUESTION)

    assert said.continuation == Continuation(Continuity.FIRST)
    assert said.prompt == FORMAT.render([QUESTION])


def test_a_further_question_goes_on_from_the_answer_before_it() -> None:
    rollout = Rollout(telling("2", "4"))
    one = rollout.say(QUESTION)
    two = rollout.say(QUESTION, one.message, MORE)

    assert two.continuation == Continuation(Continuity.EXTENDED, "call-1", "call-1")
    assert two.prompt[: len(one.ids)] == one.ids
    assert two.prompt == FORMAT.render([QUESTION, one.message, MORE])


def test_what_was_sampled_is_kept_where_the_template_would_write_it_otherwise() -> None:
    rollout = Rollout(telling(calling('{"a":   1}', spacing="\n\n"), "2"))
    one = rollout.say(QUESTION, tools=[CALC])
    two = rollout.say(QUESTION, one.message, result(one.message), tools=[CALC])

    # The template writes <tool_call>{ without the line breaks: from the first of them on the tokens would be others.
    at = len(one.prompt) + len("<tool_call>")
    assert two.continuation == Continuation(Continuity.RESPELLED, "call-1", "call-1", at)
    assert two.prompt[: len(one.ids)] == one.ids
    assert two.prompt != FORMAT.render([QUESTION, one.message, result(one.message)], tools=[CALC])


@pytest.mark.parametrize(
    "arguments", ['{"a":1,"b":[2]}', '{ "b": [2], "a": 1 }'], ids=["other spacing", "another order"]
)
def test_a_client_may_write_a_tool_calls_arguments_anew(arguments: str) -> None:
    rollout = Rollout(telling(calling('{"a": 1, "b": [2]}'), "2"))
    one = rollout.say(QUESTION, tools=[CALC])
    message = json.loads(json.dumps(one.message))
    message["tool_calls"][0]["function"]["arguments"] = arguments
    two = rollout.say(QUESTION, message, result(message), tools=[CALC])

    assert two.continuation.continuity is Continuity.RESPELLED
    assert two.prompt[: len(one.ids)] == one.ids


@pytest.mark.parametrize(
    "change",
    [
        lambda message: {**message, "content": [{"type": "text", "text": message["content"]}]},
        lambda message: {**message, "content": [{"type": "text", "text": letter} for letter in message["content"]]},
        lambda message: {**message, "refusal": None, "tool_calls": None, "annotations": []},
        lambda message: {"content": message["content"], "role": "assistant", "tool_calls": []},
    ],
    ids=["a part", "several parts", "further members", "no tool calls"],
)
def test_a_client_may_write_a_message_in_another_form(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    rollout = Rollout(telling("It is 2", "4"))
    one = rollout.say(QUESTION)
    two = rollout.say({"role": "user", "content": [{"type": "text", "text": "1+1?"}]}, change(one.message), MORE)

    assert two.continuation.continuity is Continuity.EXTENDED


@pytest.mark.parametrize("content", [None, "", []])
def test_a_tool_call_without_text_has_no_content_null_content_or_an_empty_one(content: Any) -> None:
    rollout = Rollout(telling(calling('{"a": 1}'), "2"))
    one = rollout.say(QUESTION, tools=[CALC])
    two = rollout.say(QUESTION, {**one.message, "content": content}, result(one.message), tools=[CALC])

    assert two.continuation.continuity is Continuity.EXTENDED


def test_another_tool_call_id_makes_another_answer() -> None:
    rollout = Rollout(telling(calling("{}"), "2"))
    one = rollout.say(QUESTION, tools=[CALC])
    changed = {**one.message, "tool_calls": [{**one.message["tool_calls"][0], "id": "mine"}]}
    two = rollout.say(QUESTION, changed, result(changed), tools=[CALC])

    assert two.continuation.continuity is Continuity.EDITED_ANSWER
    assert two.continuation.compared_with == "call-1"


def test_an_answer_that_was_cut_at_its_limit_is_closed_and_gone_on_from() -> None:
    rollout = Rollout(telling("It is two", "4"))
    one = rollout.say(QUESTION, max_tokens=5)
    two = rollout.say(QUESTION, one.message, MORE)

    assert one.message["content"] == "It is"
    assert two.continuation.continuity is Continuity.EXTENDED
    assert two.prompt == FORMAT.render([QUESTION, one.message, MORE])
    assert two.prompt[len(one.ids)] == FORMAT.end_id


def test_an_answer_cut_before_a_stop_string_cannot_be_gone_on_from() -> None:
    rollout = Rollout(telling("Thought\nObservation: 3", "4"))
    one = rollout.say(QUESTION, stop=("\nObservation",))
    two = rollout.say(QUESTION, one.message, MORE)

    assert one.message["content"] == "Thought"
    assert broken(two, Continuity.STOP_STRING, one)
    assert two.prompt == FORMAT.render([QUESTION, one.message, MORE])


def test_white_space_that_was_a_stop_string_is_not_taken_for_another_spelling() -> None:
    rollout = Rollout(telling("Thought\n", "4"))
    one = rollout.say(QUESTION, stop=("\n",))
    two = rollout.say(QUESTION, one.message, MORE)

    assert two.continuation.continuity is Continuity.STOP_STRING


def test_an_edited_answer_is_rendered_anew() -> None:
    rollout = Rollout(telling("It is 2", "4"))
    one = rollout.say(QUESTION)
    two = rollout.say(QUESTION, {**one.message, "content": "It is two"}, MORE)

    assert broken(two, Continuity.EDITED_ANSWER, one)
    assert two.continuation.differs_at == len(one.prompt) + len("It is ")


def test_edited_history_is_rendered_anew() -> None:
    rollout = Rollout(telling("It is 2", "4"))
    one = rollout.say(QUESTION)
    two = rollout.say({"role": "user", "content": "1+2?"}, one.message, MORE)

    assert broken(two, Continuity.EDITED_HISTORY, one)


def test_shortened_history_is_rendered_anew() -> None:
    system = {"role": "system", "content": "Be good."}
    rollout = Rollout(telling("It is 2", "It is 4", "6"))
    one = rollout.say(system, QUESTION)
    two = rollout.say(system, QUESTION, one.message, MORE)
    three = rollout.say(system, MORE, two.message, {"role": "user", "content": "3+3?"})

    assert two.continuation.continuity is Continuity.EXTENDED
    assert broken(three, Continuity.SHORTENED, two)


def test_a_new_system_message_is_rendered_anew() -> None:
    rollout = Rollout(telling("It is 2", "4"))
    one = rollout.say({"role": "system", "content": "Today is Monday."}, QUESTION)
    two = rollout.say({"role": "system", "content": "Today is Sunday."}, QUESTION, one.message, MORE)

    assert broken(two, Continuity.NEW_SYSTEM, one)


def test_other_tools_are_rendered_anew() -> None:
    rollout = Rollout(telling("It is 2", "4"))
    one = rollout.say(QUESTION, tools=[CALC])
    two = rollout.say(QUESTION, one.message, MORE, tools=[CALC, ADD])

    assert broken(two, Continuity.OTHER_TOOLS, one)


def test_a_response_format_that_comes_later_is_a_new_system_message() -> None:
    rollout = Rollout(telling("It is 2", "4"))
    one = rollout.say(QUESTION)
    two = rollout.say(QUESTION, one.message, MORE, response_format={"type": "json_object"})

    assert broken(two, Continuity.NEW_SYSTEM, one)


def test_an_answer_whose_latest_part_cannot_be_gone_on_from_goes_on_from_the_one_before() -> None:
    rollout = Rollout(telling(calling('{"a":1}', spacing=" "), "Thought\nObservation", "end"))
    one = rollout.say(QUESTION, tools=[CALC])
    history = [QUESTION, one.message, result(one.message)]
    two = rollout.say(*history, tools=[CALC], stop=("\nObservation",))
    three = rollout.say(*history, two.message, MORE, tools=[CALC])

    where = first_difference(three.prompt, two.ids)
    assert three.continuation == Continuation(Continuity.STOP_STRING, "call-1", "call-2", where)
    assert three.prompt[: len(one.ids)] == one.ids


@pytest.mark.parametrize(("stopped", "found"), [(3, "call-1"), (4, None)])
def test_four_earlier_answers_are_tried(stopped: int, found: str | None) -> None:
    rollout = Rollout(telling("one", *["Thought\nObservation"] * stopped, "end"))
    history: list[Any] = [QUESTION]
    history += [rollout.say(*history).message, MORE]
    for _ in range(stopped):
        history += [rollout.say(*history, stop=("\nObservation",)).message, MORE]
    last = rollout.say(*history)

    assert (last.continuation.continuity, last.continuation.continued_from) == (Continuity.STOP_STRING, found)
    assert last.continuation.compared_with == f"call-{stopped + 1}"


def test_a_call_that_may_use_no_tools_is_shown_none_and_rendered_anew() -> None:
    rollout = Rollout(telling(calling("{}"), "2"))
    one = rollout.say(QUESTION, tools=[CALC])
    two = rollout.say(QUESTION, one.message, result(one.message), tools=[CALC], tool_choice="none")

    assert two.continuation.continuity is Continuity.OTHER_TOOLS


def test_answers_that_no_model_gave_are_part_of_what_was_added() -> None:
    example = {"role": "assistant", "content": "An example."}
    rollout = Rollout(telling("2", "4", "5"))
    one = rollout.say(QUESTION, example, MORE)
    two = rollout.say(QUESTION, example, MORE, one.message, {"role": "user", "content": "x"}, example, MORE)

    assert one.continuation.continuity is Continuity.FIRST
    assert two.continuation == Continuation(Continuity.EXTENDED, "call-1", "call-1")


def test_interleaved_agents_each_go_on_from_their_own_calls() -> None:
    rollout = Rollout(telling("a1", "b1", "a2", "b2"))
    a1 = rollout.say({"role": "system", "content": "A"}, QUESTION)
    b1 = rollout.say({"role": "system", "content": "B"}, QUESTION)
    a2 = rollout.say({"role": "system", "content": "A"}, QUESTION, a1.message, MORE)
    b2 = rollout.say({"role": "system", "content": "B"}, QUESTION, b1.message, MORE)

    assert [said.continuation.continued_from for said in (a1, b1, a2, b2)] == [None, None, "call-1", "call-2"]
    assert b2.prompt[: len(b1.ids)] == b1.ids


def test_each_of_several_choices_can_be_gone_on_from() -> None:
    rollout = Rollout(lambda prompt: f"choice {prompt.choice}")
    choices = rollout.ask(QUESTION, choices=3)
    for said in reversed(choices):
        further = rollout.say(QUESTION, said.message, MORE)
        assert further.prompt[: len(said.ids)] == said.ids


def test_an_answer_that_was_begun_for_the_model_is_gone_on_from() -> None:
    rollout = Rollout(telling(' {"a":  1}}</tool_call>', "2"))
    one = rollout.say(QUESTION, tools=[CALC], tool_choice="required")
    two = rollout.say(QUESTION, one.message, result(one.message), tools=[CALC])

    # The template writes {"a":  1} as the model did: the arguments are JSON text as it stands, here with one space more.
    assert one.message["tool_calls"][0]["function"]["name"] == "calc"
    assert two.continuation.continuity.goes_on
    assert two.prompt[: len(one.ids)] == one.ids
    assert FORMAT.decode(two.prompt[len(one.ids) :]).startswith("<|im_start|>tool\n2")


def test_rollouts_know_nothing_of_each_other() -> None:
    one = Rollout(telling("2")).say(QUESTION)
    other = Rollout(telling("4")).say(QUESTION, one.message, MORE)

    assert other.continuation.continuity is Continuity.FIRST


def test_what_is_kept_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    rollout = Rollout(lambda prompt: f"{len(prompt.messages)}", Branches(most_tokens=300))
    chains = [rollout.say({"role": "user", "content": f"question {number}"}) for number in range(50)]
    assert rollout.branches.tokens <= 300

    for number, kept in ((0, False), (49, True)):
        question = {"role": "user", "content": f"question {number}"}
        further = rollout.say(question, chains[number].message, MORE)
        assert (further.continuation.continuity is Continuity.EXTENDED) == kept


def test_a_closed_attempt_keeps_nothing_not_even_an_answer_that_comes_later() -> None:
    rollout = Rollout(telling("2", "4"))
    rollout.say(QUESTION)
    rollout.branches.close()
    assert rollout.branches.tokens == 0
    rollout.say(QUESTION)

    assert rollout.branches.tokens == 0


def test_a_format_that_loses_nothing_is_append_only_in_every_kind_of_conversation() -> None:
    kinds = {"turns", "rounds", "system", "tools", "turns after tools", "thinking", "thinking before tools"}

    assert append_only(FORMAT) == dict.fromkeys(kinds, True)
    assert append_only_note(FORMAT) == ""


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
ANSWERS = TEXTS | st.builds(calling, st.sampled_from(['{"a":1}', '{ "a" : [1, 2] }', "{}"]), spacing=TEXTS)


@given(st.data())
def test_in_any_tree_of_conversations_a_prompt_begins_with_all_tokens_of_the_call_it_goes_on_from(
    data: st.DataObject,
) -> None:
    answers: list[str] = []
    rollout = Rollout(lambda _prompt: answers[-1])
    known: list[tuple[list[dict[str, Any]], Said]] = []
    by_id: dict[str, Said] = {}
    for _ in range(data.draw(st.integers(1, 7))):
        goes_on = data.draw(st.booleans())
        parent = data.draw(st.sampled_from(known)) if known and goes_on else None
        messages = [] if parent is None else [*parent[0], parent[1].message]
        calls = [] if parent is None else parent[1].message.get("tool_calls", [])
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": data.draw(TEXTS)} for call in calls]
        if not calls:
            messages.append({"role": "user", "content": data.draw(TEXTS)})
        answers.append(data.draw(ANSWERS))
        said = rollout.say(*messages, tools=[CALC], max_tokens=data.draw(st.sampled_from([4, 256])))
        if parent is not None:
            assert said.continuation.continuity.goes_on
            earlier = by_id[str(said.continuation.continued_from)]
            assert said.prompt[: len(earlier.ids)] == earlier.ids
        if not is_respelled(said, by_id):
            assert FORMAT.decode(said.prompt) == FORMAT.decode(FORMAT.render(messages, tools=[CALC]))
        known.append((messages, said))
        by_id[said.call_id] = said


def is_respelled(said: Said, by_id: dict[str, Said]) -> bool:
    """Whether the prompt has an answer that the template would write otherwise."""
    while (earlier := said.continuation.continued_from) is not None:
        if said.continuation.continuity is Continuity.RESPELLED:
            return True
        said = by_id[earlier]
    return False
