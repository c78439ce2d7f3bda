"""Text of an answer piece by piece; here an id is a byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.backend import AnswerText


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def pieces(text: bytes, stop: Sequence[str] = ()) -> list[str]:
    """What each byte gives out, then what the end gives out; nothing is pushed after a stop."""
    answer = AnswerText(decode, stop)
    given_out = []
    for byte in text:
        given_out.append(answer.push(byte))
        if answer.stopped:
            break
    return [*given_out, answer.finish()]


def test_a_character_comes_out_whole() -> None:
    assert pieces("aé€🙂b".encode()) == ["a", "", "é", "", "", "€", "", "", "", "🙂", "b", ""]


def test_a_character_that_never_ends_comes_out_at_the_end() -> None:
    assert pieces(b"a\xe2\x82") == ["a", "", "", "\ufffd"]


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none() -> None:
    assert pieces(b"a\nb\n\nc", ["\n\n"]) == ["a", "", "\nb", "", "", ""]
    assert pieces(b"x\n", ["\n\n"]) == ["x", "", "\n"]


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one STOP two", ["STOP"], "one "),
        ("aab", ["ab"], "a"),
        ("abcabd", ["abd"], "abc"),
        ("xyz", ["z", "yz"], "x"),
        ("xyz", ["xyzq", ""], "xyz"),
        ("€uro€", ["o€"], "€ur"),
        ("STOP", ["STOP"], ""),
    ],
)
def test_nothing_of_a_stop_string_or_after_it_comes_out(text: str, stop: list[str], expected: str) -> None:
    assert "".join(pieces(text.encode(), stop)) == expected


@given(st.text(alphabet="ab€", max_size=12), st.lists(st.text(alphabet="ab€", min_size=1, max_size=3), max_size=2))
def test_the_pieces_are_the_text_up_to_the_first_stop_string_completed(text: str, stop: list[str]) -> None:
    expected = text
    for end in range(len(text) + 1):
        found = [text[:end].find(s) for s in stop if s in text[:end]]
        if found:
            expected = text[: min(found)]
            break

    assert "".join(pieces(text.encode(), stop)) == expected


@given(st.binary(max_size=12))
def test_any_bytes_come_out_as_they_decode(data: bytes) -> None:
    assert "".join(pieces(data)) == decode(data)
