"""Draws a request's answers at a pool, from seat to seat where it has to be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from spangrad.backend import SampleDelta, SampleRequest, ServedModel
from spangrad.errors import BackendError
from spangrad.gateway import EngineError
from spangrad_vllm._answer import Answer
from spangrad_vllm._pool import Pool
from spangrad_vllm._server import Seat
from spangrad_vllm._together import together

_MOST_FAILURES: Final = 3
"""In turn, without a token in between: then it is the request that servers cannot answer."""
_SERVERS_FAULT: Final = 500

Emit = Callable[[SampleDelta], None]


async def draw(
    pool: Pool, model: ServedModel, policy: str | None, request: SampleRequest, *, context: int, emit: Emit
) -> None:
    """Draws all choices of a request.

    Args:
        pool: the servers.
        model: what they serve.
        policy: whose answers; None for the model as it was loaded.
        request: what to draw.
        context: most tokens of a prompt and its answer.
        emit: is given what has been drawn, as it comes.

    Raises:
        BackendError: the request cannot be answered.
    """
    room = context - len(request.prompt_ids)
    if not request.prompt_ids or room < 1:
        raise BackendError(
            f"The prompt has {len(request.prompt_ids)} tokens, and the servers' context holds {context} with the answer",
            cure="Shorten the conversation, or raise context",
        )
    most = min(request.params.max_tokens, room)
    answers = [
        Answer(request, choice, decode=model.decode, end_ids=model.end_ids, most=most)
        for choice in range(request.choices)
    ]
    await together([_draw_one(pool, policy, answer, emit) for answer in answers])


async def _draw_one(pool: Pool, policy: str | None, answer: Answer, emit: Emit) -> None:
    """Draws one answer to its end."""

    async def read(seat: Seat) -> None:
        async with aclosing(seat.server.sampler(seat.name).sample(answer.rest())) as deltas:
            async for piece in deltas:
                if (delta := answer.add(piece, seat.version)) is not None:
                    emit(delta)
                if answer.finished:
                    return
        raise EngineError(f"The server {seat.server.url} ended an answer without saying why", status=502)

    failures = 0
    while not answer.finished:
        before = answer.drawn
        async with pool.seat(policy, answer.rest().prompt_ids) as seat:
            try:
                await pool.read(seat, read)
            except EngineError as error:
                if error.status < _SERVERS_FAULT:
                    raise BackendError(error.what, cure=error.cure) from error
                failures = 1 if answer.drawn > before else failures + 1
                if failures > _MOST_FAILURES:
                    raise BackendError(f"{error.what} (tried {failures} times)", cure=error.cure) from error
                pool.doubt(seat.server)
