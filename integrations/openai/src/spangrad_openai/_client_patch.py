"""The two hooks in openai's base clients: one that stamps a request, one that notes which answer arrived.

`_prepare_options` runs once per HTTP attempt, retries included, and `_process_response` once per request, for the answer
the agent gets. Both are private, and both have kept their shape from openai 1.66 to 3.57; `check` compares the shape before
anything is patched.
"""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import Awaitable, Callable
from importlib.metadata import requires
from typing import Any

import openai
from openai._base_client import AsyncAPIClient, BaseClient, SyncAPIClient
from openai._models import FinalRequestOptions
from openai._types import Omit

from spangrad import semconv
from spangrad.capture import current_scope, current_site, current_state
from spangrad.errors import PluginError
from spangrad.plugins import Replacements
from spangrad_openai._call import note_answer
from spangrad_openai._identity import own_headers, own_url

MARK = "__spangrad__"
"""Set on each of our functions, so that no second copy of this package patches on top."""

_ANSWER_ARGUMENTS = frozenset({"cast_to", "options", "response", "stream", "stream_cls"})


class ClientPatch:
    """The hooks of the sync and the async base client."""

    def __init__(self) -> None:
        self._active = False
        self._replacements = Replacements()

    def apply(self) -> None:
        """Hooks in.

        Raises:
            PluginError: this openai does not have the methods as expected, or another copy of this package got there first.
        """
        wanted: list[tuple[type, str, Callable[[Callable[..., Any]], object]]] = [
            (SyncAPIClient, "_prepare_options", self._sync_prepare_options),
            (SyncAPIClient, "_process_response", self._sync_process_response),
            (AsyncAPIClient, "_prepare_options", self._async_prepare_options),
            (AsyncAPIClient, "_process_response", self._async_process_response),
        ]
        # What lies under somebody else's wrapper since the last time is still ours and only has to wake up.
        missing = [item for item in wanted if item[:2] not in self._replacements]
        for owner, name, _ in missing:
            check(owner, name)
        for owner, name, wrap in missing:
            self._replacements.make(owner, name, wrap(vars(owner)[name]))
        self._active = True

    def revert(self) -> None:
        """Takes the hooks out; those that somebody wrapped in the meantime stay where they are and do nothing."""
        self._active = False
        self._replacements.undo()

    def _sync_prepare_options(self, original: Callable[..., FinalRequestOptions]) -> object:
        @functools.wraps(original)
        def _prepare_options(client: Any, options: FinalRequestOptions) -> FinalRequestOptions:
            return self._stamped(client, original(client, options))

        return _marked(_prepare_options)

    def _async_prepare_options(self, original: Callable[..., Awaitable[FinalRequestOptions]]) -> object:
        @functools.wraps(original)
        async def _prepare_options(client: Any, options: FinalRequestOptions) -> FinalRequestOptions:
            return self._stamped(client, await original(client, options))

        return _marked(_prepare_options)

    def _sync_process_response(self, original: Callable[..., object]) -> object:
        @functools.wraps(original)
        def _process_response(client: Any, **arguments: Any) -> object:
            answer = original(client, **arguments)
            self._note_answer(arguments["response"])
            return answer

        return _marked(_process_response)

    def _async_process_response(self, original: Callable[..., Awaitable[object]]) -> object:
        @functools.wraps(original)
        async def _process_response(client: Any, **arguments: Any) -> object:
            answer = await original(client, **arguments)
            self._note_answer(arguments["response"])
            return answer

        return _marked(_process_response)

    def _stamped(self, client: BaseClient[Any, Any], options: FinalRequestOptions) -> FinalRequestOptions:
        """Gives one HTTP attempt the identity of the current rollout, if it is addressed to that rollout's gateway."""
        scope = current_scope() if self._active else None
        if scope is None:
            return options
        url = own_url(str(client._prepare_url(options.url)), scope)  # noqa: SLF001 - the client's own merging of URLs
        if url is None:
            return options
        if scope.agent is None and (site := current_site()) is not None:
            scope = scope.named(site.agent)
        # The client makes the key once per request, before its first attempt, for every method but GET.
        key = options.idempotency_key or f"spangrad-{uuid.uuid4()}"
        headers = options.headers if isinstance(options.headers, dict) else {}
        options.headers = own_headers(
            headers, scope, call_id=str(uuid.uuid4()), request_key=key, state=current_state(scope)
        )
        # openai 1 merges default headers by their exact spelling; one spelt differently would travel beside ours.
        for name in client.default_headers:
            if name.lower() == "authorization" and name != "Authorization":
                options.headers = {name: Omit(), **options.headers}
        options.url = url
        return options

    def _note_answer(self, response: Any) -> None:
        """Writes onto the call's span which HTTP attempt was answered to the agent."""
        headers = response.request.headers
        if not self._active or semconv.CALL_HEADER not in headers:
            return
        note_answer(
            {
                semconv.CALL_ID: headers[semconv.CALL_HEADER],
                semconv.REQUEST_KEY: headers[semconv.REQUEST_HEADER],
            }
        )


def check(owner: type, name: str) -> None:
    """Compares one method with the shape the patch relies on.

    Raises:
        PluginError: it is missing or has another shape, or carries another copy's patch.
    """
    method = vars(owner).get(name)
    where = f"openai {openai.__version__}: {owner.__name__}.{name}"
    if hasattr(method, MARK):
        raise PluginError(
            f"{where} is patched already, by another copy of spangrad-openai", cure="Install it only once"
        )
    if not callable(method):
        raise PluginError(f"{where} does not exist", cure=_version_cure())
    parameters = set(list(inspect.signature(method).parameters)[1:])
    fits = parameters == {"options"} if name == "_prepare_options" else parameters >= _ANSWER_ARGUMENTS
    if not fits or inspect.iscoroutinefunction(method) is not issubclass(owner, AsyncAPIClient):
        raise PluginError(
            f"{where} has another shape than spangrad-openai knows ({', '.join(sorted(parameters))})",
            cure=_version_cure(),
        )


def _version_cure() -> str:
    """The pip line for a supported openai, from our own metadata."""
    wanted = next((line for line in requires("spangrad-openai") or () if line.startswith("openai")), "openai")
    return f'pip install "{wanted}", or update spangrad-openai'


def _marked(function: Callable[..., object]) -> Callable[..., object]:
    setattr(function, MARK, "spangrad-openai")
    return function
