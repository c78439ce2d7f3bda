"""One integration, hooked in for as long as a block lasts and as soon as there is something to hook into."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from spangrad.errors import PluginError
from spangrad.plugins._import_watch import on_import

if TYPE_CHECKING:
    from spangrad.plugins._registry import Integration, Registered

_log = logging.getLogger("spangrad.plugins")


class Attachment:
    """Attaches an integration when its framework is imported: at once, or from the import itself if that is still to come.

    No lock of ours is held while an integration attaches: attaching imports, and imports wait for each other.

    Args:
        row: the integration.
        strict: one that cannot be attached is an error, not a warning.
    """

    def __init__(self, row: Registered[Integration], *, strict: bool) -> None:
        self._row = row
        self._strict = strict
        self._lock = threading.Lock()
        self._over = False
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Attaches, or waits for the framework's import.

        Raises:
            PluginError: strict, and it cannot be attached. Where the framework is imported later, this comes out of its import.
        """
        framework = self._row.value.framework
        if sys.modules.get(framework) is not None:
            self._attach()
        else:
            self._keep(on_import(framework, self._attach))

    def end(self) -> None:
        """Detaches; from here on the framework's import does nothing any more."""
        with self._lock:
            self._over = True
            undo, self._undo = self._undo, []
        for take_back in undo:
            take_back()

    def _attach(self) -> None:
        if self._over:
            return
        try:
            detach = self._row.value.attach()
        except (
            Exception
        ) as error:  # a plug-in may raise anything, and neither the program nor its import may fail for it
            if self._strict:
                raise _as_plugin_error(self._row.name, error) from error
            _log.warning("The integration %r is left out: %s", self._row.name, _as_plugin_error(self._row.name, error))
            return
        self._keep(detach)

    def _keep(self, undo: Callable[[], None]) -> None:
        """Remembers how to take it back; does so now, if the block has ended meanwhile."""
        with self._lock:
            if not self._over:
                self._undo.append(undo)
                return
        undo()


def _as_plugin_error(name: str, error: Exception) -> PluginError:
    if isinstance(error, PluginError):
        return error
    return PluginError(
        f"Attaching the integration {name!r} raised {type(error).__name__}: {error}",
        cure="Update the plug-in that brings it",
    )
