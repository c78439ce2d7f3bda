"""What a training backend is: something that samples from a policy and something that updates it.

A backend's plug-in registers a `BackendFactory` under a name. All methods that may take long are coroutines; a backend that
computes in threads or other processes hides that behind them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from spangrad.backend._chat_format import ChatFormat
from spangrad.backend._loss_settings import LossSettings
from spangrad.transitions import FloatArray, TransitionBatch, ValueTargets

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one answer is drawn."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0 does not limit."""
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    """Strings that end the answer; the one found is cut from the text, but its tokens stay in the ids."""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One answer to draw: token ids in, token ids out."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    top_logprobs: int = 0
    """How many of the likeliest alternatives to report per token."""
    choices: int = 1
    """How many independent answers to draw from the one prompt; with a seed, answer i uses seed + i."""


@dataclass(frozen=True, slots=True)
class SampleDelta:
    """What has been sampled since the previous delta of the same choice."""

    choice: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the distribution the ids were drawn from (after temperature, top_p, top_k); at temperature 0 of the plain softmax."""
    text: str
    """Text that is certain by now: whole characters, nothing that may still turn out to begin a stop string."""
    policy_version: int
    finish_reason: FinishReason | None = None
    """Set on the last delta of the choice."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token of this delta, the likeliest (id, logprob) pairs."""


class Sampler(Protocol):
    """Serves a policy token-in/token-out."""

    def sample(self, request: SampleRequest) -> AsyncIterator[SampleDelta]:
        """Draws the request's choices, yielding as tokens are sampled; closing the iterator stops the work.

        Raises:
            BackendError: the prompt leaves no room in the model's context, or sampling failed.
        """
        ...

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its answer may have together."""
        ...


Proximal = Literal["present", "recorded"] | Sequence[FloatArray]
"""What the probability ratio compares the policy with; see `UpdateBatch.proximal`."""


@dataclass(frozen=True)
class UpdateBatch:
    """All that one optimiser step needs."""

    transitions: TransitionBatch
    learning_rate: float
    advantages: FloatArray
    """(T,) one advantage per transition; every token of its action gets it, unless tokens have their own."""
    token_weights: FloatArray
    """(T,) factor of each token's loss; the loss is the plain sum of weight x token loss, so weighting is decided here."""
    proximal: Proximal = "present"
    """What the ratio compares the policy with, and corrections compare with the sampler. "present": the weights as they are
    now, so the ratio is 1. "recorded": the sampler's recorded log-probabilities. Else (T,) of (A,) log-probabilities of the
    actions, from `Learner.logprobs`: those of the weights at the start of the training step (decoupled PPO)."""
    loss: LossSettings = field(default_factory=LossSettings)
    token_advantages: Sequence[FloatArray] | None = None
    """(T,) of (A,) one advantage per token of the action, instead of `advantages`."""
    value_targets: ValueTargets | None = None
    """What the values should have been; a call's targets share the weight of its tokens. None trains no value."""


@dataclass(frozen=True)
class UpdateReport:
    """What an optimiser step did, in plain numbers."""

    loss: float
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Action tokens trained on."""
    computed_tokens: int
    """Token positions the forward pass computed, after sharing of prefixes."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further figures under stable names; docs/losses.md lists them."""


class Learner(Protocol):
    """Updates a policy and makes the update visible to its sampler."""

    @property
    def max_sequence(self) -> int:
        """Most tokens of prompt and action together that it takes."""
        ...

    async def update(self, batch: UpdateBatch) -> UpdateReport:
        """One policy-gradient step."""
        ...

    async def logprobs(self, transitions: TransitionBatch) -> Sequence[FloatArray]:
        """(T,) of (A,) log-probabilities of the actions' tokens under the present weights, at the temperature each was sampled
        with; for `UpdateBatch.proximal`.
        """
        ...

    async def values(self, transitions: TransitionBatch) -> Sequence[FloatArray]:
        """(T,) of (A,) the value before each token of the actions, in the unit of the rewards; 0 before anything was learnt.

        Only of backends with `Capabilities.values`.
        """
        ...

    async def imitate(self, batch: UpdateBatch) -> UpdateReport:
        """One step of maximum likelihood on the batch's actions, weighted by `token_weights`; advantages are ignored."""
        ...

    async def restart_optimizer(self) -> None:
        """Forgets the optimiser's moments. Called where the objective changes, from imitation to reinforcement: moments of the
        one, of quite another scale, would decide the step size of the other.
        """
        ...

    async def freeze_reference(self) -> None:
        """Takes the present weights as the reference of the KL term; saved and loaded with the rest."""
        ...

    async def publish(self) -> int:
        """Lets the sampler use the present weights; returns the new policy version. Held or finished calls keep theirs."""
        ...

    async def save(self, folder: Path) -> None:
        """Writes all that `load` needs to go on exactly: weights, optimiser, counters, random state."""
        ...

    async def load(self, folder: Path) -> None:
        """Restores what `save` wrote and publishes it.

        Raises:
            CheckpointError: the folder is damaged or of another model.
        """
        ...

    async def export(self, folder: Path) -> None:
        """Writes a Hugging Face folder that plain transformers loads, tokenizer and chat template included."""
        ...


@dataclass(frozen=True)
class Capabilities:
    """What a backend honours; a setting it does not honour is an error before the first rollout."""

    estimator_levels: frozenset[str] = frozenset({"transition"})
    """What it takes advantages for: "transition", "token"."""
    losses: frozenset[str] = frozenset({"ppo_clip"})
    """Names of `LOSSES`."""
    kl_forms: frozenset[str] = frozenset()
    """KL terms to a frozen reference: k1, k2, k3."""
    corrections: frozenset[str] = frozenset()
    """Names of `CORRECTIONS`."""
    entropy_bonus: bool = False
    decoupled: bool = False
    """Whether the ratio can be taken to the weights at the start of the step (`Learner.logprobs`)."""
    several_policies: bool = False
    """Whether it trains several policies, each on its own, that begin as one model."""
    initial: bool = False
    """Whether it also serves the model as it was loaded."""
    values: bool = False
    """Whether it has a value that can be learnt (`Learner.values`, `UpdateBatch.value_targets`)."""


class Policy(Protocol):
    """One policy of a backend."""

    @property
    def sampler(self) -> Sampler:
        """Draws from it."""
        ...

    @property
    def learner(self) -> Learner:
        """Updates it, and no other."""
        ...

    @property
    def version(self) -> int:
        """Of the weights the sampler draws with."""
        ...


SOLE_POLICY: Final = "policy"
"""Name of the policy where there is but one."""


class Backend(Protocol):
    """Policies that began as one model, with its chat format, and the life of all of them."""

    @property
    def name(self) -> str: ...
    @property
    def policies(self) -> Mapping[str, Policy]:
        """The trained policies by name."""
        ...

    @property
    def initial(self) -> Sampler | None:
        """Draws from the model as it was loaded, which no update changes; None unless `BackendFactory.create` was asked for it."""
        ...

    @property
    def chat_format(self) -> ChatFormat: ...
    @property
    def mismatch(self) -> bool:
        """`BackendFactory.may_mismatch` of the model as it has been loaded, where options left something to find out."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Model, parameters, precision, threads and library versions, for the run's summary."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class ChecksMachine(Protocol):
    """What a backend's factory may have besides: it says, without loading a model, what the settings need and this machine lacks."""

    def require(self, options: Mapping[str, Any]) -> None:
        """Makes sure that the devices and programs that the settings name are here.

        Args:
            options: the backend's own table, as `BackendFactory.check` gave it.

        Raises:
            BackendError: one is not, with the cure.
        """
        ...


class BackendFactory(Protocol):
    """Registered by a backend's plug-in; importing it must not import torch."""

    capabilities: Capabilities

    def check(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Validates the backend's own table of train.toml without loading a model; returns it with defaults filled in.

        Raises:
            pydantic.ValidationError: wrong, missing or unknown options; the caller reports all of them at once.
        """
        ...

    def may_mismatch(self, options: Mapping[str, Any]) -> bool:
        """Whether sampler and learner, with the same weights, may give log-probabilities that differ by more than rounding."""
        ...

    def chat_format(self, options: Mapping[str, Any]) -> ChatFormat:
        """Loads the model's tokenizer and chat template, but no weights: enough to read a run's tokens.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
        """
        ...

    def create(
        self,
        options: Mapping[str, Any],
        *,
        seed: int,
        policies: Sequence[str] = (SOLE_POLICY,),
        initial: bool = False,
    ) -> Backend:
        """Loads the model.

        Args:
            options: the backend's own table, as `check` gave it.
            seed: of everything random.
            policies: names of the policies to train; several need `Capabilities.several_policies`.
            initial: also serve the model as it was loaded; needs `Capabilities.initial`.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
        """
        ...
