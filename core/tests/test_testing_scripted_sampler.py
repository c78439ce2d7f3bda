"""The scripted sampler: exact ids, checkable log-probabilities, limits and stop strings."""

from __future__ import annotations

import asyncio

import pytest

from spangrad.backend import SampleDelta, SampleRequest, SamplingParams
from spangrad.errors import BackendError
from spangrad.testing import ByteChatFormat, Script, ScriptedSampler, scripted_logprob

PROMPT = ByteChatFormat().render([{"role": "user", "content": "hello"}])


async def drawn(
    script: Script, *, choices: int = 1, top_logprobs: int = 0, version: int = 0, **params: object
) -> list[SampleDelta]:
    sampler = ScriptedSampler(script, policy_version=version)
    request = SampleRequest(PROMPT, SamplingParams(**params), top_logprobs, choices)  # type: ignore[arg-type]  # any of its fields
    return [delta async for delta in sampler.sample(request)]


def ids(deltas: list[SampleDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def test_every_byte_is_one_id_and_the_turn_ends_with_its_end() -> None:
    deltas = await drawn(lambda _: "hé")
    assert ids(deltas) == [104, 195, 169, 257]
    assert "".join(delta.text for delta in deltas) == "hé"
    assert [delta.finish_reason for delta in deltas] == [None, "stop"]


async def test_logprobs_tell_prompt_position_token_and_version() -> None:
    deltas = await drawn(lambda _: ["a", "a"], version=7)
    logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
    assert logprobs == [scripted_logprob(PROMPT, i, token, 7) for i, token in enumerate([97, 97, 257])]
    assert len(set(logprobs)) == 3
    assert all(-8 <= logprob < 0 and logprob * 128 == int(logprob * 128) for logprob in logprobs)
    assert {delta.policy_version for delta in deltas} == {7}
    others = (PROMPT[1:], 0, 97, 7), (PROMPT, 1, 97, 7), (PROMPT, 0, 98, 7), (PROMPT, 0, 97, 8)
    assert scripted_logprob(PROMPT, 0, 97, 7) not in [scripted_logprob(*other) for other in others]


async def test_only_whole_characters_are_handed_out() -> None:
    assert [delta.text for delta in await drawn(lambda _: "é€", max_tokens=2)] == ["é"]
    assert [delta.text for delta in await drawn(lambda _: "é€", max_tokens=3)] == ["é\N{REPLACEMENT CHARACTER}"]


async def test_the_length_limit_counts_ids_and_needs_no_end_of_turn() -> None:
    deltas = await drawn(lambda _: "abcdef", max_tokens=4)
    assert ids(deltas) == list(b"abcd")
    assert deltas[-1].finish_reason == "length"


async def test_a_stop_string_is_cut_from_the_text_and_kept_in_the_ids() -> None:
    deltas = await drawn(lambda _: ["one S", "T", "OP two"], stop=("STOP",))
    assert [delta.text for delta in deltas] == ["one ", "", ""]
    assert ids(deltas) == list(b"one STOP")
    assert deltas[-1].finish_reason == "stop"


async def test_text_held_for_a_stop_string_that_does_not_come_is_handed_out() -> None:
    deltas = await drawn(lambda _: ["S", "TART S"], stop=("STOP",))
    assert [delta.text for delta in deltas] == ["", "START ", "S"]


async def test_choices_are_drawn_apart() -> None:
    deltas = await drawn(lambda prompt: f"answer {prompt.choice}", choices=2)
    texts = ["".join(delta.text for delta in deltas if delta.choice == choice) for choice in (0, 1)]
    assert texts == ["answer 0", "answer 1"]


async def test_alternatives_begin_with_the_sampled_id() -> None:
    (first, end) = await drawn(lambda _: "a", top_logprobs=2)
    assert [pair[0] for pair in first.top_logprobs[0]] == [97, 98]
    assert first.top_logprobs[0][0][1] == first.logprobs[0] > first.top_logprobs[0][1][1]
    assert len(end.top_logprobs) == 1


async def test_a_script_sees_the_conversation_and_may_fail_or_wait() -> None:
    waited: list[str] = []

    async def wait() -> None:
        waited.append("waited")

    deltas = await drawn(lambda prompt: [f"you said {prompt.last}", wait])
    assert "".join(delta.text for delta in deltas) == "you said hello"
    assert waited == ["waited"]
    with pytest.raises(BackendError, match="out of memory"):
        await drawn(lambda _: BackendError("out of memory"))


async def test_a_prompt_without_room_for_an_answer_is_an_error() -> None:
    sampler = ScriptedSampler(lambda _: "x", context_length=len(PROMPT))
    with pytest.raises(BackendError, match="no room"):
        await anext(aiter(sampler.sample(SampleRequest(PROMPT, SamplingParams()))))
    assert sampler.started == 0


async def test_closing_the_iterator_leaves_the_request_unfinished() -> None:
    sampler = ScriptedSampler(lambda _: ["a", lambda: asyncio.sleep(3600), "b"])
    deltas = sampler.sample(SampleRequest(PROMPT, SamplingParams()))
    await anext(deltas)
    await deltas.aclose()
    assert (sampler.started, sampler.finished) == (1, 0)
