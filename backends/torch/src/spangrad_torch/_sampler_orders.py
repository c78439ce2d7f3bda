"""What goes between a sampler's process and the one that started it, in pickled messages through a socket of theirs.

to it       SamplerSetup                         once: what to load
Draw(number, policy, request)        policy None is the model as it was loaded
Cancel(number)
Take(number, policy, path, version)  the policy's weights are in that file now
from it     Ready()                              once
Reply(number, item)                  a delta, an error, or None: that is all
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spangrad.backend import SampleDelta, SampleRequest
from spangrad.errors import BackendError
from spangrad_torch._options import TorchOptions
from spangrad_torch._precision import Compute


@dataclass(frozen=True, slots=True)
class SamplerSetup:
    """What to load."""

    options: TorchOptions
    compute: Compute
    device: str
    seed: int
    policies: tuple[str, ...]
    initial: bool
    folder: Path
    """Where the weights will be put. Whichever process ends last removes it."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A request to be answered."""

    number: int
    policy: str | None
    request: SampleRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for that answer any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Take:
    """New weights of a policy."""

    number: int
    policy: str
    path: Path
    version: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are loaded."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Something about the request or the weights of that number."""

    number: int
    item: SampleDelta | BackendError | None


Order = Draw | Cancel | Take
