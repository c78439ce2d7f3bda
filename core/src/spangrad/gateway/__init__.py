"""The HTTP server agents talk to: OpenAI's chat completions and responses in, exact token ids into the store."""

from spangrad.gateway._access import RolloutAccess, RolloutTally, SamplingOverride
from spangrad.gateway._address import Address
from spangrad.gateway._append_only import append_only, append_only_note
from spangrad.gateway._endpoint_engine import EndpointEngine
from spangrad.gateway._endpoint_sampler import EndpointSampler
from spangrad.gateway._engine import Engine, EngineDelta, EngineError, EngineRequest
from spangrad.gateway._gateway import Gateway
from spangrad.gateway._response_format import told_messages
from spangrad.gateway._routes import Route, RouteTable
from spangrad.gateway._shown_tools import shown_tools
from spangrad.gateway._state import IdCount
from spangrad.gateway._token_engine import TokenEngine

__all__ = [
    "Address",
    "EndpointEngine",
    "EndpointSampler",
    "Engine",
    "EngineDelta",
    "EngineError",
    "EngineRequest",
    "Gateway",
    "IdCount",
    "RolloutAccess",
    "RolloutTally",
    "Route",
    "RouteTable",
    "SamplingOverride",
    "TokenEngine",
    "append_only",
    "append_only_note",
    "shown_tools",
    "told_messages",
]
