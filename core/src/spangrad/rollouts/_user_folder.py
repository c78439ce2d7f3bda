"""A folder of the user's modules, importable while something of it is imported or running.

`sys.path` is as it was afterwards. Two folders may hold modules of the same name (every example has an `agent.py`): each
sees its own, and a module of another folder is put aside while this one is in use.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

_lock = threading.RLock()


class UserFolder:
    """One folder, and which of its modules have been imported. Get it from `user_folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: dict[str, ModuleType] = {}
        self._displaced: dict[str, ModuleType] = {}
        self._before: frozenset[str] = frozenset()
        self._users = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Lets code import from the folder during the block; blocks may overlap, in threads and in asyncio tasks."""
        with _lock:
            self._users += 1
            if self._users == 1:
                self._enter()
        try:
            yield
        finally:
            with _lock:
                self._users -= 1
                if self._users == 0:
                    self._leave()

    def finds(self, name: str) -> bool:
        """Whether the folder has a module or package of that top-level name."""
        return (self.path / f"{name}.py").is_file() or (self.path / name).is_dir()

    def holds(self, name: str, module: ModuleType) -> bool:
        """Whether `module`, imported as `name`, was read from this folder."""
        origin = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
        if not isinstance(origin, str):
            return False
        top = str(self.path / name.partition(".")[0])
        return origin in (f"{top}.py", top) or origin.startswith(top + os.sep)

    def claim(self, name: str) -> None:
        """Puts aside a module of that top-level name which is not of this folder, until the folder is left."""
        with _lock:
            taken = sys.modules.get(name)
            if taken is None or self.holds(name, taken) or not self.finds(name):
                return
            for key in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
                self._displaced.setdefault(key, sys.modules.pop(key))

    def _enter(self) -> None:
        self._before = frozenset(sys.modules)
        sys.path.insert(0, str(self.path))
        importlib.invalidate_caches()  # files may have been written since the folder was last looked at
        for name in sorted({name.partition(".")[0] for other in _folders.values() for name in other.modules}):
            self.claim(name)
        sys.modules.update(self.modules)

    def _leave(self) -> None:
        with suppress(ValueError):  # the user's code may have taken the folder off the path itself
            sys.path.remove(str(self.path))
        new = [name for name in list(sys.modules) if name not in self._before or name in self._displaced]
        self.modules.update({name: sys.modules[name] for name in new if self.holds(name, sys.modules[name])})
        for name in self._displaced.keys() | {
            name for name in self.modules if name.partition(".")[0] in self._displaced
        }:
            sys.modules.pop(name, None)
        sys.modules.update(self._displaced)
        self._displaced = {}


_folders: dict[Path, UserFolder] = {}


def user_folder(path: Path) -> UserFolder:
    """The process's one `UserFolder` of that path."""
    resolved = path.resolve()
    with _lock:
        return _folders.setdefault(resolved, UserFolder(resolved))
