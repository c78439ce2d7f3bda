"""The store: durable memory of a run."""

from spangrad.store._contract import Store
from spangrad.store._open import open_store
from spangrad.store._records import RewardRecord, RolloutRecord, RolloutStatus

__all__ = ["RewardRecord", "RolloutRecord", "RolloutStatus", "Store", "open_store"]
