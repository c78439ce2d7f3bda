"""What a train.toml may say.

Unknown keys and wrong types are errors, all reported at once with their lines. The table named like the backend
(`[torch]` for `backend = "torch"`) belongs to the backend and is checked by it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from spangrad.errors import ConfigError
from spangrad.training._toml_positions import key_lines, line_of

Rate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Table(BaseModel):
    """A table of the file: unknown keys are errors, and so are values of another type (no "8" for 8)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class AgentTable(Table):
    """The agent as it is, and who judges it."""

    run: str | None = None
    """As "module:function", a sync or async function; the module is looked up beside the file."""
    command: str | list[str] | None = None
    """A command line instead of a function."""
    reward: str | None = None
    """As "module:function", called with what it names of (task, output, rollout); without it the agent's return value or
    `r.reward(...)` is the reward."""

    @model_validator(mode="after")
    def _one_way_to_run(self) -> AgentTable:
        if (self.run is None) == (self.command is None):
            raise ValueError('give either run = "module:function" or command = "..."')
        return self


class TasksTable(Table):
    """Where tasks come from: a .jsonl file or "module:function"."""

    train: str
    heldout: dict[str, str] = Field(default_factory=dict)
    """Name of a held-out set -> where it comes from. The first one is the headline of the summary."""


class PolicyTable(Table):
    """The model that is trained, and the names agents call it by."""

    model: str = "smollm2-135m"
    """A model folder, a .gguf file, or a name the backend knows."""
    aliases: list[str] = Field(default_factory=lambda: ["policy"], min_length=1)
    """What agents put into `model=`; "*" takes every name."""
    train: Annotated[list[str], Field(min_length=1)] | None = None
    """Names of the agents whose calls are trained on; all when not given. The other agents use the same model, and learn with
    it, but their calls give no gradient."""
    endpoint: str | None = None
    """URL of an OpenAI-compatible server that samples instead of the backend. It must return token ids."""
    endpoint_model: str | None = None
    """What that server calls the model; the alias asked for when not given."""
    endpoint_key_env: str | None = None
    """Environment variable holding that server's API key."""


class SamplingTable(Table):
    """How training rollouts are drawn, whatever the agent asks for: training needs samples of the policy itself."""

    temperature: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1.0
    top_p: Rate = 1.0
    top_k: Count = 0
    max_tokens: Positive | None = None
    """Upper bound of an answer's tokens; the agent may ask for fewer."""


class RolloutsTable(Table):
    """How agents are run."""

    concurrency: Positive = 64
    timeout: Seconds = 300.0
    """Seconds one rollout may take."""
    retries: Count = 0
    """How often a failed or timed-out rollout is tried again."""


class WarmStartTable(Table):
    """Maximum likelihood on demonstrations before reinforcement learning."""

    demonstrations: str
    """A .jsonl file or "module:function" of conversations: {"messages": [...], "tools": [...]}."""
    steps: Positive
    batch: Positive = 8
    """Demonstrations per step."""
    learning_rate: Rate = 2e-5
    ramp_steps: Count = 3
    """Steps over which the learning rate rises to its value."""


class NamedTable(BaseModel):
    """A plug-in by name with its own options: "grpo" or {name = "grpo", eps = 1e-6}."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> Mapping[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class AlgorithmTable(Table):
    """LightningRL: credit over calls, then advantages, then a loss over tokens."""

    credit: NamedTable = NamedTable(name="identical")
    estimator: NamedTable = NamedTable(name="grpo")
    weighting: NamedTable = NamedTable(name="rollout")
    """rollout, token, call or constant: what weighs the same in the loss."""
    loss: Literal["ppo_clip"] = "ppo_clip"
    clip_low: Rate = 0.2
    clip_high: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    kl_coefficient: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the KL term to the policy as it was when reinforcement learning began."""


class TrainingTable(Table):
    """The outer loop."""

    steps: Count
    """0 only warm-starts."""
    tasks_per_step: Positive = 8
    rollouts_per_task: Positive = 8
    updates_per_step: Positive = 1
    """Optimiser steps per batch of rollouts; whole groups are split among them."""
    learning_rate: Rate = 1e-5
    ramp_steps: Count = 0
    checkpoint_every: Positive = 5
    max_failed: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A step in which more than this share of rollouts is unusable is not trained on."""


class EvaluationTable(Table):
    """Measuring on held-out tasks, greedily: before, after, and every so many steps."""

    every: Count = 0
    """0 measures only before and after."""
    success_at: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """A rollout with at least this reward counts as a success."""


class TrainConfig(Table):
    """A whole train.toml."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] = "run"
    """Name of the run's folder."""
    seed: Count = 0
    backend: str = "torch"
    agent: AgentTable
    tasks: TasksTable
    policy: PolicyTable = PolicyTable()
    sampling: SamplingTable = SamplingTable()
    rollouts: RolloutsTable = RolloutsTable()
    warm_start: WarmStartTable | None = None
    algorithm: AlgorithmTable = AlgorithmTable()
    training: TrainingTable
    evaluation: EvaluationTable = EvaluationTable()


@dataclass(frozen=True)
class LoadedConfig:
    """A train.toml that has been read and checked."""

    config: TrainConfig
    backend_options: Mapping[str, Any]
    """The backend's own table, the policy's model included, not yet checked by the backend."""
    folder: Path
    """Where the file lies; modules and data files are looked up from here."""
    path: Path
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict, repr=False)

    def where(self, *key: object) -> str:
        """The place of a key, for messages: "train.toml, line 12"."""
        line = line_of(self.lines, key)
        return f"{self.path.name}, line {line}" if line else self.path.name

    def problems(self, error: ValidationError, *, within: Sequence[str] = ()) -> list[str]:
        """One line of text per problem pydantic found, each naming file, line and key."""
        return [self._problem(within, item) for item in error.errors(include_url=False)]

    def _problem(self, within: Sequence[str], item: Any) -> str:
        path = (*within, *(part for part in item["loc"] if part not in {"str", "list[str]"}))
        name = ".".join(str(part) for part in path)
        message = {"extra_forbidden": "unknown key", "missing": "required, but missing"}.get(item["type"])
        if message is None:
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
    for override in overrides:
        _override(data, override)
    backend = data.get("backend", "torch")
    options = data.pop(backend, {}) if isinstance(backend, str) and backend not in TrainConfig.model_fields else {}
    lines = key_lines(text)
    draft = LoadedConfig(config=_NOTHING, backend_options={}, folder=path.parent.resolve(), path=path, lines=lines)
    try:
        config = TrainConfig.model_validate(data)
    except ValidationError as error:
        raise config_error(path, draft.problems(error)) from error
    if not isinstance(options, Mapping):
        raise config_error(path, [f"{draft.where(backend)}: {backend}: must be a table"])
    model = _resolved_model(config.policy.model, draft.folder)
    return LoadedConfig(
        config=config,
        backend_options={"model": model, **options},
        folder=draft.folder,
        path=path,
        lines=lines,
    )


_NOTHING = TrainConfig.model_construct()


def config_error(path: Path, problems: Sequence[str]) -> ConfigError:
    """One error that lists every problem of a file."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    listing = "\n  ".join(problems)
    return ConfigError(f"{path} has {count}:\n  {listing}")


def _resolved_model(name: str, folder: Path) -> str:
    """A relative model path is meant from the file's folder; anything else is a name for the backend."""
    beside = folder / name
    return str(beside) if beside.exists() else name


def _override(data: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"--set {override!r} is not of the form table.key=value")
    table = data
    for part in parts[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override!r}: {part} is a value, not a table")
        table = inner
    try:
        table[parts[-1]] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        table[parts[-1]] = value


def _suggestion(path: Sequence[object]) -> str:
    """Names the nearest known key of the same table, if one is near."""
    import difflib  # noqa: PLC0415  (only wanted once something is already wrong)

    model: type[BaseModel] = TrainConfig
    for part in path[:-1]:
        known = model.model_fields.get(str(part))
        inner = known.annotation if known else None
        candidates = [inner, *getattr(inner, "__args__", ())]
        tables = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not tables:
            return ""
        model = tables[0]
    near = difflib.get_close_matches(str(path[-1]), list(model.model_fields), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
