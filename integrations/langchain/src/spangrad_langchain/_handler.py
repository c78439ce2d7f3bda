"""LangChain's own way in: callback handlers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from spangrad_langchain._probe import PROBE
from spangrad_langchain._work import WORK

if TYPE_CHECKING:
    from langchain_core.documents import Document
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult


class RunEvents(BaseCallbackHandler):
    """Tells `WORK` of everything that LangChain tells its handlers."""

    # Called where the model is called: elsewhere, what it puts into the context would not reach the request.
    run_inline = True

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: dict[str, Any],  # noqa: ARG002 - the parameters' names, here and below, are upstream's
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A chain, graph, node, prompt or parser begins."""
        name = _name(kwargs, serialized) or ""
        part = kwargs.get("run_type") not in {None, "chain"}
        WORK.chain_started(run_id, parent_run_id, name, tags=tags, metadata=metadata, part=part)

    def on_chain_end(
        self,
        outputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """It ends."""
        WORK.ended(run_id, output=outputs)

    def on_chain_error(
        self,
        error: BaseException,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """It ends by an exception."""
        WORK.failed(run_id, error)

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,  # noqa: ARG002
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A tool begins."""
        name = _name(serialized, kwargs) or "tool"  # the tool's own goes before one that only this run was given
        arguments = input_str if inputs is None else inputs
        call_id = kwargs.get("tool_call_id")
        WORK.tool_started(run_id, parent_run_id, name, arguments=arguments, call_id=call_id, metadata=metadata)

    def on_tool_end(
        self,
        output: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """It ends."""
        WORK.tool_ended(run_id, output=output)

    def on_tool_error(
        self,
        error: BaseException,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """It ends by an exception."""
        WORK.failed(run_id, error)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,  # noqa: ARG002
        messages: list[list[BaseMessage]],  # noqa: ARG002
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,  # noqa: ARG002
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A chat model is about to be called."""
        WORK.model_started(run_id, parent_run_id, kwargs.get("name"), metadata=metadata)

    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,  # noqa: ARG002
        prompts: list[str],  # noqa: ARG002
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,  # noqa: ARG002
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A model that completes text is about to be called."""
        WORK.model_started(run_id, parent_run_id, kwargs.get("name"), metadata=metadata)

    def on_llm_end(
        self,
        response: LLMResult,  # noqa: ARG002
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,  # noqa: ARG002
        tags: list[str] | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """It has answered, or its answer was in a cache."""
        WORK.ended(run_id)

    def on_llm_error(
        self,
        error: BaseException,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,  # noqa: ARG002
        tags: list[str] | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """It ends by an exception."""
        WORK.failed(run_id, error)

    def on_retriever_start(
        self,
        serialized: dict[str, Any] | None,  # noqa: ARG002
        query: str,  # noqa: ARG002
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,  # noqa: ARG002
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """A retriever begins, which may call models."""
        WORK.passed_through(run_id, parent_run_id, metadata)

    def on_retriever_end(
        self,
        documents: Sequence[Document],  # noqa: ARG002
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """It ends."""
        WORK.ended(run_id)

    def on_retriever_error(
        self,
        error: BaseException,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """It ends by an exception."""
        WORK.failed(run_id, error)


class SpangradCallbackHandler(RunEvents):
    """Records the agents, nodes, tools and handoffs of rollouts; for programs that give it to LangChain themselves.

    One serves all rollouts, and several, given anywhere, record nothing twice: neither does one beside `LangChainIntegration`.
    Outside a rollout it does nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        weakref.finalize(self, PROBE.attach())


def _name(*sources: dict[str, Any] | None) -> str | None:
    """The first name that is given."""
    names = ((source or {}).get("name") for source in sources)
    return next((name for name in names if name and isinstance(name, str)), None)
