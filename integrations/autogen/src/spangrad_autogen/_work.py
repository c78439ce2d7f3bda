"""What is recorded of agents, teams and tools: when a call is a piece of work of its own, and what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spangrad import semconv
from spangrad_autogen._frame import RECORDER, Frame, current_frame, inside, new_frame
from spangrad_autogen._wrappers import Hook

CONTAINER: Final = "autogen_agentchat.teams._group_chat._chat_agent_container.ChatAgentContainer"
MANAGER: Final = "autogen_agentchat.teams._group_chat._base_group_chat_manager.BaseGroupChatManager"


def bases(cls: type) -> set[str]:
    """Full names of a class and all its bases."""
    return {f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__}


def _owned(operation: str, owner: object) -> Frame | None:
    """The frame of an agent's or team's call: the one under way where it is the owner's already, else a new one."""
    frame = current_frame()
    if frame is not None and frame.owner is owner:
        return frame
    name = str(getattr(owner, "name", None) or type(owner).__name__)
    attributes = {semconv.NODE: name} if operation == semconv.NODE_OPERATION else {}
    return new_frame(operation, name, owner=owner, attributes=attributes)


def _agent(arguments: Mapping[str, Any]) -> Frame | None:
    return _owned(semconv.AGENT_OPERATION, arguments["self"])


def _team(arguments: Mapping[str, Any]) -> Frame | None:
    return _owned(semconv.NODE_OPERATION, arguments["self"])


def _answer(frame: Frame, item: Any) -> None:
    """Notes a handoff in an agent's answer: the last message of a `TaskResult`, or that of a `Response`."""
    from autogen_agentchat.base import Response, TaskResult  # noqa: PLC0415 - there is an agent, so it is loaded
    from autogen_agentchat.messages import HandoffMessage  # noqa: PLC0415 - as above

    if isinstance(item, TaskResult):
        message: object = item.messages[-1] if item.messages else None
    else:
        message = item.chat_message if isinstance(item, Response) else None
    if not isinstance(message, HandoffMessage):
        return
    called = frame.handoffs[0] if frame.handoffs else {}
    handoff = object()
    with inside(frame):
        RECORDER.begin(
            handoff,
            message.target,
            operation=semconv.HANDOFF_OPERATION,
            attributes={**called, semconv.HANDOFF_TARGET: message.target},
        )
    RECORDER.end(handoff, attributes={semconv.TOOL_RESULT: message.content})


def _tool(name: str, call_id: str | None, arguments: object) -> Frame | None:
    """The frame of a tool's call: the one under way where that is the same call seen from further out, else a new one."""
    frame = current_frame()
    if frame is not None and frame.operation in {semconv.TOOL_OPERATION, semconv.HANDOFF_OPERATION}:
        same = call_id == frame.call_id if call_id else name == frame.name
        if same:
            return frame
    attributes = {semconv.TOOL_NAME: name, semconv.TOOL_CALL_ID: call_id, semconv.TOOL_ARGUMENTS: arguments}
    return new_frame(semconv.TOOL_OPERATION, name, call_id=call_id, attributes=attributes)


def _run_json(arguments: Mapping[str, Any]) -> Frame | None:
    return _tool(arguments["self"].name, arguments.get("call_id"), arguments["args"])


def _returned(frame: Frame, value: Any) -> None:
    dump = getattr(value, "model_dump_json", None)
    frame.attributes[semconv.TOOL_RESULT] = dump() if callable(dump) else value


def _call_tool(arguments: Mapping[str, Any]) -> Frame | None:
    return _tool(arguments["name"], arguments.get("call_id"), arguments.get("arguments") or {})


def _tool_result(frame: Frame, item: Any) -> None:
    from autogen_core.tools import ToolResult  # noqa: PLC0415 - importing this package must not import AutoGen

    if isinstance(item, ToolResult):
        _outcome(frame, item.to_text(), is_error=item.is_error)


def _execute_tool_call(arguments: Mapping[str, Any]) -> Frame | None:
    call = arguments["tool_call"]
    if not any(tool.name == call.name for tool in arguments["handoff_tools"]):
        return _tool(call.name, call.id, call.arguments)
    called = {
        semconv.TOOL_NAME: call.name,
        semconv.TOOL_CALL_ID: call.id,
        semconv.TOOL_ARGUMENTS: call.arguments,
    }
    # Whether it takes effect, and who takes over, is in the agent's answer: the span is made there.
    frame = new_frame(semconv.HANDOFF_OPERATION, call.name, call_id=call.id, lazy=True, attributes=called)
    if frame is not None and frame.parent is not None:
        frame.parent.handoffs.append(called)
    return frame


def _executed(frame: Frame, pair: Any) -> None:
    _, result = pair
    _outcome(frame, result.content, is_error=result.is_error)


def _outcome(frame: Frame, text: str, *, is_error: bool | None) -> None:
    frame.attributes[semconv.TOOL_RESULT] = text
    # Of an error that was caught on the way the exception itself is known; without one there is only the text.
    frame.error = (frame.caught or text) if is_error else None


def _message(arguments: Mapping[str, Any]) -> Frame | None:
    """An agent of the core API is handed a message."""
    agent = arguments["self"]
    names = bases(type(agent))
    if CONTAINER in names:
        return None  # it hands on to an agent of a team, which has a frame of its own
    name = getattr(agent, "_name", agent.id.type) if MANAGER in names else agent.id.type
    # Lazy, for a runtime hands most messages to agents that have nothing to do with them.
    return new_frame(
        semconv.AGENT_OPERATION,
        name,
        owner=agent,
        runtime=agent.runtime,
        lazy=True,
        attributes={semconv.FRAMEWORK_RUN_ID: str(agent.id)},
    )


_AGENT_METHODS: Final[Mapping[str, Hook]] = {
    "on_messages": Hook(frozenset({"self", "messages", "cancellation_token"}), _agent, _answer),
    "on_messages_stream": Hook(frozenset({"self", "messages", "cancellation_token"}), _agent, _answer, streams=True),
    "run": Hook(frozenset({"self", "task"}), _agent, _answer),
    "run_stream": Hook(frozenset({"self", "task"}), _agent, _answer, streams=True),
    "_execute_tool_call": Hook(frozenset({"tool_call", "handoff_tools"}), _execute_tool_call, _executed),
}
_TEAM_METHODS: Final[Mapping[str, Hook]] = {
    "run": Hook(frozenset({"self", "task"}), _team),
    "run_stream": Hook(frozenset({"self", "task"}), _team, streams=True),
}
_TOOL_METHODS: Final[Mapping[str, Hook]] = {
    "run_json": Hook(frozenset({"self", "args", "cancellation_token"}), _run_json, _returned),
    "run_json_stream": Hook(frozenset({"self", "args", "cancellation_token"}), _run_json, _returned, streams=True),
}
_WORKBENCH_METHODS: Final[Mapping[str, Hook]] = {
    "call_tool": Hook(frozenset({"self", "name", "arguments"}), _call_tool, _tool_result),
    "call_tool_stream": Hook(frozenset({"self", "name", "arguments"}), _call_tool, _tool_result, streams=True),
}

METHODS: Final[Mapping[str, Mapping[str, Hook]]] = {
    "autogen_agentchat.base._chat_agent.ChatAgent": _AGENT_METHODS,
    "autogen_agentchat.base._team.Team": _TEAM_METHODS,
    "autogen_core.tools._base.BaseTool": _TOOL_METHODS,
    "autogen_core.tools._workbench.Workbench": _WORKBENCH_METHODS,
}
"""Base class -> method -> hook: of the base class and of every class below it that has the method as its own."""

MESSAGE: Final = Hook(frozenset({"self", "message", "ctx"}), _message)
"""`BaseAgent.on_message`."""
