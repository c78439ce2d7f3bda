"""`explain` says for each call where its prompt came from, and where and how it differs from the earlier call's tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from spangrad.store import RolloutRecord, Store, explain, open_store
from spangrad.transitions import Call, Choice, Continuation, Continuity

MakeRollout = Callable[..., RolloutRecord]
MakeCall = Callable[..., Call]

WORDS = dict(
    enumerate(["<start>", "ask", "<end>", " one", " two", " three", "\n", "\x1b[2J", " four", " five", " six"])
)
FIRST = (0, 1, 2, 0)
ANSWER = (3, 4, 2)
FURTHER = (0, 1, 1, 1, 2, 0)


def decode(token_ids: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in token_ids)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "spangrad.db")
    yield opened
    opened.close()


@pytest.fixture
def lines_of(store: Store, make_rollout_record: MakeRollout, make_call: MakeCall) -> Callable[..., list[str]]:
    """Keeps a call, and a second one of this origin and prompt; gives what `explain` says between the second's return and its
    prompt.
    """

    def lines(
        origin: Continuation | None, prompt: tuple[int, ...] | None, *, answers: Sequence[tuple[int, ...]] = (ANSWER,)
    ) -> list[str]:
        choices = tuple(Choice(i, ids, (-1.0,) * len(ids), "stop", {}) for i, ids in enumerate(answers))
        store.save_rollout(make_rollout_record())
        store.submit_call(
            make_call(1, prompt_ids=FIRST, choices=choices, continuation=Continuation(Continuity.FIRST))
        ).result()
        store.submit_call(make_call(2, prompt_ids=prompt, continuation=origin)).result()
        text = explain(store, "rollout-0", decode=decode).render().split("call-2\n")[-1]
        block = [line.strip() for line in text.splitlines()]
        begin = next(i for i, line in enumerate(block) if line.startswith("reward "))
        end = next(i for i, line in enumerate(block) if line.startswith("prompt"))
        return block[begin + 1 : end]

    return lines


def test_a_prompt_that_goes_on_names_the_call(lines_of: Callable[..., list[str]]) -> None:
    assert lines_of(Continuation(Continuity.EXTENDED, "call-1", "call-1"), FIRST + ANSWER + FURTHER) == [
        "goes on from call call-1"
    ]


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (Continuity.RETOKENISED, "its answer, rendered anew, would have other tokens"),
        (Continuity.RESPELLED, "its answer, rendered anew, would be written otherwise"),
    ],
)
def test_a_prompt_that_keeps_what_a_rendering_would_change_shows_what_was_kept(
    lines_of: Callable[..., list[str]], why: Continuity, words: str
) -> None:
    # Position 5 is the answer's second token; six tokens from there are shown.
    assert lines_of(Continuation(why, "call-1", "call-1", 5), FIRST + ANSWER + FURTHER) == [
        f"goes on from call call-1; {words} from token 5 on: ' two<end><start>askaskask'"
    ]


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (Continuity.TEMPLATE, "the chat template writes earlier turns otherwise now"),
        (Continuity.STOP_STRING, "the answer was cut before a stop string"),
        (Continuity.END_TOKEN, "the answer ended with another token than the template ends turns with"),
        (Continuity.CONTROL_TOKENS, "control tokens were sampled in the midst of the answer"),
        (Continuity.NEW_SYSTEM, "the system message is another one"),
        (Continuity.OTHER_TOOLS, "other tools are offered"),
        (Continuity.SHORTENED, "earlier messages were left out"),
        (Continuity.EDITED_HISTORY, "earlier messages were edited"),
        (Continuity.EDITED_ANSWER, "the answer was edited"),
    ],
)
def test_a_prompt_rendered_anew_says_why_and_shows_the_tokens_before_and_now(
    lines_of: Callable[..., list[str]], why: Continuity, words: str
) -> None:
    now = (*FIRST, 3, 5, 2, 0, 1)  # " one two<end>" then; " one three<end>" now
    assert lines_of(Continuation(why, None, "call-1", 5), now) == [
        f"new prompt, not from call call-1: {words}, at token 5: ' two<end>' -> ' three<end><start>ask'"
    ]


def test_every_reason_has_words() -> None:
    silent = {Continuity.FIRST, Continuity.EXTENDED, Continuity.ENDPOINT}
    assert {why for why in Continuity if why.drifts} == set(Continuity) - silent


def test_a_prompt_that_goes_on_from_an_answer_before_the_latest_names_both(
    lines_of: Callable[..., list[str]],
) -> None:
    origin = Continuation(Continuity.STOP_STRING, "call-0", "call-1", 4)
    (line,) = lines_of(origin, (*FIRST, 5, 2))
    assert line.startswith("goes on from call call-0, not from call call-1: the answer was cut before a stop string, ")
    assert line.endswith("at token 4: ' one two<end>' -> ' three<end>'")


def test_of_several_choices_the_one_that_has_most_in_common_is_shown(lines_of: Callable[..., list[str]]) -> None:
    now = (*FIRST, 8, 9, 10)
    assert lines_of(
        Continuation(Continuity.EDITED_ANSWER, None, "call-1", 6), now, answers=[(3, 4), (8, 9, 4), (8, 4)]
    ) == ["new prompt, not from call call-1: the answer was edited, at token 6: ' two' -> ' six'"]


def test_a_prompt_that_ends_where_it_would_differ_shows_nothing_now(lines_of: Callable[..., list[str]]) -> None:
    assert lines_of(Continuation(Continuity.SHORTENED, None, "call-1", 4), FIRST) == [
        "new prompt, not from call call-1: earlier messages were left out, at token 4: ' one two<end>' -> ''"
    ]


def test_control_characters_do_not_reach_the_terminal(lines_of: Callable[..., list[str]]) -> None:
    (line,) = lines_of(Continuation(Continuity.EDITED_ANSWER, None, "call-1", 4), (*FIRST, 7, 6))
    assert line.endswith(r"-> '\x1b[2J\n'")


@pytest.mark.parametrize(
    ("origin", "prompt", "said"),
    [
        (Continuation(Continuity.FIRST), FIRST, ["new prompt"]),
        (Continuation(Continuity.ENDPOINT), FIRST, []),
        (Continuation(Continuity.ENDPOINT), None, []),
        (None, FIRST, []),
    ],
    ids=["first", "endpoint", "endpoint without ids", "not known"],
)
def test_where_there_is_nothing_to_say_little_is_said(
    lines_of: Callable[..., list[str]], origin: Continuation | None, prompt: tuple[int, ...] | None, said: list[str]
) -> None:
    assert lines_of(origin, prompt) == said


def test_without_a_tokenizer_the_reason_is_still_told(
    store: Store, make_rollout_record: MakeRollout, make_call: MakeCall
) -> None:
    store.save_rollout(make_rollout_record())
    store.submit_call(make_call(1, prompt_ids=FIRST)).result()
    origin = Continuation(Continuity.NEW_SYSTEM, None, "call-1", 2)
    store.submit_call(make_call(2, prompt_ids=FURTHER, continuation=origin)).result()
    text = explain(store, "rollout-0", decode=None).render()
    assert "new prompt, not from call call-1: the system message is another one, at token 2" in text
