"""Hooks into a library, applied once for however many attachments."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SharedHooks:
    """Counts attachments: the first one applies the hooks, the last one to go reverts them.

    A process has one of it for each library that is hooked: the library's classes exist once, so their hooks have one owner.

    Args:
        apply: hooks in; may raise, and is then undone by `revert`.
        revert: restores everything; must also restore what a half-done `apply` left.
    """

    def __init__(self, apply: Callable[[], None], revert: Callable[[], None]) -> None:
        self._apply = apply
        self._revert = revert
        self._lock = threading.Lock()
        self._count = 0

    @property
    def attached(self) -> bool:
        """Whether the hooks are in."""
        return self._count > 0

    def attach(self) -> Callable[[], None]:
        """Counts up; returns the function that takes this one attachment back, once."""
        with self._lock:
            if self._count == 0:
                try:
                    self._apply()
                except BaseException:  # whatever it is passes on, but half a hook must not stay
                    self._revert()
                    raise
            self._count += 1
        pending = [None]

        def detach() -> None:
            with self._lock:
                if not pending:
                    return
                pending.pop()
                self._count -= 1
                if self._count == 0:
                    self._revert()

        return detach
