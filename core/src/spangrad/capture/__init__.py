"""Knows which rollout the running code belongs to, and keeps the spans it makes."""

from spangrad.capture._agent_state import AgentState, checked_score, checked_state, current_state, enter_state
from spangrad.capture._child import child_environment
from spangrad.capture._environment import KEY_VARIABLE, URL_VARIABLE, scope_from_environment, scope_to_environment
from spangrad.capture._handle import Rollout
from spangrad.capture._ids import problem_of_id
from spangrad.capture._infrastructure import is_infrastructure
from spangrad.capture._late_results import LateResults
from spangrad.capture._reward_list import GivenReward, RewardDoor, RewardList
from spangrad.capture._reward_value import named_rewards, reward_value
from spangrad.capture._rollout import RolloutBlock, rollout
from spangrad.capture._scope import RewardSink, RolloutScope, current_scope, use_scope
from spangrad.capture._site import CallSite, Probe, add_probe, current_site
from spangrad.capture._tracing import SpanSink, deliver_spans, flush_spans, tracer_provider
from spangrad.capture._work import WorkRecorder, end_work

__all__ = [
    "KEY_VARIABLE",
    "URL_VARIABLE",
    "AgentState",
    "CallSite",
    "GivenReward",
    "LateResults",
    "Probe",
    "RewardDoor",
    "RewardList",
    "RewardSink",
    "Rollout",
    "RolloutBlock",
    "RolloutScope",
    "SpanSink",
    "WorkRecorder",
    "add_probe",
    "checked_score",
    "checked_state",
    "child_environment",
    "current_scope",
    "current_site",
    "current_state",
    "deliver_spans",
    "end_work",
    "enter_state",
    "flush_spans",
    "is_infrastructure",
    "named_rewards",
    "problem_of_id",
    "reward_value",
    "rollout",
    "scope_from_environment",
    "scope_to_environment",
    "tracer_provider",
    "use_scope",
]
