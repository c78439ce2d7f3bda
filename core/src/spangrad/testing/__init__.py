"""Real parts without a model: a byte-level chat format, a sampler and a backend that follow a script, an endpoint with faults.

And the contract of integrations as tests to be subclassed, `IntegrationContract`; only that one needs pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spangrad.testing._byte_chat_format import ByteChatFormat
from spangrad.testing._contract._endpoint import ContractEndpoint
from spangrad.testing._contract._reference_run import REFERENCE, ReferenceRun, tool_call_text
from spangrad.testing._contract._subject import ContractSubject, Structure
from spangrad.testing._scripted_backend import (
    ScriptedBackend,
    ScriptedFactory,
    ScriptedLearner,
    ScriptedPolicy,
    arithmetic_script,
)
from spangrad.testing._scripted_endpoint import ReceivedRequest, ScriptedEndpoint
from spangrad.testing._scripted_sampler import Piece, Script, ScriptedPrompt, ScriptedSampler, scripted_logprob

if TYPE_CHECKING:
    from spangrad.testing._integration_contract import IntegrationContract

__all__ = [
    "REFERENCE",
    "ByteChatFormat",
    "ContractEndpoint",
    "ContractSubject",
    "IntegrationContract",
    "Piece",
    "ReceivedRequest",
    "ReferenceRun",
    "Script",
    "ScriptedBackend",
    "ScriptedEndpoint",
    "ScriptedFactory",
    "ScriptedLearner",
    "ScriptedPolicy",
    "ScriptedPrompt",
    "ScriptedSampler",
    "Structure",
    "arithmetic_script",
    "scripted_logprob",
    "tool_call_text",
]


def __getattr__(name: str) -> Any:
    if name == "IntegrationContract":
        from spangrad.testing._integration_contract import IntegrationContract  # noqa: PLC0415 - the only one that needs pytest

        return IntegrationContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
