"""Advantage estimators, the low level of LightningRL: returns that are compared with each other -> one advantage per transition.

All statistics are over rollouts, never over rows, unless asked for otherwise. Who has nobody to be compared with gets advantage
0 (some trainers leave it its raw return there).
"""

from spangrad.lightningrl.estimators._estimator import AdvantageEstimator, Requirements, weighted_sum
from spangrad.lightningrl.estimators._grpo import GRPO, DrGRPO
from spangrad.lightningrl.estimators._reinforce_pp import ReinforcePlusPlus, ReinforcePlusPlusBaseline
from spangrad.lightningrl.estimators._rloo import RLOO

__all__ = [
    "GRPO",
    "RLOO",
    "AdvantageEstimator",
    "DrGRPO",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "Requirements",
    "weighted_sum",
]
