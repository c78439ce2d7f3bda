"""Advantage estimators, the low level of LightningRL: returns that are compared with each other -> one advantage per transition.

All statistics are over rollouts, never over rows, unless asked for otherwise. Who has nobody to be compared with gets advantage
0 (some trainers leave it its raw return there).
"""

from spangrad.lightningrl.estimators._estimator import (
    AdvantageEstimator,
    RememberingEstimator,
    Requirements,
    weighted_sum,
)
from spangrad.lightningrl.estimators._gae import GAE
from spangrad.lightningrl.estimators._gdpo import GDPO
from spangrad.lightningrl.estimators._grpo import GRPO, DrGRPO
from spangrad.lightningrl.estimators._maxrl import MaxRL
from spangrad.lightningrl.estimators._rae import RAE
from spangrad.lightningrl.estimators._reinforce_pp import ReinforcePlusPlus, ReinforcePlusPlusBaseline
from spangrad.lightningrl.estimators._rloo import RLOO
from spangrad.lightningrl.estimators._value_estimator import Estimator, ValueEstimates, ValueEstimator

__all__ = [
    "GAE",
    "GDPO",
    "GRPO",
    "RAE",
    "RLOO",
    "AdvantageEstimator",
    "DrGRPO",
    "Estimator",
    "MaxRL",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "RememberingEstimator",
    "Requirements",
    "ValueEstimates",
    "ValueEstimator",
    "weighted_sum",
]
