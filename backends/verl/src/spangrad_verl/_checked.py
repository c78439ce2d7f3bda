"""The backend's table of train.toml, validated: its own options, the sampler's, and verl's by verl's own configuration."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from spangrad.backend import SamplerFactory
from spangrad.errors import PluginError
from spangrad.plugins import load_plugins
from spangrad_verl._installation import config_folder, require_installation
from spangrad_verl._options import VerlOptions
from spangrad_verl._overrides import Override, read_overrides

_ACTOR: Final = ("actor_rollout_ref", "actor")
_TOKENS_PER_PASS: Final = 16384
"""verl's own default."""


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """The table, and what it makes of verl's configuration."""

    own: VerlOptions
    servers: SamplerFactory
    """Starts what draws answers."""
    table: Mapping[str, Any]
    """Of its settings, with defaults filled in."""
    verl: Any
    """verl's whole configuration, an omegaconf.DictConfig."""

    def filled_in(self) -> dict[str, Any]:
        """All settings that do something, defaults included; gives the same when read again."""
        return {**self.own.model_dump(mode="json"), self.own.sampler: dict(self.table)}


def read_options(options: Mapping[str, Any]) -> CheckedOptions:
    """Validates the table. Imports verl, which takes seconds, but starts nothing.

    Raises:
        pydantic.ValidationError: wrong or unknown options, of the servers and of verl too, all of them at once.
        PluginError: verl is missing or is a version that is not supported.
    """
    require_installation()
    given = dict(options)
    errors: list[InitErrorDetails] = []
    name = given.get("sampler", "vllm")
    factory: SamplerFactory | None = None
    table: Mapping[str, Any] = {}
    if isinstance(name, str) and name:
        inner = given.pop(name, {})
        try:
            factory = load_plugins(builtin=False, quiet=True).samplers.get(name)
            table = factory.check(inner)
        except PluginError as error:
            errors.append(_error(("sampler",), name, str(error)))
        except TypeError:
            errors.append(_error((name,), inner, "this is a table of the sampler's settings"))
        except ValidationError as error:
            errors += [_error((name, *part["loc"]), part["input"], part["msg"]) for part in error.errors()]
    try:
        own = VerlOptions.model_validate(given)
    except ValidationError as error:
        found = [_error(part["loc"], part["input"], part["msg"]) for part in error.errors()]
        raise ValidationError.from_exception_data(error.title, [*found, *errors]) from None
    composed, refused = _composed(own)
    errors += refused
    if errors or factory is None:
        raise ValidationError.from_exception_data("VerlOptions", errors)
    return CheckedOptions(own, factory, table, composed)


def _composed(own: VerlOptions) -> tuple[Any, list[InitErrorDetails]]:
    """verl's configuration with the options in it, and what is wrong with them."""
    from hydra import compose, initialize_config_dir  # noqa: PLC0415 - verl brings it
    from hydra.errors import HydraException  # noqa: PLC0415
    from omegaconf import OmegaConf  # noqa: PLC0415
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    with initialize_config_dir(config_dir=str(config_folder()), version_base=None):
        known = OmegaConf.to_container(compose("ppo_trainer"), resolve=False)
        overrides, refused = read_overrides(own.of_verl, cast("Mapping[str, Any]", known), _fields)
        errors = [_error(refusal.key, refusal.value, refusal.why) for refusal in refused]
        if errors:
            return None, errors
        try:
            composed = compose("ppo_trainer", overrides=[*map(str, _defaults(own)), *map(str, overrides)])
        except (HydraException, OmegaConfBaseException) as error:
            return None, [_error((), own.of_verl, f"verl does not take its options: {error}")]
    return composed, _refused_by_verl(composed)


def _defaults(own: VerlOptions) -> list[Override]:
    """Where verl's defaults are not ours: they come before the user's own, which decide."""
    optimizer = (*_ACTOR, "optim")
    return [
        Override((*_ACTOR, "strategy"), "fsdp2"),
        Override((*_ACTOR, "use_dynamic_bsz"), True),
        Override((*_ACTOR, "ppo_max_token_len_per_gpu"), max(own.max_sequence, _TOKENS_PER_PASS)),
        # As the torch backend's, so that one train.toml means one training.
        Override((*optimizer, "betas"), [0.9, 0.95]),
        Override((*optimizer, "weight_decay"), 0.0),
        Override(("trainer", "n_gpus_per_node"), 1),
    ]


def _refused_by_verl(composed: Any) -> list[InitErrorDetails]:
    """What verl's own classes say about the configuration, and what this backend cannot do with it."""
    from verl.utils.config import omega_conf_to_dataclass  # noqa: PLC0415 - seconds

    actor = composed.actor_rollout_ref.actor
    try:
        omega_conf_to_dataclass(actor)
    except Exception as error:  # noqa: BLE001 - asserts, ValueErrors and Hydra's own, as each class likes
        cause = error.__cause__ or error
        return [_error(_ACTOR, {}, f"verl refuses it: {cause}")]
    found = []
    if actor.strategy != "fsdp2":
        why = 'this backend drives verl\'s "fsdp2" only'
        found.append(_error((*_ACTOR, "strategy"), actor.strategy, why))
    if actor.use_dynamic_bsz and actor.ppo_max_token_len_per_gpu * actor.ulysses_sequence_parallel_size < 2:  # noqa: PLR2004
        found.append(
            _error((*_ACTOR, "ppo_max_token_len_per_gpu"), actor.ppo_max_token_len_per_gpu, "must be at least 2")
        )
    return found


def _fields(target: str) -> frozenset[str]:
    """Names of the fields of a dataclass by its whole name."""
    module, _, name = target.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    return frozenset(field.name for field in fields(kind)) if is_dataclass(kind) else frozenset()


def _error(key: tuple[Any, ...], given: Any, what: str) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("verl", "{what}", {"what": what}), loc=key, input=given)
