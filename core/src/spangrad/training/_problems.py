"""What is wrong with the settings of a run: gathered, so that all of it can be said at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

from spangrad.errors import SpangradError
from spangrad.training._loaded_config import LoadedConfig, config_error
from spangrad.training._toml_positions import dotted

_BEFORE_THE_START = 2
"""Exit status of errors that are the settings' fault."""


class Problems:
    """Problems of settings, each with its place.

    Args:
        loaded: the settings.
        known: problems found already, as they are to be shown.
    """

    def __init__(self, loaded: LoadedConfig, known: Sequence[str] = ()) -> None:
        self._loaded = loaded
        self._found = list(known)
        self._errors: list[SpangradError] = []
        self._causes: set[tuple[type[BaseException], str]] = set()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, key: Sequence[object], problem: str) -> None:
        """One more, of the setting that `key` leads to."""
        name = dotted(key)
        said = problem if problem.startswith(f"{name}: ") else f"{name}: {problem}"
        self._found.append(f"{self._loaded.where(*key)}: {said}")

    def extend(self, found: Iterable[tuple[Sequence[object], str]]) -> None:
        """Several more: key and problem of each."""
        for key, problem in found:
            self.add(key, problem)

    def listed(self, problems: Iterable[str]) -> None:
        """Several more that say their place themselves."""
        self._found += problems

    def at(self, *key: object) -> _Place:
        """A block of code: an error in it that the settings are to blame for ends the block and is a problem of this setting.

        Of several settings that fail for one cause, as with a module that cannot be imported, the first is named.
        """
        return _Place(self, key)

    def caught(self, key: Sequence[object], error: SpangradError) -> None:
        """An error that a setting is to blame for."""
        cause = error.__cause__
        if cause is not None:
            if (type(cause), str(cause)) in self._causes:
                return
            self._causes.add((type(cause), str(cause)))
        self._errors.append(error)
        self.add(key, str(error))

    def check(self) -> None:
        """Ends here if there are any.

        Raises:
            SpangradError: the one error, where there is only one and no file to name a place in; else a ConfigError that
                lists all of them.
        """
        if not self._found:
            return
        if not self._loaded.lines and len(self._errors) == len(self._found) == 1:
            raise self._errors[0]
        raise config_error(self._loaded.path, self._found)


@dataclass(frozen=True, slots=True)
class _Place:
    """See `Problems.at`. A class, so that type checkers know that the block may end early."""

    problems: Problems
    key: tuple[object, ...]

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, SpangradError) or error.exit_status != _BEFORE_THE_START:
            return False
        self.problems.caught(self.key, error)
        return True
