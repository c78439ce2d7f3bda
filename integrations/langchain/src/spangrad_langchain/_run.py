"""One run of LangChain: what a callback told of its beginning, and what follows from the runs around it."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID


class Work(enum.Enum):
    """Whether a run is a piece of work that has a span."""

    NONE = enum.auto()
    """It only passes on what is around it."""
    AGENT_IF_USED = enum.auto()
    """An agent, whose span begins with the first work in it: a named chain that calls no model is none."""
    BEGUN = enum.auto()
    """Its span has begun."""


@dataclass(eq=False, slots=True)
class Run:
    """A run that has begun and not ended."""

    id: UUID
    name: str
    up: Run | None
    """The run around it, in the same rollout."""
    rollout: tuple[str, int]
    number: int
    """They count up: of two runs the later has the higher one."""
    place: str | None
    """See `_naming.place_in`."""
    named: str | None
    """The agent in its metadata."""
    agent: str | None
    """The agent whose work it is."""
    sure: bool
    """That agent is one by its metadata or its node; otherwise a chain's name only stands in for want of a better."""
    work: Work = Work.NONE
    is_agent: bool = False
    """The agent in its metadata begins with it."""
    is_node: bool = False
    """It is one time that a node of a graph runs."""
    handed_over: bool = False
    """The handoff that its output tells of has been recorded already, with the tool that made it."""

    def outwards(self) -> Iterator[Run]:
        """It and the runs around it, the innermost first."""
        run: Run | None = self
        while run is not None:
            yield run
            run = run.up
