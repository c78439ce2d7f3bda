"""Hooks spangrad into AutoGen. Importing this imports no framework; attaching does."""

from spangrad_autogen._integration import AutoGenIntegration

__all__ = ["AutoGenIntegration"]
