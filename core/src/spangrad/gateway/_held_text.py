"""Text that is handed out as it comes, until it may be the beginning of a tool call."""

from __future__ import annotations


class HeldText:
    """Splits sampled text into what can be shown now and what must wait until the whole answer is parsed.

    Args:
        mark: with what a tool call begins.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._text = ""
        self._shown = 0

    @property
    def all(self) -> str:
        """Everything sampled so far."""
        return self._text

    def add(self, text: str) -> str:
        """Takes in more text; returns what can be shown of it: nothing from the mark on, nor a mark half begun, nor white
        space before either, since a parser may strip it where it takes a call out.
        """
        self._text += text
        end = self._text.find(self._mark, max(0, self._shown - len(self._mark)))
        if end < 0:
            end = len(self._text) - self._half_begun()
        end = len(self._text[:end].rstrip())
        shown = self._text[self._shown : end]
        self._shown = max(self._shown, end)
        return shown

    def rest(self, content: str) -> str:
        """What is left to show of the parsed `content`, given what was shown already; a parser may have stripped its beginning."""
        shown = self._text[: self._shown]
        if not content.startswith(shown):
            shown = shown.lstrip()
        return content[len(shown) :] if content.startswith(shown) else ""

    def _half_begun(self) -> int:
        """How many characters at the end may be the start of the mark."""
        return max((n for n in range(1, len(self._mark)) if self._text.endswith(self._mark[:n])), default=0)
