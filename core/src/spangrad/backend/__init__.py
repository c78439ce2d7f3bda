"""The contract between spangrad and whatever samples and updates a model."""

from spangrad.backend._protocols import (
    Backend,
    BackendFactory,
    Capabilities,
    ChatFormat,
    FinishReason,
    Learner,
    LossSettings,
    Message,
    ParsedAnswer,
    SampleDelta,
    Sampler,
    SampleRequest,
    SamplingParams,
    UpdateBatch,
    UpdateReport,
)

__all__ = [
    "Backend",
    "BackendFactory",
    "Capabilities",
    "ChatFormat",
    "FinishReason",
    "Learner",
    "LossSettings",
    "Message",
    "ParsedAnswer",
    "SampleDelta",
    "SampleRequest",
    "Sampler",
    "SamplingParams",
    "UpdateBatch",
    "UpdateReport",
]
