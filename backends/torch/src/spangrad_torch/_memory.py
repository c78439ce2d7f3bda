"""Giving freed memory back to the system.

The sampler and the learner work in threads of their own, and glibc keeps what each thread has freed for that thread. Without
this, the two would hold their greatest needs side by side although they never have them at once.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from functools import cache
from typing import Any


def release_freed() -> None:
    """Returns freed memory of all threads to the system, where the C library can do so (glibc); does nothing elsewhere."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any | None:
    """glibc's malloc_trim; None with another C library."""
    name = ctypes.util.find_library("c")
    return getattr(ctypes.CDLL(name), "malloc_trim", None) if name else None
