"""LightningRL (arXiv 2508.03680): credit assigners, advantage estimators and token weighting. Pure numpy functions."""

from spangrad.lightningrl._algorithm import AdvantageReport, LightningRL
from spangrad.lightningrl._builtins import (
    AdvantageEstimatorFactory,
    CreditAssignerFactory,
    builtin_credit_assigners,
    builtin_estimators,
    configured,
)
from spangrad.lightningrl._comparison import EQUAL_TOLERANCE, GroupComparison
from spangrad.lightningrl._credit import CreditAssigner, Discounted, Identical, rollout_returns
from spangrad.lightningrl._estimators import (
    GRPO,
    RLOO,
    AdvantageEstimator,
    DrGRPO,
    ReinforcePlusPlusBaseline,
    Requirements,
)
from spangrad.lightningrl._reward_size import check_size
from spangrad.lightningrl._weighting import Weighting, WeightingName

__all__ = [
    "EQUAL_TOLERANCE",
    "GRPO",
    "RLOO",
    "AdvantageEstimator",
    "AdvantageEstimatorFactory",
    "AdvantageReport",
    "CreditAssigner",
    "CreditAssignerFactory",
    "Discounted",
    "DrGRPO",
    "GroupComparison",
    "Identical",
    "LightningRL",
    "ReinforcePlusPlusBaseline",
    "Requirements",
    "Weighting",
    "WeightingName",
    "builtin_credit_assigners",
    "builtin_estimators",
    "check_size",
    "configured",
    "rollout_returns",
]
