"""One integration, hooked in for as long as a block lasts and as soon as there is something to hook into."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from spangrad.errors import OtherModuleError, PluginError
from spangrad.plugins._import_watch import on_import

if TYPE_CHECKING:
    from spangrad.plugins._registry import Integration, Registered

_log = logging.getLogger("spangrad.plugins")


_HALF_A_MODULE: Final = ("partially initialized module", "deadlock detected by _ModuleLock")
"""What Python says where it lets two imports that wait for each other go on."""

_told: Final[set[str]] = set()
"""What has been said of modules that only have a framework's name: it is as true of every later block, and nothing is amiss."""


class Attachment:
    """Attaches an integration when its framework is imported: at once, or from the import itself if that is still to come.

    No lock of ours is held while an integration attaches: attaching imports, and imports wait for each other.

    Args:
        row: the integration.
        strict: one that cannot be attached is an error, not a warning.
        asked: somebody named it, and so means its framework by the module of that name.
    """

    def __init__(self, row: Registered[Integration], *, strict: bool, asked: bool = False) -> None:
        self._row = row
        self._strict = strict
        self._asked = asked
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
        """Attaches, perhaps in the middle of an import, where others may be under way.

        Attaching imports more of the framework. Where another thread is importing that and waits for this one, Python lets the
        later of the two have modules that are only half there. Then a thread of ours, which nobody waits for, attaches as
        soon as they are whole.
        """
        error = self._try()
        if error is not None and _is_of_half_a_module(error):
            threading.Thread(target=self._attach_after_imports, name="spangrad-attach", daemon=True).start()
        elif isinstance(error, OtherModuleError) and not self._asked:
            if (said := str(error)) not in _told:
                _told.add(said)
                self._log(logging.WARNING, error)
        elif error is not None and self._strict:
            raise _as_plugin_error(self._row.name, error)
        elif error is not None:
            self._log(logging.WARNING, error)

    def _attach_after_imports(self) -> None:
        if (error := self._try()) is not None:
            self._log(logging.ERROR, error)  # nobody is left to raise it to

    def _log(self, level: int, error: Exception) -> None:
        _log.log(level, "The integration %r is left out: %s", self._row.name, _as_plugin_error(self._row.name, error))

    def _try(self) -> Exception | None:
        if self._over:
            return None
        try:
            self._keep(self._row.value.attach())
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything, and the program's import must not fail for it
            return error
        return None

    def _keep(self, undo: Callable[[], None]) -> None:
        """Remembers how to take it back; does so now, if the block has ended meanwhile."""
        with self._lock:
            if not self._over:
                self._undo.append(undo)
                return
        undo()


def _is_of_half_a_module(error: BaseException) -> bool:
    told: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in told:  # a program can tie a chain of causes into a ring
        told.append(cause)
        cause = cause.__cause__ or cause.__context__
    return any(sign in str(one) for one in told for sign in _HALF_A_MODULE)


def _as_plugin_error(name: str, error: Exception) -> PluginError:
    if isinstance(error, PluginError):
        return error
    wrapped = PluginError(
        f"Attaching the integration {name!r} raised {type(error).__name__}: {error}",
        cure="Update the plug-in that brings it",
    )
    wrapped.__cause__ = error
    return wrapped
