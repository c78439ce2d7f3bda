"""Hooks spangrad into the OpenAI Agents SDK. Importing this imports no framework; attaching does."""

from spangrad_openai_agents._integration import OpenAIAgentsIntegration

__all__ = ["OpenAIAgentsIntegration"]
