"""Servers that draw answers beside a backend's learner: what a plug-in of the kind `sampler` brings.

The learner's side stays the backend's. The two meet in folders of Hugging Face files: the model as it was loaded, and later the
weights, or adapters, that an update has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spangrad.backend._protocols import Sampler


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is to be served."""

    folder: Path
    """Weights, configuration and tokenizer as the model was loaded, as transformers saves them; stays as it is."""
    handover: Path
    """Where changed weights will be put. Whoever ends the servers after this process has died removes it."""
    policies: tuple[str, ...]
    """They begin as that model."""
    context_length: int
    end_ids: frozenset[int]
    """Ids that end an answer."""
    decode: Callable[[Sequence[int]], str]
    """Text of some ids, special tokens left out."""
    adapter_rank: int | None = None
    """Of the low-rank adapters (arXiv 2106.09685) that are all that changes; None where every weight does."""
    initial: bool = False
    """Also serve the model as it was loaded."""
    seed: int = 0
    """Of answers sampled without a seed."""


class ServedPolicy(Sampler, Protocol):
    """Draws one policy's answers from servers."""

    @property
    def policy_version(self) -> int:
        """Of the weights it draws with: 0, then those of the last `take`."""
        ...

    async def take(self, folder: Path, version: int) -> None:
        """Draws with these weights from now on. Answers under way go on with them, each token stamped with the version that drew it.

        Args:
            folder: of all weights as transformers saves a model, or of the adapter as peft saves one, as `ServedModel.adapter_rank`
                says. It stays as it is until the next `take` of the policy has returned, or everything is closed.
            version: of the weights.

        Raises:
            BackendError: no server takes them.
        """
        ...


class Served(Protocol):
    """A model that is being served."""

    @property
    def policies(self) -> Mapping[str, ServedPolicy]:
        """By name."""
        ...

    @property
    def initial(self) -> Sampler | None:
        """Draws from the model as it was loaded; None unless that was asked for."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Servers and versions, for the run's summary."""
        ...

    async def close(self) -> None:
        """Ends the servers that were started; answers under way fail. Closing twice is harmless."""
        ...


class SamplerFactory(Protocol):
    """Registered by a plug-in under the name that a backend's setting `sampler` takes; importing it must import no framework."""

    def check(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Validates the sampler's own table, which lies in the backend's, and fills in the defaults. Looks at nothing else.

        Raises:
            pydantic.ValidationError: wrong, missing or unknown options, all of them at once.
        """
        ...

    def require(self, options: Mapping[str, Any]) -> None:
        """Makes sure of all that the servers need and this machine can tell; called before a model is loaded.

        Raises:
            BackendError: a part is missing or of a wrong version, with the way to get it.
        """
        ...

    def start(self, options: Mapping[str, Any], model: ServedModel) -> Served:
        """Starts the servers, or attaches to running ones, and returns when they answer.

        Raises:
            BackendError: they do not start, or cannot serve this model.
        """
        ...
