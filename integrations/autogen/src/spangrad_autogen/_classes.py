"""The hooks in AutoGen's classes, and in the classes a program derives from them.

Agents, teams, tools and workbenches all derive from `ComponentBase`, and a program's own may override any of the methods that
matter. So every class below it is looked at: those there are and, through `__init_subclass__`, each new one as it is made.
That needs no import of autogen-agentchat, which may be absent, or half imported at this moment.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from autogen_core import ComponentBase

from spangrad.errors import PluginError
from spangrad.plugins import Replacements
from spangrad_autogen._shape import check
from spangrad_autogen._work import METHODS, bases
from spangrad_autogen._wrappers import SWITCH, Hook

_log = logging.getLogger("spangrad.autogen")

_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "autogen_agentchat.agents._assistant_agent.AssistantAgent": (
        "on_messages",
        "on_messages_stream",
        "_execute_tool_call",
    ),
    "autogen_agentchat.agents._base_chat_agent.BaseChatAgent": ("on_messages_stream", "run", "run_stream"),
    "autogen_agentchat.teams._group_chat._base_group_chat.BaseGroupChat": ("run", "run_stream"),
    "autogen_core.tools._base.BaseTool": ("run_json",),
    "autogen_core.tools._static_workbench.StaticWorkbench": ("call_tool",),
}
"""Methods that AutoGen's own classes must have, of a known shape."""


class ClassHooks:
    """The hooks in all classes, now and as long as they are applied."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._replacements = Replacements()
        self.problem = ""
        """Why a class made since could not be hooked."""

    def apply(self) -> None:
        """Hooks in.

        Raises:
            PluginError: a class of AutoGen's does not have the methods as expected, or another copy got there first.
        """
        with self._lock:
            if (ComponentBase, "__init_subclass__") not in self._replacements:
                self._replacements.make(ComponentBase, "__init_subclass__", self._watch())
            for cls in _below(ComponentBase):
                self._hook(cls)

    def revert(self) -> None:
        """Takes the hooks out."""
        with self._lock:
            self._replacements.undo()
            self.problem = ""

    def _watch(self) -> object:
        # AutoGen's may get one of its own some day.
        before = vars(ComponentBase).get("__init_subclass__")

        def watch(cls: type[ComponentBase[Any]], /, **kwargs: Any) -> None:
            if isinstance(before, classmethod):
                before.__func__(cls, **kwargs)
            else:
                super(ComponentBase, cls).__init_subclass__(**kwargs)
            if SWITCH.on:
                self._made(cls)

        return classmethod(watch)

    def _made(self, cls: type) -> None:
        """Hooks a class that has just come to be; the program that makes it is not to fail for it."""
        try:
            with self._lock:
                self._hook(cls)
        except PluginError as error:
            self.problem = error.what
            if os.environ.get("SPANGRAD_STRICT", "").strip().lower() in {"1", "true", "yes", "on"}:
                raise
            _log.warning("Agents, tools or teams of AutoGen are not recorded. %s", error)

    def _hook(self, cls: type) -> None:
        names = bases(cls)
        own = f"{cls.__module__}.{cls.__qualname__}"
        for base, methods in METHODS.items():
            if base not in names:
                continue
            for name, hook in methods.items():
                self._hook_method(cls, name, hook, required=name in _REQUIRED.get(own, ()))

    def _hook_method(self, cls: type, name: str, hook: Hook, *, required: bool) -> None:
        if (cls, name) in self._replacements:
            return
        if required:
            check(cls, name, hook)
        method = vars(cls).get(name)
        # What only says what others have to do is never run. A shape of the program's own making is left to the program.
        if method is None or getattr(method, "__isabstractmethod__", False) or not hook.fits(method):
            return
        self._replacements.make(cls, name, hook.wrap(cls, method))


def _below(cls: type) -> Iterator[type]:
    """All classes derived from `cls`, each once."""
    seen: set[type] = set()
    waiting: list[type] = list(cls.__subclasses__())
    while waiting:
        found = waiting.pop()
        if found not in seen:
            seen.add(found)
            waiting.extend(found.__subclasses__())
            yield found
