"""Which names in LangChain's runs are names of agents. Pure functions.

The agent of a model call is, from the innermost run outwards, the first of:

1. the name in the metadata `lc_agent_name`, where it begins: `create_agent(name=...)` sets it, and so may anybody;
2. the name of the LangGraph node. The nodes inside a prebuilt agent (`model`, `agent`, `tools`, the hooks of middleware) name a
   part of an agent, so there it is the graph's own name, or else the agent that the graph is part of, or else the node's name;
3. outside of graphs and agents, the name given to a chain or to the call itself (`run_name`, or the function's name).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_PARTS: Final = frozenset(
    {"model", "agent", "tools", "generate_structured_response", "pre_model_hook", "post_model_hook"}
)
"""Nodes of `create_agent` and `create_react_agent`."""
_MIDDLEWARE: Final = frozenset({"before_agent", "before_model", "after_model", "after_agent"})
"""What follows the dot in the names of the nodes that `create_agent` makes for middleware."""
_STEP_TAG: Final = "graph:step:"
_ENTRY: Final = "__start__"
"""Stands for the graph's input, and runs only where edges from it have to be chosen."""


def agent_in(metadata: Mapping[str, Any] | None) -> str | None:
    """The agent's name in a run's metadata, which inner runs inherit."""
    name = (metadata or {}).get("lc_agent_name")
    return name if isinstance(name, str) and name else None


def place_in(metadata: Mapping[str, Any] | None) -> str | None:
    """Where in which graphs a run is: LangGraph's path of nodes, a new one for each time a node runs."""
    place = (metadata or {}).get("langgraph_checkpoint_ns")
    return place if isinstance(place, str) else None


def node_in(name: str, tags: Sequence[str] | None, metadata: Mapping[str, Any] | None) -> str | None:
    """The node that a run may be: to be so it must also be in another place than the run around it.

    Args:
        name: the run's.
        tags: the run's.
        metadata: the run's.
    """
    node = (metadata or {}).get("langgraph_node")
    if not isinstance(node, str) or node == _ENTRY:
        return None
    return node if node == name or any(tag.startswith(_STEP_TAG) for tag in tags or ()) else None


def is_part(node: str) -> bool:
    """Whether a node of this name is a part of an agent, rather than one itself."""
    return node in _PARTS or node.rpartition(".")[2] in _MIDDLEWARE


def given_name(name: str | None) -> str | None:
    """A chain's or graph's name where somebody chose it; None for those that LangChain gives to what has none."""
    return None if not name or name == "LangGraph" or name.startswith(("Runnable", "__")) else name
