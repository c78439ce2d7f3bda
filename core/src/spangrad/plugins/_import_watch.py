"""Being told when a module gets imported for the first time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

_lock: Final = threading.Lock()
_waiting: Final[dict[str, list[Callable[[], None]]]] = {}
"""Module -> what is to be done; a module stands here for as long as wrapt has our hook for it, be the list empty or not."""


def on_import(module: str, action: Callable[[], None]) -> Callable[[], None]:
    """Has `action` done once, at the end of a module's import, before the importer goes on; at once, if it is imported already.

    What `action` raises comes out of the import, which fails by it.

    Args:
        module: its full name.
        action: runs on the importing thread, which holds the module's import lock.

    Returns:
        A function that takes the request back, which may be called twice.
    """
    with _lock:
        new = module not in _waiting
        actions = _waiting.setdefault(module, [])
        actions.append(action)
    if new:
        import wrapt  # noqa: PLC0415 - takes a twentieth of a second, which only those who wait for a module need spend

        wrapt.register_post_import_hook(partial(_imported, module), module)

    def cancel() -> None:
        with _lock:
            if action in actions:
                actions.remove(action)

    return cancel


def _imported(module: str, _: object) -> None:
    with _lock:
        actions = tuple(_waiting.pop(module, ()))
    with ExitStack() as all_of_them:  # one that raises does not keep the others from being done
        for action in reversed(actions):
            all_of_them.callback(action)
