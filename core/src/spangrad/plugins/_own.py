"""The plug-ins that belong to spangrad but are installed apart, so that asking for a missing one can name the cure."""

from __future__ import annotations

OWN = {
    "autogen": ("integration", "autogen"),
    "langchain": ("integration", "langchain"),
    "openai": ("integration", "openai"),
    "openai-agents": ("integration", "openai-agents"),
    "torch": ("backend", "torch"),
    "verl": ("backend", "verl"),
    "vllm": ("sampler", "vllm"),
}
"""Name of the plug-in -> what it brings, and the extra of the distribution `spangrad` that installs it."""


def pip_line(name: str) -> str | None:
    """How to install our plug-in of that name; None when it is not one of ours."""
    return f'pip install "spangrad[{OWN[name][1]}]"' if name in OWN else None
