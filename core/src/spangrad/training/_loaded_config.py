"""Reading a train.toml: the file, what overrides it, and errors that name the place of each problem."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from spangrad.errors import ConfigError
from spangrad.training._config import NamedTable, TrainConfig
from spangrad.training._toml_positions import KeyPath, dotted, key_lines, line_of


@dataclass(frozen=True)
class LoadedConfig:
    """A train.toml that has been read and checked."""

    config: TrainConfig
    backend_options: Mapping[str, Any]
    """The backend's own table, the policy's model included, not yet checked by the backend."""
    folder: Path
    """Where the file lies; modules and data files are looked up from here."""
    path: Path
    lines: Mapping[KeyPath, int] = field(default_factory=dict, repr=False)
    overridden: Mapping[KeyPath, str] = field(default_factory=dict, repr=False)
    """Key -> the override that gave its value, as it was written."""

    def where(self, *key: object) -> str:
        """The place of a key, for messages: "train.toml, line 12", or "--set training.steps=abc" where that gave it."""
        names = tuple(str(part) for part in key)
        for path, override in self.overridden.items():
            if names[: len(path)] == path:
                return f"--set {override}"
        line = line_of(self.lines, key)
        place = f"{self.path.name}, line {line}" if line else self.path.name
        inside = [f"--set {override}" for path, override in self.overridden.items() if path[: len(names)] == names]
        return " with ".join([place, *inside] if line or not inside else inside)

    def problems(self, error: ValidationError, *, within: Sequence[str] = ()) -> list[str]:
        """One line of text per problem pydantic found, each naming file, line and key."""
        return [self._problem(within, item) for item in error.errors(include_url=False)]

    def _problem(self, within: Sequence[str], item: Any) -> str:
        path = (*within, *(part for part in item["loc"] if part not in {"str", "list[str]", "[key]"}))
        name = dotted(path)
        message = {"extra_forbidden": "unknown key", "missing": "required, but missing"}.get(item["type"])
        if item["type"] in {"model_type", "dict_type"}:
            named = item.get("ctx", {}).get("class_name") == NamedTable.__name__
            message = f"must be {'a name, or a table with a name' if named else 'a table'} (got {item['input']!r})"
        elif message is None:
            message = item["msg"].removeprefix("Value error, ")
            if not isinstance(item["input"], Mapping):
                message += f" (got {item['input']!r})"
        elif message == "unknown key":
            message += _suggestion(path)
        return f"{self.where(*path)}: {name or 'file'}: {message}"


def load_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Reads and checks a train.toml.

    Args:
        path: the file.
        overrides: "table.key=value" each; the value is TOML, or text when it is not.

    Raises:
        ConfigError: the file is missing, is not TOML, or holds wrong or unknown keys (all of them in one message).
    """
    loaded, problems = read_config(path, overrides)
    if problems:
        raise config_error(path, problems)
    return loaded


def read_config(path: Path, overrides: Sequence[str] = ()) -> tuple[LoadedConfig, list[str]]:
    """Reads a train.toml, and goes on without the keys that are wrong, so that others can be looked at too.

    Args:
        path: the file.
        overrides: as for `load_config`.

    Returns:
        The settings without those that are wrong, and what is wrong with these.

    Raises:
        ConfigError: the file is missing or is not TOML, or nothing is left without its wrong keys.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file {path}", cure="Give the path of a train.toml") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} cannot be read: it is nested too deeply") from error
    overridden = {_override(data, override): override for override in overrides}
    backend = data.get("backend", "torch")
    options = data.pop(backend, {}) if isinstance(backend, str) and backend not in TrainConfig.model_fields else {}
    lines = key_lines(text)
    draft = LoadedConfig(_NOTHING, {}, path.parent.resolve(), path, lines, overridden)
    problems: list[str] = []
    if not isinstance(options, Mapping):
        problems.append(f"{draft.where(backend)}: {backend}: must be a table")
        options = {}
    try:
        config = TrainConfig.model_validate(data)
    except ValidationError as error:
        problems += draft.problems(error)
        config = _without_wrong_keys(data, error, path, problems)
    model = resolved_model(config.policy.model, draft.folder)
    return replace(draft, config=config, backend_options={"model": model, **options}), problems


def _without_wrong_keys(
    data: dict[str, Any], error: ValidationError, path: Path, problems: Sequence[str]
) -> TrainConfig:
    """The settings without those that pydantic refused."""
    for item in error.errors(include_url=False):
        table: Any = data
        holder: tuple[dict[str, Any], str] | None = None
        for part in item["loc"]:
            if not isinstance(table, dict) or part not in table:
                break
            holder = (table, str(part))
            table = table[part]
        if holder is not None:
            holder[0].pop(holder[1])
    try:
        return TrainConfig.model_validate(data)
    except ValidationError:
        raise config_error(path, problems) from error


_NOTHING = TrainConfig.model_construct()


def config_error(path: Path, problems: Sequence[str]) -> ConfigError:
    """One error that lists every problem of a file and of what overrides it."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    listing = "\n  ".join(problems)
    in_the_file = any(not problem.startswith("--") for problem in problems)
    return ConfigError(f"{path} has {count}:\n  {listing}" if in_the_file else f"{count} in the command:\n  {listing}")


def resolved_model(name: str, folder: Path) -> str:
    """A relative model path is meant from the file's folder; anything else is a name for the backend."""
    beside = folder / name
    return str(beside) if beside.exists() else name


def _override(data: dict[str, Any], override: str) -> KeyPath:
    """Puts an override's value in its place, and says which that is."""
    parts, value = _split(override)
    table = data
    for part in parts[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override!r}: {part} is a value, not a table")
        table = inner
    try:
        table[parts[-1]] = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        table[parts[-1]] = value
    return tuple(parts)


def _split(override: str) -> tuple[list[str], str]:
    """The names that lead to a setting, and its value as text. Names may be in quotes, as in TOML."""
    for equals in (place for place, character in enumerate(override) if character == "="):
        try:
            table = tomllib.loads(f"{override[:equals]} = 0")
        except (tomllib.TOMLDecodeError, RecursionError):  # a name that TOML wants in quotes, or an = within them
            continue
        parts: list[str] = []
        while table and isinstance(table, dict):
            ((name, table),) = table.items()
            parts.append(name)
        return parts, override[equals + 1 :]
    key, equals_sign, value = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals_sign or not all(parts) or any(quote in key for quote in "\"'"):
        raise ConfigError(f"--set {override!r} is not of the form table.key=value")
    return parts, value


def _suggestion(path: Sequence[object]) -> str:
    """Names the nearest known key of the same table, if one is near."""
    import difflib  # noqa: PLC0415  (only wanted once something is already wrong)

    model: type[BaseModel] = TrainConfig
    for part in path[:-1]:
        known = model.model_fields.get(str(part))
        if known is None:  # an element of a list of tables, or a name that the user chose
            continue
        inner = known.annotation
        candidates = [inner, *getattr(inner, "__args__", ())]
        tables = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not tables:
            return ""
        model = tables[0]
    near = difflib.get_close_matches(str(path[-1]), list(model.model_fields), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
