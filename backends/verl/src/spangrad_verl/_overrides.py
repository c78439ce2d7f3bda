"""verl's options in train.toml, as overrides of verl's own configuration, which is composed by Hydra.

An option has the name and the place that verl gives it. Those that would do nothing here, or that train.toml says elsewhere, are refused.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[str, ...]
Fields = Callable[[str], frozenset[str]]
"""Names of the fields of a class of verl's, by the name in `_target_`."""

_LOOP: Final = "spangrad's own training loop decides it"
_SCHEDULE: Final = "training.learning_rate and training.ramp_steps"
_DECIDED: Final[Mapping[str, str]] = {
    "actor_rollout_ref.model.path": "policy.model",
    "actor_rollout_ref.actor.optim.lr": _SCHEDULE,
    "actor_rollout_ref.actor.optim.lr_scheduler_type": _SCHEDULE,
    "actor_rollout_ref.actor.optim.lr_warmup_steps": _SCHEDULE,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": _SCHEDULE,
    "actor_rollout_ref.actor.optim.min_lr_ratio": _SCHEDULE,
    "actor_rollout_ref.actor.optim.num_cycles": _SCHEDULE,
    "actor_rollout_ref.actor.optim.total_training_steps": _SCHEDULE,
    "actor_rollout_ref.actor.optim.warmup_style": _SCHEDULE,
    "actor_rollout_ref.actor.optim.zero_indexed_step": _SCHEDULE,
    "actor_rollout_ref.actor.loss_agg_mode": "algorithm.weighting",
    "actor_rollout_ref.actor.loss_scale_factor": "algorithm.weighting",
    "actor_rollout_ref.actor.policy_loss": "algorithm.loss",
    "actor_rollout_ref.actor.clip_ratio": "algorithm.loss",
    "actor_rollout_ref.actor.clip_ratio_low": "algorithm.loss",
    "actor_rollout_ref.actor.clip_ratio_high": "algorithm.loss",
    "actor_rollout_ref.actor.clip_ratio_c": "algorithm.loss",
    "actor_rollout_ref.actor.tau_pos": "algorithm.loss",
    "actor_rollout_ref.actor.tau_neg": "algorithm.loss",
    "actor_rollout_ref.actor.entropy_coeff": "algorithm.entropy_bonus",
    "actor_rollout_ref.actor.calculate_entropy": "algorithm.entropy_bonus",
    "actor_rollout_ref.actor.use_kl_loss": "algorithm.kl",
    "actor_rollout_ref.actor.kl_loss_coef": "algorithm.kl",
    "actor_rollout_ref.actor.kl_loss_type": "algorithm.kl",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "training.updates_per_step",
    "actor_rollout_ref.actor.ppo_epochs": "training.updates_per_step",
    "actor_rollout_ref.actor.rollout_n": "training.rollouts_per_task",
    "actor_rollout_ref.actor.grad_clip": "actor_rollout_ref.actor.optim.clip_grad",  # the one that verl reads
    "actor_rollout_ref.actor.shuffle": _LOOP,
    "actor_rollout_ref.actor.data_loader_seed": _LOOP,
    "actor_rollout_ref.rollout": "the table of the sampler, such as [verl.vllm]",
    "actor_rollout_ref.ref": "algorithm.kl, whose reference the actor's own workers compute",
}
"""What of the honoured tables train.toml says elsewhere: where."""
_HONOURED: Final = (
    "actor_rollout_ref.model",
    "actor_rollout_ref.actor",
    "ray_kwargs.ray_init",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.device",
    "trainer.ray_wait_register_center_timeout",
)
"""Tables and options of verl's that have an effect here."""
_FREE: Final = frozenset({"ray_kwargs.ray_init"})
"""Tables that take any key: they are handed on to something else than verl."""


@dataclass(frozen=True, slots=True)
class Override:
    """One option of verl's and its value."""

    path: Path
    value: Any

    def __str__(self) -> str:
        """As Hydra reads it; the option is there already or has been found to be one, so `++` only spares a distinction."""
        return f"++{'.'.join(self.path)}={_written(self.value)}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An option that cannot be set, and why."""

    key: tuple[str, ...]
    """As it is written in train.toml, below `[verl]`."""
    value: Any
    why: str


def read_overrides(
    tables: Mapping[str, Any], known: Mapping[str, Any], fields: Fields
) -> tuple[list[Override], list[Refusal]]:
    """The options as overrides.

    Args:
        tables: what train.toml says below `[verl]` of verl's own options, nested or with dots in the names.
        known: verl's whole configuration as it is without overrides.
        fields: what verl's classes take beyond what its configuration names.

    Returns:
        The overrides in the order of the file, and what is wrong.
    """
    found: dict[Path, Override] = {}
    refused = []
    for key, path, value, error in _walk(tables, known, fields, key=(), path=()):
        why = error or _unwanted(path) or ("it is given twice" if path in found else "")
        if why:
            refused.append(Refusal(key, value, why))
        else:
            found[path] = Override(path, value)
    return list(found.values()), refused


def _walk(
    given: Mapping[str, Any], known: Mapping[str, Any], fields: Fields, *, key: Path, path: Path
) -> Iterator[tuple[Path, Path, Any, str]]:
    """Key, path, value and error of each option."""
    for name, value in given.items():
        first, _, rest = name.partition(".")
        here, written = (*path, first), (*key, name)
        if rest:
            value = {rest: value}  # noqa: PLW2901 - dots are another way to write a table
            written = (*key, first)
        if first in known:
            inner = known[first]
            if isinstance(inner, Mapping) and inner:
                if isinstance(value, Mapping):
                    deeper = {**inner, **dict.fromkeys(value, None)} if ".".join(here) in _FREE else inner
                    yield from _walk(value, deeper, fields, key=written, path=here)
                else:
                    yield written, here, value, "this is a table of options"
            else:
                yield written, here, value, _wrong_kind(inner, value)
        elif not path or not _takes(first, known, fields):
            near = difflib.get_close_matches(first, known, n=1)
            yield written, here, value, "verl has no such option" + (f" (did you mean {near[0]}?)" if near else "")
        else:
            yield written, here, value, ""


def _takes(name: str, known: Mapping[str, Any], fields: Fields) -> bool:
    """Whether the class that a table becomes has a field of that name."""
    target = known.get("_target_")
    return isinstance(target, str) and name in fields(target)


def _unwanted(path: Path) -> str:
    """Why an option would do nothing; empty where it does something."""
    names = [".".join(path[:length]) for length in range(1, len(path) + 1)]
    for name in names:
        if name in _DECIDED:
            return f"it would do nothing; set instead: {_DECIDED[name]}"
    if any(name in _HONOURED for name in names):
        return ""
    return f"it would do nothing: {_LOOP}"


def _wrong_kind(default: Any, value: Any) -> str:
    """What is wrong with a value of another kind than verl's own; empty where nothing is, or verl's own says nothing."""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "must be true or false"
    if isinstance(default, int):
        return "" if isinstance(value, int) and not isinstance(value, bool) else "must be an integer"
    if isinstance(default, float):
        fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return "" if fine else "must be a finite number"
    if isinstance(default, list):
        return "" if isinstance(value, list | tuple) else "must be a list"
    return ""


def _written(value: Any) -> str:
    """A value in Hydra's grammar of overrides."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_written(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, str):
        escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
        return f"'{escaped}'"
    return json.dumps(value)
