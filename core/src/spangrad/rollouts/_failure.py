"""Saying in one line what user code raised, and where."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import FrameType
from typing import Final

_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def failure(who: str, error: BaseException) -> str:
    """What `who` raised, with the innermost line that is neither ours nor a library's."""
    if isinstance(error, SystemExit):
        said = f"{who} called sys.exit({error.code!r})"
    else:
        # Some frameworks put the traceback of what went wrong below into the message of what they raise.
        message = str(error).partition("\nTraceback")[0].strip()
        said = f"{who} raised {type(error).__name__}: {message}".removesuffix(": ")
    place = user_place(error)
    return f"{said} ({place})" if place else said


def blocked(who: str, by: str) -> str:
    """Why `who` could not end, through no fault of its own: others kept their common event loop from taking turns."""
    return f"{who} could not go on: the event loop of all async agents was blocked by {by}"


def no_call(orphans: int) -> str:
    """Why a rollout came to an end without a call.

    Args:
        orphans: calls that named no rollout and came while it ran; they may be its own, or those of one beside it.
    """
    if not orphans:
        return (
            "The agent ended without calling the model: its client must use OPENAI_BASE_URL or the rollout's base_url, not an "
            "address or answers of its own"
        )
    return (
        f"The agent made no call that names its rollout, and {orphans} that name none came while it ran: in one process, a "
        'client tells which rollout it calls for only with the integration (pip install "spangrad[openai]"), or where it is '
        "made with the rollout's base_url and api_key; or give the agent as a command line"
    )


def user_place(error: BaseException) -> str:
    """The place ("FILE, line N") of the innermost frame in the user's own code; empty when there is none."""
    places = [place for frame, line in traceback.walk_tb(error.__traceback__) if (place := users_line(frame, line))]
    return places[-1] if places else ""


def users_line(frame: FrameType, line: int) -> str:
    """The line of a frame as "FILE, line N"; empty where it is not the user's own code."""
    return f"{frame.f_code.co_filename}, line {line}" if _is_the_users(frame) else ""


def _is_the_users(frame: FrameType) -> bool:
    """Whether code is neither a library's, installed anywhere, nor ours, which may run from a checkout."""
    path, package = frame.f_code.co_filename, str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if package == "spangrad" or package.startswith("spangrad_"):
        return False
    return not path.startswith((*_LIBRARIES, "<")) and not {"site-packages", "dist-packages"} & set(Path(path).parts)
