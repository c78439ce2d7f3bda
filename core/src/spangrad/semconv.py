"""Attribute and header names, as plain strings.

The GenAI conventions are still under development and their Python constants are deprecated release by release, so the
strings we rely on are written out here: `gen_ai.*` follows semantic-conventions-genai v0.1.0, `spangrad.*` is ours.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/0.1.0"

# GenAI semantic conventions
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
SYSTEM: Final = "gen_ai.system"
"""Deprecated in favour of `gen_ai.provider.name`; AutoGen and older instrumentors still emit it."""
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
AGENT_NAME: Final = "gen_ai.agent.name"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
AGENT_OPERATION: Final = "invoke_agent"
TOOL_OPERATION: Final = "execute_tool"
ERROR_TYPE: Final = "error.type"

# Our own attributes
ROLLOUT_ID: Final = "spangrad.rollout.id"
ATTEMPT: Final = "spangrad.attempt"
TASK_ID: Final = "spangrad.task.id"
CALL_ID: Final = "spangrad.call.id"
REQUEST_KEY: Final = "spangrad.request.key"
POLICY_VERSION: Final = "spangrad.policy.version"

NODE: Final = "spangrad.node"
"""Node of a graph or step of a workflow."""
FRAMEWORK_RUN_ID: Final = "spangrad.framework.run_id"
"""The framework's own id of a piece of work."""
HANDOFF_TARGET: Final = "spangrad.handoff.target"
"""The agent that takes over."""
GUARDRAIL_TRIGGERED: Final = "spangrad.guardrail.triggered"
"""Whether a guardrail's tripwire was triggered."""
INCOMPLETE: Final = "spangrad.incomplete"
"""True on a span that was still open when its rollout ended."""
NODE_OPERATION: Final = "invoke_node"
"""`gen_ai.operation.name` of a node's span; the conventions have none for it."""
HANDOFF_OPERATION: Final = "handoff"
"""`gen_ai.operation.name` of a handoff's span; the conventions have none for it."""

# HTTP headers between an agent's client and the gateway
ROLLOUT_HEADER: Final = "x-spangrad-rollout"
ATTEMPT_HEADER: Final = "x-spangrad-attempt"
CALL_HEADER: Final = "x-spangrad-call"
"""Unique per HTTP attempt: a retry of the same request carries a new one."""
REQUEST_HEADER: Final = "x-spangrad-request"
"""Equal for all HTTP attempts of one request the agent made."""
AGENT_HEADER: Final = "x-spangrad-agent"
"""Percent-encoded where it is not plain ASCII."""
STATE_HEADER: Final = "x-spangrad-state"
"""What the agent calls the state of its environment; percent-encoded likewise."""
SCORE_HEADER: Final = "x-spangrad-score"
"""How far along the agent is in that state, as a decimal number."""
RETRY_HEADER: Final = "x-stainless-retry-count"
"""Sent by the openai clients: 0 for the first HTTP attempt of a request."""
