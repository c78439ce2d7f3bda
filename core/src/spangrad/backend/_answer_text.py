"""The text of an answer while its tokens come in: whole characters only, stop strings never."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class AnswerText:
    """Turns ids into text piece by piece.

    Args:
        decode: text of some ids, special tokens left out.
        stop: strings that end the answer.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str]) -> None:
        self._decode = decode
        self._stop = tuple(text for text in stop if text)
        self._ids: list[int] = []
        self._shown = 0
        """Ids whose text has been taken over."""
        self._context = 0
        """Ids before `_shown` from here on are decoded again: the text of an id can depend on the ids before it."""
        self._held = ""
        """Text taken over and not given out, since a stop string may begin in it."""
        self.stopped = False
        """A stop string has been found; nothing more will be given out."""

    def push(self, token_id: int) -> str:
        """Takes one id; returns the text that is certain now."""
        self._ids.append(token_id)
        return self._release(self._decoded(whole=True))

    def finish(self) -> str:
        """The text still held, when no more ids come."""
        text = self._release(self._decoded(whole=False))
        if self.stopped:
            return text
        text, self._held = text + self._held, ""
        return text

    def _decoded(self, *, whole: bool) -> str:
        """Text of the ids not taken over yet; nothing while it ends within a character, if `whole`."""
        before = self._decode(self._ids[self._context : self._shown])
        text = self._decode(self._ids[self._context :])
        if whole and (text.endswith("\ufffd") or len(text) <= len(before)):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return text[len(before) :]

    def _release(self, text: str) -> str:
        """Adds text to what is held and gives out what cannot belong to a stop string."""
        if self.stopped:
            return ""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            given, self._held = self._held[: min(found)], ""
            return given
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        given, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return given


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
