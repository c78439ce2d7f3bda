"""LightningRL (arXiv 2508.03680): credit assigners, advantage estimators and token weighting. Pure numpy functions."""

from spangrad.lightningrl._algorithm import AdvantageReport, LightningRL
from spangrad.lightningrl._builtins import (
    AdvantageEstimatorFactory,
    CreditAssignerFactory,
    builtin_credit_assigners,
    builtin_estimators,
    configured,
)
from spangrad.lightningrl._comparison import EQUAL_TOLERANCE, NO_GROUP, Comparison
from spangrad.lightningrl._grouping import Grouping
from spangrad.lightningrl._reward_size import check_size
from spangrad.lightningrl._weighting import Weighting, WeightingName
from spangrad.lightningrl.credit import CreditAssigner, Discounted, Identical, among_rollouts, rollout_returns
from spangrad.lightningrl.estimators import (
    GRPO,
    RLOO,
    AdvantageEstimator,
    DrGRPO,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Requirements,
    weighted_sum,
)

__all__ = [
    "EQUAL_TOLERANCE",
    "GRPO",
    "NO_GROUP",
    "RLOO",
    "AdvantageEstimator",
    "AdvantageEstimatorFactory",
    "AdvantageReport",
    "Comparison",
    "CreditAssigner",
    "CreditAssignerFactory",
    "Discounted",
    "DrGRPO",
    "Grouping",
    "Identical",
    "LightningRL",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "Requirements",
    "Weighting",
    "WeightingName",
    "among_rollouts",
    "builtin_credit_assigners",
    "builtin_estimators",
    "check_size",
    "configured",
    "rollout_returns",
    "weighted_sum",
]
