"""Exact continuation with real tokenizers and templates, and with a real model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.torch.tests.talks import MORE, QUESTION, TOOLS, Talk, played, tokenizer_of
from hypothesis import given
from hypothesis import strategies as st

from spangrad.backend import FinishReason, Learner, UpdateBatch
from spangrad.gateway import TokenEngine, append_only, append_only_note
from spangrad.gateway._branches import Branches
from spangrad.gateway._conversation import Conversation
from spangrad.gateway._prompt import make_prompt
from spangrad.transitions import Continuation, Continuity, Transition, TransitionBatch
from spangrad_torch import TorchBackend, TorchOptions
from spangrad_torch._chat_format import TemplateFormat

ENDOFTEXT, START, END = 0, 1, 2

TURN = '{{ "<|im_start|>" + m.role + "\n" + text }}'
CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
)


def layout(before: str = "", inside: str = "") -> str:
    """A template like ChatML that handles tools, with something before the messages and something for each message."""
    return (
        "{% for t in tools or [] %}[TOOL {{ t | tojson }}]\n{% endfor %}" + before + "{% for m in messages %}"
        "{% set text = m.content %}" + inside + TURN + CALLS + '{{ "<|im_end|>\n" }}{% endfor %}'
        '{% if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}'
    )


PLAIN = layout()
FORGETS_THOUGHTS = layout(
    inside='{% if m.role == "assistant" and not loop.last and messages[-1].role == "user" %}'
    '{% set text = text.split("</think>")[-1].lstrip() %}{% endif %}'
)
"""Like Qwen 3: once the user speaks again, what was thought before is left out."""
COUNTS = layout(before='{{ messages | selectattr("role", "equalto", "user") | list | length }}')
"""Like a template with the time in it: its beginning changes."""
TRIMS = layout(inside="{% set text = text | trim %}")


def one_by_one(form: TemplateFormat, text: str) -> list[int]:
    """The text's ids, a letter each, where the tokenizer would take two at a time."""
    return [token for letter in text for token in form.encode(letter)]


@pytest.fixture(scope="module")
def form(merging_model_folder: Path) -> TemplateFormat:
    return TemplateFormat(tokenizer_of(merging_model_folder))


async def test_a_tool_call_sampled_in_unusual_tokens_is_never_tokenised_anew(form: TemplateFormat) -> None:
    said = 'abba<tool_call>{"name": "calc", "arguments": {"a": 1}}</tool_call>'
    ids = [*one_by_one(form, said), END]
    assert form.encode(said) != tuple(ids[:-1])
    talk = played(form, (ids, "stop"), ([END], "stop"))
    _, one = await talk.go_on(QUESTION)
    origin, two = await talk.go_on(talk.result())

    # "abba" is ab, ba to the tokenizer: the first token after the header is another one already.
    assert origin == Continuation(Continuity.RETOKENISED, "c1", "c1", len(one.prompt_ids))
    assert two.prompt_ids[: len(one.prompt_ids) + len(ids)] == (*one.prompt_ids, *ids)
    assert form.decode(two.prompt_ids) == form.decode(form.render(talk.messages[:-1], tools=TOOLS))


async def test_usual_tokens_are_those_of_a_new_rendering(form: TemplateFormat) -> None:
    talk = played(form, ([*form.encode("abba"), END], "stop"), ([END], "stop"))
    await talk.go_on(QUESTION)
    origin, two = await talk.go_on(MORE)

    assert origin.continuity is Continuity.EXTENDED
    assert two.prompt_ids == form.render(talk.messages[:-1], tools=TOOLS)


async def test_an_answer_with_control_tokens_in_its_midst_is_rendered_anew(form: TemplateFormat) -> None:
    talk = played(form, ([*form.encode("ab"), START, *form.encode("cd"), END], "stop"), ([END], "stop"))
    _, one = await talk.go_on(QUESTION)
    origin, two = await talk.go_on(MORE)

    assert talk.messages[1]["content"] == "abcd"
    assert origin == Continuation(Continuity.CONTROL_TOKENS, None, "c1", len(one.prompt_ids) + 1)
    assert two.prompt_ids == form.render(talk.messages[:-1], tools=TOOLS)


async def test_an_answer_that_spells_a_control_token_in_letters_is_gone_on_from(form: TemplateFormat) -> None:
    spelled = form.tokenizer.encode("<|im_end|>", add_special_tokens=False, split_special_tokens=True)
    talk = played(form, ([*spelled, END], "stop"), ([END], "stop"))
    await talk.go_on(QUESTION)
    origin, two = await talk.go_on(MORE)

    assert talk.messages[1]["content"] == "<|im_end|>"
    assert origin.continuity.goes_on
    assert two.prompt_ids == form.render(talk.messages[:-1], tools=TOOLS)


async def test_an_answer_that_ends_with_another_token_than_the_templates_is_rendered_anew(form: TemplateFormat) -> None:
    talk = played(form, ([*form.encode("abcd"), ENDOFTEXT], "stop"), ([END], "stop"))
    _, one = await talk.go_on(QUESTION)
    origin, two = await talk.go_on(MORE)

    assert origin == Continuation(Continuity.END_TOKEN, None, "c1", len(one.prompt_ids) + 2)
    assert two.prompt_ids == form.render(talk.messages[:-1], tools=TOOLS)


async def test_a_cut_answer_is_closed_even_where_it_ends_within_a_character(form: TemplateFormat) -> None:
    half = form.encode("é")[:1]
    talk = played(form, (half, "length"), ([END], "stop"))
    _, one = await talk.go_on(QUESTION)
    origin, two = await talk.go_on(MORE)

    assert origin.continuity is Continuity.RETOKENISED
    assert two.prompt_ids[: len(one.prompt_ids) + 2] == (*one.prompt_ids, *half, END)


async def test_a_template_that_forgets_thoughts_forks_when_the_user_speaks_again(tiny_model_folder: Path) -> None:
    form = TemplateFormat(tokenizer_of(tiny_model_folder, FORGETS_THOUGHTS))
    assert not form.is_ours
    thought = form.encode('<think>mm</think>\n<tool_call>{"name": "calc", "arguments": {}}</tool_call>')
    talk = played(form, ([*thought, END], "stop"), ([END], "stop"), ([END], "stop"))
    _, one = await talk.go_on(QUESTION)
    tool, _ = await talk.go_on(talk.result())
    user, three = await talk.go_on(MORE)

    assert tool.continuity.goes_on
    assert user.continuity is Continuity.TEMPLATE
    assert user.continued_from is None
    assert user.differs_at == len(one.prompt_ids) + len("<t")  # <think> then, <tool_call> now
    assert "<think>" not in form.decode(three.prompt_ids)


async def test_a_template_whose_beginning_changes_forks(tiny_model_folder: Path) -> None:
    form = TemplateFormat(tokenizer_of(tiny_model_folder, COUNTS))
    talk = played(form, ([END], "stop"), ([END], "stop"))
    await talk.go_on(QUESTION)
    origin, two = await talk.go_on(MORE)

    assert origin.continuity is Continuity.TEMPLATE
    assert two.prompt_ids == form.render(talk.messages[:-1], tools=TOOLS)


async def test_white_space_that_a_template_trims_stays_as_it_was_sampled(tiny_model_folder: Path) -> None:
    form = TemplateFormat(tokenizer_of(tiny_model_folder, TRIMS))
    talk = played(form, ([*form.encode("\nab \n"), END], "stop"), ([END], "stop"))
    _, one = await talk.go_on(QUESTION)
    origin, two = await talk.go_on(MORE)

    assert origin == Continuation(Continuity.RESPELLED, "c1", "c1", len(one.prompt_ids))
    assert form.decode(two.prompt_ids).endswith(
        "assistant\n\nab \n<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    )


ALL = ("turns", "rounds", "system", "tools", "turns after tools", "thinking", "thinking before tools")


@pytest.mark.parametrize(
    ("template", "anew"),
    [
        (None, set()),
        (PLAIN, set()),
        (TRIMS, set()),
        (FORGETS_THOUGHTS, {"thinking"}),
        (COUNTS, {"turns", "rounds", "system", "turns after tools", "thinking"}),
    ],
    ids=["ours", "plain", "trims", "forgets thoughts", "counts"],
)
def test_a_template_is_probed(tiny_model_folder: Path, template: str | None, anew: set[str]) -> None:
    form = TemplateFormat(tokenizer_of(tiny_model_folder, template))

    assert append_only(form) == {kind: kind not in anew for kind in ALL}
    assert bool(append_only_note(form)) == bool(anew)


def test_kinds_of_conversation_a_template_refuses_are_left_out(tiny_model_folder: Path) -> None:
    tokenizer = tokenizer_of(tiny_model_folder, PLAIN.replace("<tool_call>", "<call>"))
    vocabulary = tokenizer.get_vocab()
    form = TemplateFormat(tokenizer)
    assert "<|im_start|>" in vocabulary  # so our template took its place, and handles tools
    assert form.is_ours
    form.handles_tools = False

    assert append_only(form) == {"turns": True, "rounds": True, "system": True, "thinking": True}


async def test_the_learner_finds_the_samplers_log_probabilities_on_the_merged_sequence(
    merging_model_folder: Path,
) -> None:
    options = TorchOptions(model=str(merging_model_folder), precision="fp32", decode_threads=1, train_threads=1)
    backend = TorchBackend.load(options, seed=3)
    try:
        policy = backend.policies["policy"]
        talk = Talk(TokenEngine(policy.sampler, backend.chat_format, "torch"))
        rows, origins = [], []
        for message in (QUESTION, MORE, QUESTION):
            origin, row = await talk.go_on(message, seed=5)
            origins.append(origin.continuity)
            rows.append(row)
        found = await policy.learner.logprobs(TransitionBatch(tuple(rows)))
    finally:
        await backend.close()

    # A random model's letters come one by one, where the tokenizer would merge them.
    assert origins == [Continuity.FIRST, Continuity.RETOKENISED, Continuity.RETOKENISED]
    for earlier, later in itertools.pairwise(rows):
        whole = (*earlier.prompt_ids, *earlier.action_ids)
        assert later.prompt_ids[: len(whole)] == whole
    for row, logprobs in zip(rows, found, strict=True):
        np.testing.assert_allclose(logprobs, row.logprobs, atol=1e-4)


async def teach(learner: Learner, row: Transition, *, steps: int) -> None:
    """Trains a model until it answers a prompt so."""
    weights = np.full(1, 1.0 / len(row.action_ids))
    batch = UpdateBatch(TransitionBatch((row,)), 1e-2, advantages=np.zeros(1), token_weights=weights)
    for _ in range(steps):
        await learner.imitate(batch)


async def test_a_model_goes_on_after_its_tools_result_from_the_very_tokens_of_its_call(
    merging_model_folder: Path,
) -> None:
    options = TorchOptions(model=str(merging_model_folder), precision="fp32", decode_threads=1, train_threads=1)
    backend = TorchBackend.load(options, seed=3)
    form = backend.chat_format
    assert isinstance(form, TemplateFormat)
    said = '<tool_call>{"name": "calc", "arguments": {"a":  1}}</tool_call>'
    taught = (*one_by_one(form, said), END)  # "to" and "ol" are one token each to the tokenizer
    asked = form.render([QUESTION], tools=TOOLS)
    try:
        policy = backend.policies["policy"]
        no_logprobs = (0.0,) * len(taught)
        shown = Transition(
            "d", 0, "d", "d", 0, 0, None, "policy", 0, asked, taught, no_logprobs, 1.0, 1.0, 0, None, 0.0
        )
        await teach(policy.learner, shown, steps=200)
        await policy.learner.publish()
        talk = Talk(TokenEngine(policy.sampler, form, "torch"))
        _, one = await talk.go_on(QUESTION, seed=1, max_tokens=100)
        origin, two = await talk.go_on(talk.result(), seed=1)
        found = await policy.learner.logprobs(TransitionBatch((one, two)))
    finally:
        await backend.close()

    assert one.action_ids == taught
    (call,) = talk.messages[1]["tool_calls"]
    assert call["function"] == {"name": "calc", "arguments": '{"a":  1}'}
    # "<", then "t" was sampled where the tokenizer takes "to".
    assert origin == Continuation(Continuity.RETOKENISED, "c1", "c1", len(asked) + 1)
    assert two.prompt_ids[: len(asked) + len(taught)] == (*asked, *taught)
    added = form.decode(two.prompt_ids[len(asked) + len(taught) :])
    assert added == "\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n"
    for row, logprobs in zip((one, two), found, strict=True):
        np.testing.assert_allclose(logprobs, row.logprobs, atol=1e-4)


@given(st.data())
def test_in_any_tree_of_conversations_no_sampled_token_is_lost(merging_model_folder: Path, data: st.DataObject) -> None:
    form = FORMS.setdefault(merging_model_folder, TemplateFormat(tokenizer_of(merging_model_folder)))
    branches = Branches()
    words = st.text(st.sampled_from("abz <|>é"), max_size=6)
    known: list[tuple[list[dict[str, Any]], tuple[int, ...]]] = []
    for number in range(data.draw(st.integers(1, 6))):
        goes_on = data.draw(st.booleans())
        parent = data.draw(st.sampled_from(known)) if known and goes_on else ([], ())
        messages = [*parent[0], {"role": "user", "content": data.draw(words)}]
        prompt = make_prompt(form, Conversation.of("m", messages, ()), "", branches)
        if parent[0]:
            assert prompt.continuation.continuity.goes_on
            assert any(prompt.ids[: len(ids)] == ids for before, ids in known if before == parent[0])
        assert form.decode(prompt.ids) == form.decode(form.render(messages))
        text = data.draw(words)
        ids = one_by_one(form, text) if data.draw(st.booleans()) else form.encode(text)
        closed = data.draw(st.booleans())
        sampled = (*ids, END) if closed else tuple(ids)
        answer = {"role": "assistant", "content": form.decode(ids)}
        branches.keep(prompt.answered(f"c{number}", answer, sampled, "stop" if closed else "length"))
        known.append(([*messages, answer], (*prompt.ids, *sampled)))


FORMS: dict[Path, TemplateFormat] = {}
"""Made once for all examples."""


def test_parallel_calls_of_one_rollout_each_go_on_from_their_own_branch(form: TemplateFormat) -> None:
    async def both() -> list[tuple[Continuation, Transition]]:
        answers: list[tuple[Sequence[int], FinishReason]] = [
            ([*one_by_one(form, word), END], "stop") for word in ("abcd", "zyxw")
        ]
        talks = [played(form, answer, ([END], "stop")) for answer in answers]
        talks[1].branches = talks[0].branches
        talks[1].number = 10
        await asyncio.gather(*(talk.go_on(QUESTION) for talk in talks))
        return await asyncio.gather(*(talk.go_on(MORE) for talk in talks))

    (one, _), (other, _) = asyncio.run(both())
    assert [one.continued_from, other.continued_from] == ["c1", "c11"]
