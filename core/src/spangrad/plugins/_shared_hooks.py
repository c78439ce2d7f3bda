"""Hooks into a library, applied once for however many attachments."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SharedHooks:
    """Counts attachments: the first one applies the hooks, the last one to go reverts them.

    A process has one of it for each library that is hooked: the library's classes exist once, so their hooks have one owner.

    Whoever attaches has imported the library before. `apply` and `revert` run under a lock, which a thread that is in the
    middle of importing the library may be waiting for; an `apply` that waited for that import would wait for ever.

    Args:
        apply: hooks in; may raise, and is then undone by `revert`.
        revert: restores everything; must also restore what a half-done `apply` left.
    """

    def __init__(self, apply: Callable[[], None], revert: Callable[[], None]) -> None:
        self._apply = apply
        self._revert = revert
        # Entered again by an `apply` that imports something whose import attaches.
        self._lock = threading.RLock()
        self._attachments: set[object] = set()

    @property
    def attached(self) -> bool:
        """Whether the hooks are in."""
        return bool(self._attachments)

    def attach(self) -> Callable[[], None]:
        """Counts up; returns the function that takes this one attachment back, once."""
        attachment = object()
        with self._lock:
            first = not self._attachments
            self._attachments.add(attachment)
            if first:
                try:
                    self._apply()
                except BaseException:  # whatever it is passes on, but half a hook must not stay
                    self._attachments.clear()  # those made meanwhile by `apply` itself go with it
                    self._revert()
                    raise

        def detach() -> None:
            with self._lock:
                if attachment not in self._attachments:
                    return
                self._attachments.remove(attachment)
                if not self._attachments:
                    self._revert()

        return detach
