"""The gateway's URLs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spangrad.errors import RouteError, StoreError
from spangrad.gateway._chat_wire import ChatDialect
from spangrad.gateway._engine import EngineError
from spangrad.gateway._errors import error_response
from spangrad.gateway._model_endpoint import ModelEndpoint
from spangrad.gateway._responses_dialect import ResponsesDialect
from spangrad.gateway._rollout_api import RolloutApi
from spangrad.gateway._span_api import SpanApi
from spangrad.gateway._state import GatewayState

_ATTEMPT = "/rollouts/{rollout_id:path}/attempts/{attempt:int}"
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")


def make_app(state: GatewayState, root: Callable[[], str]) -> Starlette:
    """The ASGI application.

    Args:
        state: what its handlers share.
        root: gives the gateway's URL, without a path.
    """
    rollouts, spans = RolloutApi(state, root), SpanApi(state)
    openai: list[tuple[str, str, Callable[..., Any]]] = [
        ("/v1/chat/completions", "POST", ModelEndpoint(state, ChatDialect())),
        ("/v1/responses", "POST", ModelEndpoint(state, ResponsesDialect())),
        ("/v1/models", "GET", rollouts.models),
        ("/v1/models/{model:path}", "GET", rollouts.models),
        ("/v1/traces", "POST", spans.receive),
    ]
    routes = [
        *(
            Route(prefix + path, handler, methods=[method])
            for path, method, handler in openai
            for prefix in ("", _ATTEMPT)
        ),
        Route(_ATTEMPT + "/v1/{path:path}", _unknown, methods=_METHODS),  # else taken for a rollout's id below
        Route("/health", rollouts.health, methods=["GET"]),
        Route("/rollouts", rollouts.open, methods=["POST"]),
        Route(_ATTEMPT + "/finish", rollouts.finish, methods=["POST"]),
        Route(_ATTEMPT + "/rewards", rollouts.reward, methods=["POST"]),
        Route("/rollouts/{rollout_id:path}", rollouts.show, methods=["GET"]),
    ]
    handlers: dict[Any, Callable[[Request, Any], Response]] = {
        EngineError: _engine_error,
        HTTPException: _http_error,
        RouteError: _route_error,
        StoreError: _store_error,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


async def _unknown(_request: Request) -> Response:
    raise HTTPException(404)


def _engine_error(_request: Request, error: EngineError) -> Response:
    return error_response(error)


def _http_error(request: Request, error: HTTPException) -> Response:
    what = f"There is no {request.method} {request.url.path} here"
    cure = "Models are called at POST /v1/chat/completions and POST /v1/responses"
    return error_response(EngineError(what, cure=cure, status=error.status_code, headers=error.headers))


def _route_error(_request: Request, error: RouteError) -> Response:
    return error_response(EngineError(error.what, cure=error.cure, status=404, code="model_not_found", param="model"))


def _store_error(_request: Request, error: StoreError) -> Response:
    return error_response(EngineError(error.what, cure=error.cure, status=500))
