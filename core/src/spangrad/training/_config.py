"""What a train.toml may say.

Unknown keys and wrong types are errors, all reported at once with their lines. The table named like the backend
(`[torch]` for `backend = "torch"`) belongs to the backend and is checked by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from spangrad.backend import LARGEST_COEFFICIENT, SOLE_POLICY
from spangrad.rollouts.rules import OPTIONS
from spangrad.training._failures_config import FailuresTable
from spangrad.training._overlong_config import OverlongTable
from spangrad.training._table import Count, Positive, Rate, Reward, Seconds, Table


def _web_address(value: str) -> str:
    try:
        parts = urlsplit(value)
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        whole = False
    if not whole or any(character.isspace() for character in value):
        raise ValueError("must be the URL of a server, like http://127.0.0.1:8000/v1")
    return value


def _folder_name(value: str) -> str:
    if value in {".", ".."}:
        raise ValueError("must be a name; this is a folder that exists already")
    return value


def _distinct(names: list[str]) -> list[str]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(map(repr, twice))} is named more than once")
    return names


Names = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=200), AfterValidator(_folder_name)]


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


class JudgeTable(Table):
    """A model that scores what the agent gave, and that no training changes."""

    route: Annotated[str, Field(min_length=1)] | None = None
    """A model of this run's `[routes]`; instead of an endpoint."""
    endpoint: Annotated[str, AfterValidator(_web_address)] | None = None
    """The server's URL, `/v1` included."""
    model: str | None = None
    """What the server calls the model."""
    key_env: str | None = None
    """Environment variable holding the server's API key."""
    criteria: Annotated[str, Field(min_length=1)]
    """What makes an answer a good one; it becomes part of the question."""
    relative: bool = False
    """One question with all answers of a group, instead of one for each answer."""
    lowest: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    highest: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Bounds of a score; a reply with another counts as no score."""

    @model_validator(mode="after")
    def _one_model(self) -> JudgeTable:
        if (self.route is None) == (self.endpoint is None):
            raise ValueError('give either route = "NAME" of [routes], or endpoint and model')
        if self.route is None and self.model is None:
            raise ValueError("endpoint needs model")
        ignored = [key for key in ("model", "key_env") if self.route is not None and getattr(self, key) is not None]
        if ignored:
            raise ValueError(f"with a route {' and '.join(ignored)} would do nothing")
        return self

    @model_validator(mode="after")
    def _a_range(self) -> JudgeTable:
        if not self.lowest < self.highest:
            raise ValueError(
                f"lowest = {self.lowest:g} is not below highest = {self.highest:g}; not given, they are 0 and 1"
            )
        return self


def _not_nothing(value: float) -> float:
    if value == 0:
        raise ValueError("a reward of 0 would do nothing")
    return value


class RuleTable(Table):
    """A rule that rewards calls by what the rollout's spans and calls show."""

    when: Literal[
        "tool_error", "tool_ok", "http_status", "malformed_tool_call", "slow_tool", "repeated_call", "function"
    ]
    """What is looked for."""
    reward: Annotated[Reward, AfterValidator(_not_nothing)] | None = None
    """Of the call, each time."""
    name: Annotated[str, Field(min_length=1)] | None = None
    """Of its rewards; `when` if not given."""
    tool: Annotated[str, Field(min_length=1)] | None = None
    """Only this tool counts."""
    agent: Annotated[str, Field(min_length=1)] | None = None
    """Only calls of this agent are rewarded."""
    at_most: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Most that the sizes of its rewards come to in a rollout."""
    at_least: Annotated[int, Field(ge=100, le=599)] | None = None
    """For http_status: the lowest status that counts; 400 if not given."""
    seconds: Seconds | None = None
    """For slow_tool: what takes longer counts."""
    call: str | None = None
    """For function: "module:function", called with calls and spans."""

    @property
    def reward_name(self) -> str:
        """The name its rewards have."""
        return self.name or self.when

    @model_validator(mode="after")
    def _options_of_its_kind(self) -> RuleTable:
        honoured = OPTIONS[self.when]
        given = {
            key for key in ("reward", "tool", "agent", "at_least", "seconds", "call") if getattr(self, key) is not None
        }
        if ignored := sorted(given - honoured.keys()):
            raise ValueError(f"{self.when!r} does not use {', '.join(ignored)}; it would do nothing")
        if lacking := [key for key, needed in honoured.items() if needed and key not in given]:
            raise ValueError(f"{self.when!r} needs {', '.join(lacking)}")
        return self


class RewardsTable(Table):
    """Further sources of rewards than the agent and its reward function, and how much each reward counts."""

    weights: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    """Name of a reward -> its factor. Without any, every reward counts as it is; with some, each reward needs one."""
    evaluator: str | list[str] | None = None
    """A command line that is kept running and answers a line of JSON per rollout."""
    evaluator_processes: Positive = 1
    check: str | list[str] | None = None
    """A command line that is run for each rollout: exit status 0 gives the reward "check" of 1, status 1 of 0."""
    judge: JudgeTable | None = None
    overlong: OverlongTable | None = None
    """What rollouts that take too many tokens lose."""
    rules: list[RuleTable] = Field(default_factory=list)
    """What rewards single calls by itself."""

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, weights: dict[str, float]) -> dict[str, float]:
        if weights and not any(weights.values()):
            raise ValueError("every weight is 0; there would be nothing to learn")
        return weights


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
    train: Names | None = None
    """Names of the agents whose calls are trained on; all when not given. The other agents use the same model, and learn with
    it, but their calls give no gradient."""
    endpoint: Annotated[str, AfterValidator(_web_address)] | None = None
    """URL of an OpenAI-compatible server that samples instead of the backend. It must return token ids."""
    endpoint_model: str | None = None
    """What that server calls the model; the alias asked for when not given."""
    endpoint_key_env: str | None = None
    """Environment variable holding that server's API key."""
    endpoint_prompts: Literal["messages", "tokens"] = "messages"
    """What that server is given: messages, which it renders itself, or tokens, so that calls go on from those of earlier ones."""

    @property
    def renders(self) -> bool:
        """Whether prompts are made here, with the backend's chat format."""
        return self.endpoint is None or self.endpoint_prompts == "tokens"


class AdapterTable(Table):
    """One of several policies that begin as the model of `[policy]`."""

    aliases: list[str] | None = Field(default=None, min_length=1)
    """What agents put into `model=`; the policy's name when not given."""
    train: Names | None = None
    """Names of the agents whose calls it is trained on; all when not given."""


class FixedRouteTable(Table):
    """A model that agents may ask for and that is not trained."""

    frozen: Literal[True] | None = None
    """The model of `[policy]` as it was loaded."""
    endpoint: Annotated[str, AfterValidator(_web_address)] | None = None
    """URL of an OpenAI-compatible server."""
    model: str | None = None
    """What that server calls the model; the alias when not given."""
    key_env: str | None = None
    """Environment variable holding that server's API key."""

    @model_validator(mode="after")
    def _one_model(self) -> FixedRouteTable:
        if (self.frozen is None) == (self.endpoint is None):
            raise ValueError("give either frozen = true or endpoint")
        ignored = [key for key in ("model", "key_env") if self.frozen and getattr(self, key) is not None]
        if ignored:
            raise ValueError(f"a frozen model has no use for {' and '.join(ignored)}; it would do nothing")
        return self


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """A policy that is trained: who asks for it, and whose calls count."""

    name: str
    aliases: tuple[str, ...]
    agents: tuple[str, ...] | None
    """Names of the agents whose calls it is trained on; None for all."""


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


class WarmStartTable(Table):
    """Maximum likelihood on demonstrations before reinforcement learning."""

    demonstrations: str
    """A .jsonl file or "module:function" of conversations: {"messages": [...], "tools": [...]}."""
    steps: Positive
    batch: Positive = 8
    """Demonstrations per step; all of them, where there are fewer and it was not given."""
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
    per_agent: bool = False
    """Calls are compared with calls of the same agent only."""
    statistics: Literal["rollout", "call"] = "rollout"
    """What counts once in a mean that calls are compared with: a rollout, however many calls it has, or a call."""
    weighting: NamedTable = NamedTable(name="rollout")
    """rollout, token, call or constant: what weighs the same in the loss."""
    loss: NamedTable = NamedTable(name="ppo_clip")
    """The policy loss, with the options that it honours."""
    kl: NamedTable | None = None
    """A KL term to the policy as it was when reinforcement learning began: {name = "k3", coefficient = 0.01}."""
    entropy_bonus: Annotated[float, Field(ge=0, le=LARGEST_COEFFICIENT, allow_inf_nan=False)] = 0.0
    """Factor of the entropy, which is added to what is sought."""
    proximal: Literal["sampler", "step_start"] | None = None
    """What the loss's probability ratio compares the policy with: the sampler's recorded log-probabilities, or the weights at
    the start of the step. When not given, step_start if those are the sampler's weights and there is one update a step, or if
    there are corrections; else sampler."""
    corrections: list[NamedTable] = Field(default_factory=list)
    """What makes up for a sampler other than the policy at the start of the step."""
    critic: dict[str, Any] | None = None
    """How the value is learnt that an estimator goes by; the options are those of `CriticSettings`."""
    max_staleness: Count | None = None
    """Calls answered by a policy more versions older than this are left out; every update makes a version."""


class TrainingTable(Table):
    """The outer loop."""

    steps: Count
    """0 only warm-starts."""
    tasks_per_step: Positive = 8
    rollouts_per_task: Positive = 8
    updates_per_step: Positive = 1
    """Optimiser steps per batch of rollouts; whole groups are split among them."""
    refill_rounds: Count = 0
    """How often at most a step draws further tasks in the place of groups that have nothing to tell; 0 never does."""
    learning_rate: Rate = 1e-5
    ramp_steps: Count = 0
    overlap: bool = False
    """The rollouts of the next step run while this one is learnt from, with the policy of before or of in between."""
    checkpoint_every: Positive = 5
    max_failed: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A step in which more than this share of rollouts did not succeed is not trained on, whatever is done about them."""


class EvaluationTable(Table):
    """Measuring on held-out tasks, greedily: before, after, and every so many steps."""

    every: Count = 0
    """0 measures only before and after."""
    success_at: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """A rollout with at least this reward counts as a success."""


class TrainConfig(Table):
    """A whole train.toml."""

    name: FolderName = "run"
    """Name of the run's folder."""
    seed: Count = 0
    backend: str = "torch"
    agent: AgentTable
    rewards: RewardsTable = RewardsTable()
    tasks: TasksTable
    policy: PolicyTable = PolicyTable()
    policies: dict[FolderName, AdapterTable] = Field(default_factory=dict)
    """Several policies by name; without any, there is the one that `policy` describes."""
    routes: dict[Annotated[str, Field(min_length=1)], FixedRouteTable] = Field(default_factory=dict)
    """Model alias -> a model that is not trained."""
    sampling: SamplingTable = SamplingTable()
    rollouts: RolloutsTable = RolloutsTable()
    failures: FailuresTable = FailuresTable()
    warm_start: WarmStartTable | None = None
    algorithm: AlgorithmTable = AlgorithmTable()
    training: TrainingTable
    evaluation: EvaluationTable = EvaluationTable()

    @property
    def trained(self) -> tuple[TrainedPolicy, ...]:
        """The policies that are trained, at least one."""
        if not self.policies:
            agents = self.policy.train
            return (TrainedPolicy(SOLE_POLICY, tuple(self.policy.aliases), None if agents is None else tuple(agents)),)
        return tuple(
            TrainedPolicy(name, tuple(table.aliases or [name]), None if table.train is None else tuple(table.train))
            for name, table in self.policies.items()
        )

    @property
    def trained_agents(self) -> frozenset[str] | None:
        """Names of the agents whose calls are trained on; None where all are."""
        agents = [policy.agents for policy in self.trained]
        return None if None in agents else frozenset(name for names in agents for name in names or ())
