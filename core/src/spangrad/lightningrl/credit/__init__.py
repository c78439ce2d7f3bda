"""Credit assigners, the high level of LightningRL (arXiv 2508.03680, section 3.3): rewards of a rollout and of its calls ->
what each call earned, and which calls it is compared with.
"""

from spangrad.lightningrl.credit._assigner import CreditAssigner, among_rollouts, rollout_returns
from spangrad.lightningrl.credit._discounted import Discounted
from spangrad.lightningrl.credit._identical import Identical

__all__ = [
    "CreditAssigner",
    "Discounted",
    "Identical",
    "among_rollouts",
    "rollout_returns",
]
