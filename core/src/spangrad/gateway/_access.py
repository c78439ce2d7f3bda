"""Who may call: rollouts, their keys, and what each has done so far."""

from __future__ import annotations

import asyncio
import secrets
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from spangrad._latest import Latest
from spangrad.errors import GatewayError
from spangrad.gateway._branches import Branches
from spangrad.gateway._engine import EngineError
from spangrad.gateway._response_memory import ResponseMemory

KEY_PREFIX: Final = "sk-spangrad-"
MOST_CLOSED: Final = 1024
"""How many closed attempts are known by their keys, those closed last; long runs have many more."""


@dataclass(frozen=True, slots=True)
class SamplingOverride:
    """Sampling settings a rollout is held to, whatever its agent asks for; None leaves the agent its choice."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """0 does not limit."""
    max_tokens: int | None = None
    """A ceiling: an agent that asks for less gets less."""
    seed: int | None = None
    """Of the rollout; every call draws from its own seed derived from it, so equal prompts do not get equal answers."""


@dataclass(frozen=True, slots=True)
class RolloutAccess:
    """All an agent needs to call the model as one rollout."""

    rollout_id: str
    attempt: int
    base_url: str
    """For any OpenAI client: `{gateway}/rollouts/{rollout_id}/attempts/{attempt}/v1`."""
    api_key: str
    """Unguessable, good for this attempt only."""


@dataclass(frozen=True, slots=True)
class RolloutTally:
    """What the calls of one attempt came to."""

    calls: int
    """Requests that reached the gateway, refused ones included."""
    answered: int
    """Calls that were answered in full."""
    sampled: int
    """Those of them in which a token was sampled, as far as the engine says."""
    broken: str
    """Why the last call that was answered at all was answered with a server's error (HTTP 5xx); empty where it was not."""


@dataclass(slots=True, eq=False)
class Entry:
    """One attempt of a rollout, as the gateway knows it. Only the gateway's loop touches what changes."""

    access: RolloutAccess
    sampling: SamplingOverride
    closed: bool = False
    """Its calls are refused."""
    final: bool = False
    """Rewards over HTTP are refused too."""
    calls: int = 0
    answered: int = 0
    sampled: int = 0
    broken: str = ""
    call_ids: set[str] = field(default_factory=set)
    """Ids its client gave to calls, so that none is used twice."""
    responses: ResponseMemory = field(default_factory=ResponseMemory)
    """What its requests of the Responses API may go on from."""
    branches: Branches = field(default_factory=Branches)
    """Its answers, which later calls may go on from."""
    running: set[asyncio.Future[EngineError]] = field(default_factory=set)
    """One future per request in flight, calls and rewards; a result stops the request and is the reason why."""
    waiting: list[Future[RolloutTally]] = field(default_factory=list)
    """Whoever waits for the last request in flight after closing; any thread may append."""

    @property
    def tally(self) -> RolloutTally:
        """The counts so far."""
        return RolloutTally(self.calls, self.answered, self.sampled, self.broken)


class AccessBook:
    """The attempts by key and by (rollout, attempt): all open ones, and those closed last. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[str, Entry] = {}
        self._by_rollout: dict[tuple[str, int], Entry] = {}
        self._closed: Latest[Entry] = Latest(MOST_CLOSED)

    def add(self, root: str, rollout_id: str, attempt: int, sampling: SamplingOverride | None) -> Entry:
        """Opens an attempt under a fresh key.

        Args:
            root: the gateway's URL, without a path.
            rollout_id: which rollout.
            attempt: which try at it.
            sampling: what its calls are held to.

        Raises:
            GatewayError: this attempt was opened before.
        """
        if not rollout_id:
            raise GatewayError("A rollout needs an id that is not empty")
        key = KEY_PREFIX + secrets.token_urlsafe(24)
        url = f"{root}/rollouts/{quote(rollout_id, safe='')}/attempts/{attempt}/v1"
        entry = Entry(RolloutAccess(rollout_id, attempt, url, key), sampling or SamplingOverride())
        with self._lock:
            if (rollout_id, attempt) in self._by_rollout:
                raise GatewayError(
                    f"Attempt {attempt} of rollout {rollout_id!r} was opened before",
                    cure="Give every try at a rollout its own attempt number",
                )
            self._by_key[key] = entry
            self._by_rollout[rollout_id, attempt] = entry
        return entry

    def by_key(self, key: str) -> Entry | None:
        """The attempt this key belongs to."""
        return self._by_key.get(key)

    def retire(self, entry: Entry) -> None:
        """Says that an attempt is closed: it is forgotten once enough others have been closed after it."""
        with self._lock:
            if (forgotten := self._closed.add(entry)) is not None:
                access = forgotten.access
                del self._by_key[access.api_key]
                del self._by_rollout[access.rollout_id, access.attempt]

    def entries(self) -> list[Entry]:
        """All attempts that are known."""
        with self._lock:
            return list(self._by_rollout.values())

    def find(self, rollout_id: str, attempt: int) -> Entry | None:
        """That attempt, open or closed lately."""
        return self._by_rollout.get((rollout_id, attempt))
