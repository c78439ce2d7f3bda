"""Hooks spangrad into plain openai clients. Importing this imports no openai; attaching does."""

from spangrad_openai._integration import OpenAIIntegration

__all__ = ["OpenAIIntegration"]
