"""Hooks spangrad into LangChain and LangGraph. Importing this imports no framework; attaching does."""

from spangrad_langchain._integration import LangChainIntegration

__all__ = ["LangChainIntegration"]
