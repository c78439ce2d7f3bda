"""The credit assigners and estimators that come with spangrad, and how a configuration's options make one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from spangrad.errors import ConfigError
from spangrad.lightningrl.credit import (
    HGPO,
    AgentShare,
    CreditAssigner,
    Discounted,
    Function,
    GiGPO,
    Graph,
    Identical,
    LastCall,
    Progress,
    ReturnToGo,
    Sum,
    TurnRewards,
)
from spangrad.lightningrl.estimators import (
    GAE,
    GDPO,
    GRPO,
    RAE,
    RLOO,
    DrGRPO,
    Estimator,
    MaxRL,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
)

T = TypeVar("T")

CreditAssignerFactory = Callable[..., CreditAssigner]
"""Takes the assigner's options as keyword arguments; raises `ConfigError` for a wrong value."""
AdvantageEstimatorFactory = Callable[..., Estimator]
"""Takes the estimator's options as keyword arguments; raises `ConfigError` for a wrong value."""


def builtin_credit_assigners() -> Mapping[str, CreditAssignerFactory]:
    """Factories by name."""
    return {
        "agent_share": AgentShare,
        "discounted": Discounted,
        "function": Function,
        "gigpo": GiGPO,
        "graph": Graph,
        "hgpo": HGPO,
        "identical": Identical,
        "last_call": LastCall,
        "progress": Progress,
        "return_to_go": ReturnToGo,
        "sum": Sum,
        "turn_rewards": TurnRewards,
    }


def builtin_estimators() -> Mapping[str, AdvantageEstimatorFactory]:
    """Factories by name."""
    return {
        "dr_grpo": DrGRPO,
        "gae": GAE,
        "gdpo": GDPO,
        "grpo": GRPO,
        "maxrl": MaxRL,
        "rae": RAE,
        "reinforce_pp": ReinforcePlusPlus,
        "reinforce_pp_baseline": ReinforcePlusPlusBaseline,
        "rloo": RLOO,
    }


def name_of(part: CreditAssigner | Estimator) -> str:
    """What a train.toml calls an assigner or estimator that comes with spangrad; the class of any other."""
    for name, factory in (*builtin_credit_assigners().items(), *builtin_estimators().items()):
        if factory is type(part):
            return name
    return type(part).__name__


def configured(noun: str, name: str, factory: Callable[..., T], options: Mapping[str, Any]) -> T:
    """What `factory` makes of a configuration's options.

    Args:
        noun: what is being made, for the message: "credit assigner", "advantage estimator", "weighting".
        name: its name in the configuration.
        factory: takes the options as keyword arguments.
        options: the table in the configuration without its name.

    Raises:
        ConfigError: an option is unknown or missing (the message lists the known ones), or its value is wrong.
    """
    signature = inspect.signature(factory)
    try:
        signature.bind(**options)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "it has none"
        raise ConfigError(f"Wrong options for the {noun} {name!r}: {error}", cure=f"Its options: {known}") from error
    return factory(**options)
