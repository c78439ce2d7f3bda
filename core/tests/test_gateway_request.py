"""What the gateway makes of a request's fields, and of text that may become a tool call."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.gateway import EngineDelta, EngineError
from spangrad.gateway._answer import Answer
from spangrad.gateway._held_text import HeldText
from spangrad.gateway._request import call_seed, read_chat, refuse_unsupported

MARK = "<tool_call>"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@given(st.lists(st.text("<tol_ca> \nx", max_size=12)))
def test_held_text_shows_a_prefix_and_never_a_mark_or_trailing_space(pieces: list[str]) -> None:
    held = HeldText(MARK)
    shown = "".join(held.add(piece) for piece in pieces)
    whole = "".join(pieces)
    assert held.all == whole
    assert whole.startswith(shown)
    assert MARK not in shown
    assert shown == shown.rstrip()
    before, mark, _ = whole.partition(MARK)
    if not mark:
        hidden = whole[len(shown) :].lstrip()
        assert MARK.startswith(hidden.rstrip()) or not hidden
    assert before.startswith(shown)


@given(st.lists(st.text("<tol_ca> \nx", max_size=12)))
def test_held_text_and_its_rest_make_up_the_unparsed_answer(pieces: list[str]) -> None:
    held = HeldText(MARK)
    shown = "".join(held.add(piece) for piece in pieces)
    assert shown + held.rest("".join(pieces)) == "".join(pieces)


def test_every_call_of_a_rollout_has_a_seed_of_its_own() -> None:
    seeds = [call_seed(seed, index) for seed in range(50) for index in range(50)]
    assert len(set(seeds)) == 2500
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert call_seed(2**70, 3) == call_seed(2**70, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": "a"},
        {"stop": None, "n": None, "temperature": 0, "tools": []},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"top_k": -1},
        {"anything": {"else": 1}},
    ],
)
def test_requests_as_openai_has_them_are_understood(fields: dict[str, Any]) -> None:
    assert read_chat(BODY | fields).model == "m"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "custom"}]}, "tools.0.type"),
        ({"stop": [1]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, ""),
        ({"seed": 2**63}, "seed"),
    ],
)
def test_a_field_that_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(EngineError, match="not valid") as caught:
        read_chat(BODY | fields)
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith(param)


@pytest.mark.parametrize(
    "name", ["logit_bias", "audio", "functions", "structured_outputs", "presence_penalty", "min_p"]
)
def test_a_field_that_would_change_the_answer_is_refused_unless_it_is_neutral(name: str) -> None:
    refuse_unsupported(BODY | {name: None})
    with pytest.raises(EngineError, match=name):
        refuse_unsupported(BODY | {name: {"set": True}})


def test_ids_are_unknown_as_soon_as_one_piece_of_content_lacks_them() -> None:
    answer = Answer()
    answer.add(EngineDelta(text="a", token_ids=(1,), logprobs=(-0.5,)))
    answer.add(EngineDelta(text="b"))
    (choice,) = answer.records()
    assert (choice.token_ids, choice.logprobs) == (None, None)
    answer = Answer()
    answer.add(EngineDelta(text="a", token_ids=(1,), logprobs=(-0.5,)))
    answer.add(EngineDelta(text="b", token_ids=(2,)))
    answer.add(EngineDelta(finish_reason="stop"))
    (choice,) = answer.records()
    assert (choice.token_ids, choice.logprobs) == ((1, 2), None)


def test_an_engine_error_survives_pickling() -> None:
    error = EngineError("what", cure="cure", status=429, code="c", param="p", headers={"retry-after": "1"})
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (str(copy), vars(copy)) == (str(error), vars(error))
