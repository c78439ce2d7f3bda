"""Credit assigners, the high level of LightningRL (arXiv 2508.03680, section 3.3): rewards of a rollout and of its calls ->
what each call earned, and which calls it is compared with.
"""

from spangrad.lightningrl.credit._agent_share import AgentShare
from spangrad.lightningrl.credit._assigner import (
    CreditAssigner,
    CreditNeeds,
    among_rollouts,
    credit_warnings,
    needs_of,
    rollout_returns,
)
from spangrad.lightningrl.credit._discounted import Discounted
from spangrad.lightningrl.credit._function import CreditFunction, Function
from spangrad.lightningrl.credit._gigpo import GiGPO
from spangrad.lightningrl.credit._graph import Graph
from spangrad.lightningrl.credit._hgpo import HGPO
from spangrad.lightningrl.credit._identical import Identical
from spangrad.lightningrl.credit._last_call import LastCall
from spangrad.lightningrl.credit._progress import Progress
from spangrad.lightningrl.credit._return_to_go import ReturnToGo
from spangrad.lightningrl.credit._sum import Sum
from spangrad.lightningrl.credit._turn_rewards import TurnRewards

__all__ = [
    "HGPO",
    "AgentShare",
    "CreditAssigner",
    "CreditFunction",
    "CreditNeeds",
    "Discounted",
    "Function",
    "GiGPO",
    "Graph",
    "Identical",
    "LastCall",
    "Progress",
    "ReturnToGo",
    "Sum",
    "TurnRewards",
    "among_rollouts",
    "credit_warnings",
    "needs_of",
    "rollout_returns",
]
