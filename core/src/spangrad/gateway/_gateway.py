"""The gateway: rollouts in, calls out, an HTTP server in between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from spangrad.gateway._access import RolloutAccess, RolloutTally, SamplingOverride
from spangrad.gateway._routes import Route, RouteTable
from spangrad.store._contract import Store


@dataclass(frozen=True, slots=True)
class IdCount:
    """How many answered calls of an endpoint came with everything training needs."""

    calls: int
    with_ids: int
    """Had prompt ids, and for every choice sampled ids and as many logprobs."""


class Gateway:
    """The OpenAI-compatible server agents talk to, in its own thread with its own event loop.

    Args:
        store: where every call is written before its answer is complete.
        routes: which model alias is answered by which engine.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        evaluator_key: key that may open and finish rollouts and give rewards over HTTP; made up when None.
        allow_anonymous: clients on this machine may call without a rollout's key; such calls are served.
    """

    def __init__(
        self,
        store: Store,
        routes: RouteTable | Iterable[Route],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        evaluator_key: str | None = None,
        allow_anonymous: bool = True,
    ) -> None: ...

    def start(self) -> None:
        """Listens; returns when requests are answered.

        Raises:
            GatewayError: the port is in use or the address is not ours.
        """
        ...

    def stop(self) -> None:
        """Ends requests in flight (recorded as undelivered), stops listening, closes the engines. Harmless when stopped."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    @property
    def base_url(self) -> str:
        """Root URL without a path, such as `http://127.0.0.1:8123`; `{base_url}/v1` is an OpenAI base URL."""
        ...

    @property
    def evaluator_key(self) -> str:
        """May open and finish rollouts and give rewards over HTTP."""
        ...

    def open_rollout(self, rollout_id: str, attempt: int, *, sampling: SamplingOverride | None = None) -> RolloutAccess:
        """Lets an attempt of a rollout call. Safe from any thread. Writes nothing to the store: the runner records rollouts.

        Raises:
            GatewayError: this attempt was opened before, or the gateway is not running.
        """
        ...

    def close_rollout(self, rollout_id: str, attempt: int) -> Future[RolloutTally]:
        """Ends an attempt: requests in flight are stopped and recorded as undelivered, later ones are answered 409 and recorded
        as errors. Safe from any thread; closing twice is harmless.

        Returns:
            A future that is done when the last request in flight has been recorded
            (`await asyncio.wrap_future(...)` or `.result()`).
        """
        ...

    def pause(self) -> None:
        """Holds requests that have not begun sampling, until `resume`; agents only see a slow answer."""
        ...

    def resume(self) -> None:
        """Lets held requests go on."""
        ...

    def id_counts(self) -> Mapping[str, IdCount]:
        """Per engine name, over calls answered so far: how many had token ids. The trainer stops when a policy's has none."""
        ...
