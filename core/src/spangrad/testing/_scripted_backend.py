"""A backend without a model: its sampler follows a script, its learner notes what it was given."""

from __future__ import annotations

import asyncio
import json
import operator
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt

from spangrad.backend import SOLE_POLICY, Capabilities, UpdateBatch, UpdateReport
from spangrad.errors import CheckpointError
from spangrad.testing._byte_chat_format import ByteChatFormat
from spangrad.testing._scripted_sampler import Script, ScriptedPrompt, ScriptedSampler
from spangrad.transitions import FloatArray, TransitionBatch

_SUM: Final = re.compile(r"(\d+)\s*([-+*])\s*(\d+)")
_OPERATORS: Final = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_FILE: Final = "scripted.json"


def arithmetic_script(skill: Callable[[int], float]) -> Script:
    """A policy that answers sums: rightly with probability `skill(policy_version)`, else one too many.

    The prompt's last `a+b`, `a-b` or `a*b` is the question; the draw depends on the prompt, the choice and the seed alone.
    At temperature 0 it does not depend on the seed.
    """

    def answer(prompt: ScriptedPrompt) -> str:
        questions = _SUM.findall("\n".join(message["content"] for message in prompt.messages))
        if not questions:
            return "I only do sums."
        left, sign, right = questions[-1]
        seed = prompt.params.seed if prompt.params.temperature > 0 else None
        draw = random.Random(f"{prompt.ids} {prompt.choice} {seed}").random()
        wrong = draw >= skill(prompt.policy_version)
        return str(_OPERATORS[sign](int(left), int(right)) + wrong)

    return answer


class ScriptedLearner:
    """A learner that keeps every batch it was given in `updates` and `imitations`.

    Publishing raises the version; what the new version does is the script's business (`ScriptedPrompt.policy_version`).
    """

    def __init__(self, sampler: ScriptedSampler) -> None:
        self.updates: list[UpdateBatch] = []
        self.imitations: list[UpdateBatch] = []
        self.steps = 0
        """Updates and imitations in all, those before the last `load` included."""
        self.restarts = 0
        """How often the optimiser was restarted."""
        self.value = 0.0
        """What it holds every state to be worth: the mean of the last update's value targets."""
        self.references = 0
        """How often the reference was frozen."""
        self._sampler = sampler

    @property
    def max_sequence(self) -> int:
        """As much as the sampler takes."""
        return self._sampler.context_length

    async def update(self, batch: UpdateBatch) -> UpdateReport:
        """Notes the batch."""
        self.updates.append(batch)
        if batch.value_targets is not None:
            self.value = float(np.concatenate(batch.value_targets.targets).mean())
        return self._step(batch)

    async def values(self, transitions: TransitionBatch) -> list[FloatArray]:
        """`value`, before every token."""
        return [np.full(len(transition.action_ids), self.value) for transition in transitions.transitions]

    async def logprobs(self, transitions: TransitionBatch) -> list[FloatArray]:
        """Those recorded: a script has no weights that change."""
        return [np.array(transition.logprobs) for transition in transitions.transitions]

    async def imitate(self, batch: UpdateBatch) -> UpdateReport:
        """Notes the batch."""
        self.imitations.append(batch)
        return self._step(batch)

    async def restart_optimizer(self) -> None:
        """Counts."""
        self.restarts += 1

    async def freeze_reference(self) -> None:
        """Counts."""
        self.references += 1

    async def publish(self) -> int:
        """Raises the version the sampler stamps."""
        self._sampler.policy_version += 1
        return self._sampler.policy_version

    async def save(self, folder: Path) -> None:
        """Writes the counters and the value."""
        state = {
            "steps": self.steps,
            "references": self.references,
            "policy_version": self._sampler.policy_version,
            "value": self.value,
        }
        await asyncio.to_thread(_write, folder, json.dumps(state))

    async def load(self, folder: Path) -> None:
        """Reads the counters back.

        Raises:
            CheckpointError: there are none, or they are damaged.
        """
        try:
            state = json.loads(await asyncio.to_thread((folder / _FILE).read_text))
            counters = int(state["steps"]), int(state["references"]), int(state["policy_version"])
            value = float(state["value"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"The checkpoint in {folder} cannot be read: {error}") from error
        self.steps, self.references, self._sampler.policy_version = counters
        self.value = value

    async def export(self, folder: Path) -> None:
        """Writes what `save` writes: there are no weights."""
        await self.save(folder)

    def _step(self, batch: UpdateBatch) -> UpdateReport:
        self.steps += 1
        transitions = batch.transitions.transitions
        tokens = sum(len(transition.action_ids) for transition in transitions)
        computed = tokens + sum(len(transition.prompt_ids) for transition in transitions)
        return UpdateReport(loss=0.0, grad_norm=0.0, tokens=tokens, computed_tokens=computed)


def _write(folder: Path, text: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _FILE).write_text(text)
    except OSError as error:
        raise CheckpointError(
            f"The folder {folder} could not be written: {error}",
            cure="Free some disk space or choose a folder that can be written",
        ) from error


@dataclass(frozen=True)
class ScriptedPolicy:
    """A sampler and a learner that notes what it is given; a `Policy`."""

    sampler: ScriptedSampler
    learner: ScriptedLearner

    @property
    def version(self) -> int:
        """Raised by publishing."""
        return self.sampler.policy_version


class ScriptedBackend:
    """A `Backend` for tests of everything around backends.

    Args:
        script: what the samplers answer.
        context_length: of the samplers, in tokens (bytes).
        policies: names of the policies.
        initial: whether there is a sampler that no learner belongs to.
    """

    def __init__(
        self,
        script: Script,
        *,
        context_length: int = 65536,
        policies: Sequence[str] = (SOLE_POLICY,),
        initial: bool = False,
    ) -> None:
        self.closed = False
        self._policies: dict[str, ScriptedPolicy] = {}
        for name in policies:
            sampler = ScriptedSampler(script, context_length=context_length, policy=name)
            self._policies[name] = ScriptedPolicy(sampler, ScriptedLearner(sampler))
        self._initial = ScriptedSampler(script, context_length=context_length) if initial else None
        self._chat_format = ByteChatFormat()

    @property
    def name(self) -> str:
        """How the store calls it."""
        return "scripted"

    @property
    def policies(self) -> Mapping[str, ScriptedPolicy]:
        """Follow the script."""
        return self._policies

    @property
    def initial(self) -> ScriptedSampler | None:
        """Follows the script, at version 0 for ever."""
        return self._initial

    @property
    def chat_format(self) -> ByteChatFormat:
        """Bytes."""
        return self._chat_format

    @property
    def mismatch(self) -> bool:
        """Never: nothing is computed twice."""
        return False

    def describe(self) -> Mapping[str, Any]:
        """Its name; there is nothing else to say."""
        return {"model": "scripted", "parameters": 0}

    async def close(self) -> None:
        """Notes that it was closed."""
        self.closed = True


class _Options(BaseModel):
    """The factory's own table of train.toml."""

    model_config = ConfigDict(extra="forbid")

    model: str = "scripted"
    context_length: PositiveInt = 65536


class ScriptedFactory:
    """Makes scripted backends; register it as a backend: `register.backend("scripted", ScriptedFactory(script))`.

    Args:
        script: what the samplers answer.
        capabilities: what the backends are said to honour.
        uncertain: whether the backends' `mismatch` is said to be known only once they are made.
    """

    def __init__(self, script: Script, *, capabilities: Capabilities | None = None, uncertain: bool = False) -> None:
        self._uncertain = uncertain
        self.capabilities = capabilities or Capabilities(
            estimator_levels=frozenset({"transition", "token"}), values=True
        )
        self.created: list[ScriptedBackend] = []
        """Every backend made so far."""
        self._script = script

    def check(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Validates `context_length`; any model is fine, since none is loaded.

        Raises:
            pydantic.ValidationError: wrong or unknown options.
        """
        return _Options.model_validate(dict(options)).model_dump()

    def may_mismatch(self, options: Mapping[str, Any]) -> bool:
        """As told; the backends never do."""
        self.check(options)
        return self._uncertain

    def chat_format(self, options: Mapping[str, Any]) -> ByteChatFormat:
        """Bytes."""
        self.check(options)
        return ByteChatFormat()

    def create(
        self,
        options: Mapping[str, Any],
        *,
        seed: int,
        policies: Sequence[str] = (SOLE_POLICY,),
        initial: bool = False,
    ) -> ScriptedBackend:
        """A new backend; `seed` changes nothing, as the script draws from each request's seed."""
        del seed
        context_length = self.check(options)["context_length"]
        backend = ScriptedBackend(self._script, context_length=context_length, policies=policies, initial=initial)
        self.created.append(backend)
        return backend
