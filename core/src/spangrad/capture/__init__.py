"""Knows which rollout the running code belongs to, and keeps the spans it makes."""

from spangrad.capture._environment import KEY_VARIABLE, URL_VARIABLE, scope_from_environment, scope_to_environment
from spangrad.capture._handle import Rollout
from spangrad.capture._reward_list import GivenReward, RewardList
from spangrad.capture._reward_value import reward_value
from spangrad.capture._rollout import RolloutBlock, rollout
from spangrad.capture._scope import RewardSink, RolloutScope, current_scope, use_scope
from spangrad.capture._tracing import SpanSink, deliver_spans, flush_spans, tracer_provider

__all__ = [
    "KEY_VARIABLE",
    "URL_VARIABLE",
    "GivenReward",
    "RewardList",
    "RewardSink",
    "Rollout",
    "RolloutBlock",
    "RolloutScope",
    "SpanSink",
    "current_scope",
    "deliver_spans",
    "flush_spans",
    "reward_value",
    "rollout",
    "scope_from_environment",
    "scope_to_environment",
    "tracer_provider",
    "use_scope",
]
