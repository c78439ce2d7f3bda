"""Real parts without a model: a byte-level chat format, a sampler and a backend that follow a script, an endpoint with faults."""

from spangrad.testing._byte_chat_format import ByteChatFormat
from spangrad.testing._scripted_backend import ScriptedBackend, ScriptedFactory, ScriptedLearner, arithmetic_script
from spangrad.testing._scripted_endpoint import ReceivedRequest, ScriptedEndpoint
from spangrad.testing._scripted_sampler import Piece, Script, ScriptedPrompt, ScriptedSampler, scripted_logprob

__all__ = [
    "ByteChatFormat",
    "Piece",
    "ReceivedRequest",
    "Script",
    "ScriptedBackend",
    "ScriptedEndpoint",
    "ScriptedFactory",
    "ScriptedLearner",
    "ScriptedPrompt",
    "ScriptedSampler",
    "arithmetic_script",
    "scripted_logprob",
]
