"""Telling an agent's own errors from those of what it depends on."""

from __future__ import annotations

from spangrad.errors import InfrastructureError


def is_infrastructure(error: BaseException | None) -> bool:
    """Whether an `InfrastructureError` is the error, its stated cause (`raise ... from ...`), or among a group's errors."""
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, InfrastructureError):
            return True
        seen.add(id(one))
        left += [one.__cause__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]
    return False
