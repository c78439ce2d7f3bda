"""Which server a prompt goes to: one that has computed its beginning, unless that has too much to do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

BLOCK: Final = 16
"""Tokens; vLLM keeps keys and values by blocks of so many."""
_MOST_BLOCKS: Final = 200_000
"""Remembered at most: some 10 MB, and 3 million tokens."""
_SLACK: Final = 4
"""A server may have so many answers more under way than the idlest before a prompt that it knows goes elsewhere."""


class Prefixes:
    """Remembers which server has seen which beginnings of prompts.

    The calls of a rollout extend each other, so they go to the server that has all but the newest part in its cache. Rollouts that
    share no more than an opening go to whichever has the least to do.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[int, int] = OrderedDict()
        """Hash of a beginning -> server; the one not used for longest comes first."""

    def choose(self, prompt: Sequence[int], loads: Mapping[int, int]) -> int:
        """The server that a prompt goes to, which is remembered.

        Args:
            prompt: its ids.
            loads: answers under way, of each server that can be chosen; at least one.
        """
        beginnings = list(_beginnings(prompt))
        idlest = min(loads, key=lambda server: (loads[server], server))
        chosen = idlest
        # Half of the prompt has to be known: less is an opening that all rollouts share, and would draw all of them to one server.
        for beginning in reversed(beginnings[max(0, (len(beginnings) + 1) // 2 - 1) :]):
            server = self._seen.get(beginning)
            if server is not None and server in loads:
                chosen = server if loads[server] <= loads[idlest] + _SLACK else idlest
                break
        for beginning in beginnings:
            self._seen[beginning] = chosen
            self._seen.move_to_end(beginning)
        while len(self._seen) > _MOST_BLOCKS:
            self._seen.popitem(last=False)
        return chosen

    def forget(self, server: int) -> None:
        """That server's cache is empty."""
        for beginning in [beginning for beginning, seen in self._seen.items() if seen == server]:
            del self._seen[beginning]


def _beginnings(prompt: Sequence[int]) -> Iterator[int]:
    """A hash of the first block, of the first two, and so on; an incomplete last block is left out."""
    so_far = 0
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        so_far = hash((so_far, tuple(prompt[end - BLOCK : end])))
        yield so_far
