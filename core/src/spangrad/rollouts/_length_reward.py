"""The reward for how many tokens a rollout took, read off the store."""

from __future__ import annotations

import asyncio

from spangrad.rollouts._judges import Judged
from spangrad.rollouts._overlong import OVERLONG, Overlong, sampled_tokens
from spangrad.rollouts._rule_rewards import work_of
from spangrad.store import Store
from spangrad.transitions import LENGTH_SOURCE


async def length_reward(overlong: Overlong | None, store: Store, rollout_id: str, attempt: int) -> tuple[Judged, ...]:
    """What an attempt whose agent has ended gets for its length, 0 included; nothing where length does not matter.

    HTTP attempts that were repeated do not count: what a client's retries cost is not the agent's doing.

    Raises:
        StoreError: the store cannot be read.
    """
    if overlong is None:
        return ()
    work = await asyncio.to_thread(work_of, store, rollout_id, attempt)
    return ((OVERLONG, overlong.reward(sampled_tokens(work.calls)), LENGTH_SOURCE),)
