"""Errors as OpenAI's clients expect them: the HTTP status picks their exception class, the body carries message and code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Send

from spangrad.gateway._engine import EngineError

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_SERVER_ERROR: Final = 500


def error_body(error: EngineError) -> dict[str, Any]:
    """The JSON body of an error: {"error": {"message", "type", "param", "code"}}."""
    kind = _TYPES.get(error.status, "server_error" if error.status >= _SERVER_ERROR else "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


async def send_json(
    send: Send, body: Any, request_id: str = "", status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Sends a whole JSON response.

    Args:
        send: the ASGI channel.
        body: what to send.
        request_id: goes into the header `x-request-id`, which OpenAI's clients show in errors.
        status: HTTP status.
        headers: further headers.
    """
    data = to_json(body)
    head = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
    if request_id:
        head["x-request-id"] = request_id
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": data, "more_body": False})


def error_response(error: EngineError) -> Response:
    """The same as a Starlette response."""
    return json_response(error_body(error), status=error.status, headers=error.headers)


def json_response(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(to_json(body), status_code=status, headers=headers, media_type="application/json")
