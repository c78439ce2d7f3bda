"""Knows which rollout the running code belongs to, and keeps the spans it makes."""

from spangrad.capture._scope import RewardSink, RolloutScope, current_scope, use_scope

__all__ = ["RewardSink", "RolloutScope", "current_scope", "use_scope"]
