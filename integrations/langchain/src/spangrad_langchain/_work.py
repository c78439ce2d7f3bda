"""The work that LangChain's callbacks tell of, recorded as spans of ours."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final
from uuid import UUID

from langchain_core.runnables.config import var_child_runnable_config

from spangrad import semconv
from spangrad.capture import CallSite, WorkRecorder, current_scope, current_site
from spangrad_langchain._naming import agent_in, given_name, is_part, node_in, place_in
from spangrad_langchain._outcome import is_abandonment, is_control_flow, successors, tool_error, tool_result
from spangrad_langchain._run import Run, Work

Metadata = Mapping[str, Any]

_model_run: Final[ContextVar[UUID | None]] = ContextVar("spangrad_langchain_model_run", default=None)
"""The model's run that last began in this context. It may be over: what ends it runs in a context of its own."""

_beginning: Final[ContextVar[bool]] = ContextVar("spangrad_langchain_beginning", default=False)
"""A piece of work is being begun, and only other frameworks are asked for what is around it: ours is known by its id."""


class RunWork(WorkRecorder):
    """Follows runs from their beginning to their end, inside rollouts only.

    Safe to call from any thread, and more than once for one run: several handlers may tell of it.
    """

    def __init__(self) -> None:
        super().__init__("spangrad.langchain")
        self._runs: dict[UUID, Run] = {}
        self._numbers = itertools.count()
        self._one_at_a_time = threading.RLock()

    def chain_started(
        self,
        run_id: UUID,
        parent: UUID | None,
        name: str,
        *,
        tags: Sequence[str] | None = None,
        metadata: Metadata | None = None,
        part: bool = False,
    ) -> None:
        """A chain, graph or node begins.

        Args:
            run_id: the run's.
            parent: the run around it.
            name: the run's.
            tags: the run's.
            metadata: the run's.
            part: it is a prompt, a parser or the like, which no agent is named after.
        """
        run = self._new(run_id, parent, name, metadata)
        if run is None:
            return
        node = node_in(name, tags, metadata)
        if node is not None and run.place != (run.up.place if run.up is not None else None):
            self._begin_node(run, node)
        elif run.is_agent:
            self._begin_agent(run)
        elif not run.sure and not part and given_name(name) is not None:
            run.agent, run.work = name, Work.AGENT_IF_USED

    def tool_started(
        self,
        run_id: UUID,
        parent: UUID | None,
        name: str,
        *,
        arguments: Any,
        call_id: str | None,
        metadata: Metadata | None = None,
    ) -> None:
        """A tool begins.

        Args:
            run_id: the run's.
            parent: the run around it.
            name: the tool's.
            arguments: what it was called with.
            call_id: of the model's tool call that it answers.
            metadata: the run's.
        """
        run = self._new(run_id, parent, name, metadata)
        if run is not None:
            said = {semconv.TOOL_NAME: name, semconv.TOOL_CALL_ID: call_id, semconv.TOOL_ARGUMENTS: arguments}
            self._begin(run, name, semconv.TOOL_OPERATION, said)

    def model_started(
        self, run_id: UUID, parent: UUID | None, name: str | None, *, metadata: Metadata | None = None
    ) -> None:
        """A model is about to be called.

        Args:
            run_id: the run's.
            parent: the run around it.
            name: given to this run; None when it has none of its own.
            metadata: the run's.
        """
        run = self._new(run_id, parent, name or "", metadata)
        if run is None:
            return
        if run.is_agent:
            self._begin_agent(run)
        elif not run.sure and name:
            run.agent, run.work = name, Work.AGENT_IF_USED
        _model_run.set(run_id)

    def passed_through(self, run_id: UUID, parent: UUID | None, metadata: Metadata | None = None) -> None:
        """Something begins that is no piece of work but may have some in it, such as a retriever."""
        self._new(run_id, parent, "", metadata)

    def ended(self, run_id: UUID, *, output: Any = None) -> None:
        """A run is over."""
        run = self._runs.pop(run_id, None)
        if run is not None and run.work is Work.BEGUN:
            if run.is_node and not run.handed_over:
                self._hand_over(run, successors(output))
            self.end(run_id)

    def tool_ended(self, run_id: UUID, *, output: Any) -> None:
        """A tool has answered."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            if targets := successors(output):
                self._hand_over(run, targets)
                node = next((outer for outer in run.outwards() if outer.is_node), run)
                node.handed_over = True
            self.end(run_id, error=tool_error(output), attributes={semconv.TOOL_RESULT: tool_result(output)})

    def failed(self, run_id: UUID, error: BaseException) -> None:
        """A run ends by an exception."""
        run = self._runs.pop(run_id, None)
        if run is None or run.work is not Work.BEGUN:
            return
        if is_control_flow(error):
            self.end(run_id)
        elif is_abandonment(error):
            self.end(run_id, attributes={semconv.INCOMPLETE: True})
        else:
            self.end(run_id, error=error)

    def here(self) -> CallSite | None:
        """The innermost piece of work the running code is in."""
        run = None if _beginning.get() else self._current()
        if run is None:
            return None
        self._begin_used(run)
        for outer in run.outwards():
            site = self.site(outer.id) if outer.work is Work.BEGUN else None
            if site is not None:
                return CallSite(site.span, run.agent or site.agent)
        return None

    def end_rollout(self, rollout_id: str, attempt: int) -> None:
        """See `WorkRecorder.end_rollout`."""
        super().end_rollout(rollout_id, attempt)
        for run in list(self._runs.values()):
            if run.rollout == (rollout_id, attempt):
                self._runs.pop(run.id, None)

    def forked(self) -> None:
        """See `WorkRecorder.forked`."""
        super().forked()
        self._one_at_a_time = threading.RLock()

    def _new(self, run_id: UUID, parent: UUID | None, name: str, metadata: Metadata | None) -> Run | None:
        """A run that begins, with what it inherits; None when it is known already or part of no rollout."""
        scope = current_scope()
        if scope is None or run_id in self._runs:
            return None
        rollout = (scope.rollout_id, scope.attempt)
        # Callbacks given to a call take the place of those around it, and with them its parent goes.
        up = self._runs.get(parent) if parent is not None else self._surrounding()
        if up is not None and up.rollout != rollout:
            up = None
        named = agent_in(metadata)
        is_agent = named is not None and (up is None or named != up.named)
        if is_agent or up is None:
            agent, sure = named, is_agent
        else:
            agent, sure = up.agent, up.sure
        place = place_in(metadata) or (up.place if up is not None else None)
        run = Run(run_id, name, up, rollout, next(self._numbers), place, named, agent, sure=sure, is_agent=is_agent)
        self._runs[run_id] = run
        return run

    def _begin_node(self, run: Run, node: str) -> None:
        graph = run.up
        if run.is_agent or (graph is not None and graph.is_agent):
            pass  # by its own metadata, or one of the nodes of an agent made by `create_agent`
        elif not is_part(node):
            run.agent = node
        elif graph is not None and given_name(graph.name) is not None:
            run.agent = graph.agent = graph.name
            if graph.work is Work.NONE:
                graph.work = Work.AGENT_IF_USED
        elif not run.sure:
            run.agent = node
        run.sure = run.is_node = True
        self._begin(run, node, semconv.NODE_OPERATION, {semconv.NODE: node})

    def _begin_agent(self, run: Run) -> None:
        self._begin(run, run.agent or run.name, semconv.AGENT_OPERATION)

    def _begin(self, run: Run, name: str, operation: str, said: Metadata | None = None) -> None:
        above = self._begin_used(run.up)
        attributes = {semconv.FRAMEWORK_RUN_ID: str(run.id), **(said or {})}
        run.work = Work.BEGUN
        asking = _beginning.set(True)
        try:
            if above is not None and self._is_inside_another(above):
                above = None  # the recorder then finds that one by itself
            self.begin(run.id, name, operation=operation, parent=above, agent=run.agent, attributes=attributes)
        finally:
            _beginning.reset(asking)

    def _is_inside_another(self, key: UUID) -> bool:
        """Whether another framework's work has begun in the running code since a piece of ours."""
        ours, theirs = self.site(key), current_site()
        return ours is not None and theirs is not None and (theirs.span.start_time or 0) > (ours.span.start_time or 0)

    def _begin_used(self, run: Run | None) -> UUID | None:
        """Begins the agents around some work that have waited for it; returns the innermost work that has a span."""
        if run is None:
            return None
        with self._one_at_a_time:
            for outer in reversed(list(run.outwards())):
                if outer.work is Work.AGENT_IF_USED and outer.id in self._runs:
                    self._begin(outer, outer.agent or outer.name, semconv.AGENT_OPERATION)
        return next((outer.id for outer in run.outwards() if self.site(outer.id) is not None), None)

    def _hand_over(self, run: Run, targets: Iterable[str]) -> None:
        for target in targets:
            key = (run.id, target)
            said = {semconv.HANDOFF_TARGET: target}
            self.begin(
                key, target, operation=semconv.HANDOFF_OPERATION, parent=run.id, agent=run.agent, attributes=said
            )
            self.end(key)

    def _current(self) -> Run | None:
        """The run that the running code is in: the model's, or that whose function it is, whichever began later."""
        model = _model_run.get()
        found = (self._runs.get(model) if model is not None else None, self._surrounding())
        return max((run for run in found if run is not None), key=lambda run: run.number, default=None)

    def _surrounding(self) -> Run | None:
        """The run whose function the running code is in."""
        config = var_child_runnable_config.get()
        run_id = getattr(config.get("callbacks"), "parent_run_id", None) if config else None
        return self._runs.get(run_id) if run_id is not None else None


WORK: Final = RunWork()
"""The only one in the process, so that a run told of twice, by two handlers, is recorded once."""
