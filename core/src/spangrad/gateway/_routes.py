"""Which model alias is answered by which engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spangrad.errors import ConfigError, RouteError
from spangrad.gateway._engine import Engine

ANY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class Route:
    """A model alias and what answers it."""

    alias: str
    """The model name agents ask for; `*` answers every name that has no route of its own."""
    engine: Engine
    policy: str | None = None
    """The policy being trained that the engine serves; None for a frozen or external model."""


class RouteTable:
    """All routes of a gateway.

    Args:
        routes: in the order `/v1/models` lists them.

    Raises:
        ConfigError: no route, or two routes under one alias.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[str, Route] = {}
        for route in routes:
            if route.alias in self._routes:
                raise ConfigError(f"Two routes for the model {route.alias!r}", cure="Give each route its own alias")
            self._routes[route.alias] = route
        if not self._routes:
            raise ConfigError("A gateway needs a route", cure="Route at least one model alias to an engine")

    @property
    def aliases(self) -> tuple[str, ...]:
        """The routed names."""
        return tuple(self._routes)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The distinct engines."""
        return tuple({id(route.engine): route.engine for route in self._routes.values()}.values())

    def resolve(self, model: str) -> Route:
        """The route of a model name.

        Raises:
            RouteError: none serves it; the message lists the ones there are.
        """
        route = self._routes.get(model) or self._routes.get(ANY_MODEL)
        if route is None:
            known = ", ".join(self._routes)
            raise RouteError(f"No route serves the model {model!r}", cure=f"Ask for one of: {known}")
        return route
