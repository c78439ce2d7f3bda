"""What chat templates of well-known families do to a conversation's tokens: templates of our own that behave as those do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from backends.torch.tests.talks import MORE, QUESTION, played
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from spangrad.gateway import append_only, append_only_note
from spangrad.transitions import Continuity
from spangrad_torch._chat_format import TemplateFormat

SYSTEM = {"role": "system", "content": "Be exact."}

TOOL_LIST = '{% for t in tools or [] %}{{ "\n" + t | tojson }}{% endfor %}'
CALLS = (
    "{% for c in m.tool_calls or [] %}"
    '{{ "\n" if text or not loop.first else "" }}<tool_call>\n'
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
GROUPED_RESULTS = (
    '{% if m.role == "tool" %}'
    '{% if loop.first or messages[loop.index0 - 1].role != "tool" %}{{ "<|im_start|>user" }}{% endif %}'
    '{{ "\n<tool_response>\n" + m.content + "\n</tool_response>" }}'
    '{% if loop.last or messages[loop.index0 + 1].role != "tool" %}{{ "<|im_end|>\n" }}{% endif %}'
    "{% else %}"
)
HEADER = '{% if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}'

QWEN_25 = (
    '{% set given = messages[0].role == "system" %}'
    '{{ "<|im_start|>system\n" + (messages[0].content if given else "You are helpful.") }}' + TOOL_LIST + "<|im_end|>\n"
    "{% if given %}{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% set text = m.content %}"
    + GROUPED_RESULTS
    + '{{ "<|im_start|>" + m.role + "\n" + text }}'
    + CALLS
    + '{{ "<|im_end|>\n" }}{% endif %}{% endfor %}'
    + HEADER
)
"""A system prompt of its own; the results of parallel calls are one turn of the user's."""

QWEN_3 = (
    "{% set seen = namespace(user=-1) %}"
    '{% for m in messages %}{% if m.role == "user" %}{% set seen.user = loop.index0 %}{% endif %}{% endfor %}'
    '{% if tools %}{{ "<|im_start|>system" }}' + TOOL_LIST + '{{ "<|im_end|>\n" }}{% endif %}'
    "{% for m in messages %}{% set text = m.content %}" + GROUPED_RESULTS + '{{ "<|im_start|>" + m.role + "\n" }}'
    '{% if m.role == "assistant" %}'
    '{% set thought = text.split("</think>")[0].split("<think>")[-1].strip("\n") if "</think>" in text else "" %}'
    '{% set text = text.split("</think>")[-1].lstrip("\n") %}'
    "{% if loop.index0 > seen.user and (loop.last or thought) %}"
    '{{ "<think>\n" + thought + "\n</think>\n\n" }}{% endif %}{{ text }}'
    + CALLS
    + "{% else %}{{ text }}{% endif %}"
    + '{{ "<|im_end|>\n" }}{% endif %}{% endfor %}'
    + HEADER
)
"""Thoughts before the user's last question are left out; a last turn without thoughts gets empty ones."""

LLAMA_31 = (
    "{{ bos_token }}"
    '{{ "<|start_header_id|>system<|end_header_id|>\n\nToday Date: " + strftime_now(FORMAT) + "\n\n" }}'
    '{% if messages[0].role == "system" %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}'
    "{{ '<|eot_id|>' }}"
    "{% for m in messages %}"
    '{{ "<|start_header_id|>" + m.role + "<|end_header_id|>\n\n" + (m.content | trim) + "<|eot_id|>" }}{% endfor %}'
    '{% if add_generation_prompt %}{{ "<|start_header_id|>assistant<|end_header_id|>\n\n" }}{% endif %}'
)
"""The date stands in the system prompt; texts are trimmed; tools are called in another form than ours."""

MISTRAL = (
    "{{ bos_token }}"
    '{% if messages[0].role == "system" %}{% set told = messages[0].content %}{% set messages = messages[1:] %}{% endif %}'
    "{% for m in messages %}"
    '{% if (m.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("Roles must alternate") }}{% endif %}'
    '{% if m.role == "user" %}'
    '{{ "[INST] " + (told + "\n\n" if loop.last and told is defined else "") + m.content + "[/INST]" }}'
    '{% else %}{{ " " + (m.content | trim) + "</s>" }}{% endif %}{% endfor %}'
)
"""No header before an answer, but a space; the system message stands in the user's last turn, wherever that is."""

UNCLOSED = (
    '{% for m in messages %}{{ m.role + ": " + m.content + "\n" }}{% endfor %}'
    '{% if add_generation_prompt %}{{ "assistant: " }}{% endif %}'
)
"""Turns end with a line, and a line may be anything."""


def form_of(template: str, specials: Sequence[str], *, bos: str, eos: str) -> TemplateFormat:
    """A tokenizer of bytes and control tokens, with a template."""
    words = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers'
        tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, additional_special_tokens=list(specials)
    )
    fast.chat_template = template
    form = TemplateFormat(fast)
    assert not form.is_ours
    return form


def qwen(template: str) -> TemplateFormat:
    return form_of(template, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], bos="<|endoftext|>", eos="<|im_end|>")


def llama(date: str) -> TemplateFormat:
    specials = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return form_of(LLAMA_31.replace("FORMAT", f'"{date}"'), specials, bos="<|begin_of_text|>", eos="<|eot_id|>")


def mistral() -> TemplateFormat:
    return form_of(MISTRAL, ["<s>", "</s>", "[INST]", "[/INST]"], bos="<s>", eos="</s>")


def ended(form: TemplateFormat, text: str) -> tuple[list[int], Any]:
    """An answer sampled to its end."""
    return [*form.encode(text), *form.encode(form.turn_end)], "stop"


CALL = '<tool_call>\n{"name": "calc", "arguments": {"a": 1}}\n</tool_call>'
TOOL_KINDS = {"tools", "turns after tools", "thinking before tools"}
KINDS = {"turns", "rounds", "system", "thinking", *TOOL_KINDS}


@pytest.mark.parametrize(
    ("form", "kinds", "anew"),
    [
        (qwen(QWEN_25), KINDS, set()),
        (qwen(QWEN_3), KINDS, {"thinking"}),
        (llama("%d %b %Y"), KINDS - TOOL_KINDS, set()),
        (llama("%H:%M:%S.%f"), KINDS - TOOL_KINDS, KINDS - TOOL_KINDS),
        (mistral(), KINDS - TOOL_KINDS, {"system"}),
        (form_of(UNCLOSED, ["<s>", "</s>"], bos="<s>", eos="</s>"), KINDS - TOOL_KINDS, KINDS - TOOL_KINDS),
    ],
    ids=["Qwen 2.5", "Qwen 3", "Llama 3.1", "Llama 3.1 with the time", "Mistral", "unclosed"],
)
def test_a_family_is_probed(form: TemplateFormat, kinds: set[str], anew: set[str]) -> None:
    assert append_only(form) == {kind: kind not in anew for kind in kinds}
    assert all(kind in append_only_note(form) for kind in anew)


async def test_qwen_25_shows_the_results_of_parallel_calls_in_one_turn() -> None:
    form = qwen(QWEN_25)
    talk = played(form, ended(form, f"{CALL}\n{CALL}"), ended(form, "Two."), ended(form, "ok"))
    await talk.go_on(QUESTION)
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "2"} for call in talk.messages[1]["tool_calls"]]
    tools, row = await talk.go_on(*results)
    user, _ = await talk.go_on(MORE)

    assert (tools.continuity, user.continuity) == (Continuity.EXTENDED, Continuity.EXTENDED)
    assert form.decode(row.prompt_ids).count("<|im_start|>user") == 2


async def test_qwen_25_goes_on_when_a_result_joins_the_turn_of_another() -> None:
    """An agent that asks after the first of two results: the turn it closed is open again, and what was said after it is not
    repeated.
    """
    form = qwen(QWEN_25)
    talk = played(form, ended(form, f"{CALL}\n{CALL}"), ended(form, "Two."), ended(form, "ok"))
    await talk.go_on(QUESTION)
    one, other = (
        {"role": "tool", "tool_call_id": call["id"], "content": "2"} for call in talk.messages[1]["tool_calls"]
    )
    await talk.go_on(one)
    talk.messages.pop()
    origin, _ = await talk.go_on(other)

    assert (origin.continuity, origin.continued_from) == (Continuity.EXTENDED, "c1")


async def test_qwen_3_keeps_thoughts_until_the_user_speaks_again() -> None:
    form = qwen(QWEN_3)
    thought = "<think>\nhm\n</think>\n\n"
    talk = played(
        form, ended(form, thought + CALL), ended(form, thought + CALL), ended(form, thought + "Two."), ended(form, "ok")
    )
    _, first = await talk.go_on(QUESTION)
    loop = [(await talk.go_on(talk.result()))[0].continuity for _ in range(2)]
    user, last = await talk.go_on(MORE)

    assert loop == [Continuity.EXTENDED] * 2
    assert user.continuity is Continuity.TEMPLATE
    assert (user.continued_from, user.compared_with) == (None, "c3")
    assert user.differs_at == len(first.prompt_ids) + len("<t")  # <think> then, <tool_call> now
    assert "hm" not in form.decode(last.prompt_ids)


@pytest.mark.parametrize(
    "said",
    [
        "<think>\n\n</think>\n\n" + CALL,
        "<think></think>" + CALL,
        "<think>hm</think>" + CALL,
        "<think>\n\nhm\n\n\n</think>\n" + CALL,
    ],
)
async def test_qwen_3_may_write_white_space_around_thoughts_otherwise(said: str) -> None:
    form = qwen(QWEN_3)
    talk = played(form, ended(form, said), ended(form, "ok"))
    _, one = await talk.go_on(QUESTION)
    origin, two = await talk.go_on(talk.result())

    assert origin.continuity is Continuity.RESPELLED
    assert two.prompt_ids[: len(one.prompt_ids) + len(one.action_ids)] == (*one.prompt_ids, *one.action_ids)


async def test_qwen_3_without_thoughts_goes_on_when_the_user_speaks_again() -> None:
    form = qwen(QWEN_3)
    talk = played(form, ended(form, "<think>\n\n</think>\n\nTwo."), ended(form, "Two."), ended(form, "ok"))
    await talk.go_on(QUESTION)
    after_empty, _ = await talk.go_on(MORE)
    after_none, _ = await talk.go_on(MORE)

    assert after_empty.continuity is Continuity.RESPELLED
    assert after_none.continuity is Continuity.EXTENDED


async def test_llama_31_goes_on_as_long_as_its_date_is_the_same() -> None:
    for date, expected in (("%Y", Continuity.RESPELLED), ("%H:%M:%S.%f", Continuity.TEMPLATE)):
        form = llama(date)
        talk = played(form, ended(form, " Two.\n"), ended(form, "ok"))
        talk.tools = ()
        await talk.go_on(SYSTEM, QUESTION)
        origin, _ = await talk.go_on(MORE)
        assert origin.continuity is expected


async def test_mistral_goes_on_but_for_its_wandering_system_message() -> None:
    form = mistral()
    for begun, expected in (([], Continuity.EXTENDED), ([SYSTEM], Continuity.TEMPLATE)):
        talk = played(form, ended(form, " Two."), ended(form, "ok"))
        talk.tools = ()
        _, one = await talk.go_on(*begun, QUESTION)
        origin, two = await talk.go_on(MORE)
        assert origin.continuity is expected
        if not begun:
            assert two.prompt_ids == (*one.prompt_ids, *one.action_ids, *form.encode("[INST] and?[/INST]"))
        else:
            assert origin.differs_at == len(form.encode("<s>[INST] "))
            assert form.decode(two.prompt_ids).count(str(SYSTEM["content"])) == 1
