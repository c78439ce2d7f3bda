"""An explanation as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spangrad.transitions import Reason

if TYPE_CHECKING:  # the explanation renders itself through this module
    from spangrad.store._explanation import ExplainedAttempt, ExplainedCall, Explanation
    from spangrad.store._work_tree import ExplainedWork

_WIDTH = 120
_UNDECODED = ", as ids, for the tokenizer of what answered is not known"


def render_explanation(explanation: Explanation, *, max_prompt_chars: int) -> str:
    """One block per attempt and call; no markup, no colour."""
    lines = [f"Rollout {explanation.rollout_id}"]
    for attempt in explanation.attempts:
        lines += ["", *_attempt_lines(attempt)]
        if attempt.work:
            lines += ["", "  What ran:", *(f"    {line}" for work in attempt.work for line in _work_lines(work))]
        for number, call in enumerate(attempt.calls, start=1):
            lines += ["", f"  Call {number} of {len(attempt.calls)}: {call.call_id}{_choice(call)}"]
            lines += [f"    {line}" for line in _call_lines(call, max_prompt_chars)]
    return "\n".join(lines)


def _attempt_lines(attempt: ExplainedAttempt) -> list[str]:
    step = "" if attempt.step is None else f", step {attempt.step}"
    unrewarded = attempt.phase == "collect" and attempt.status == "no_reward"  # where nothing was meant to be trained
    ended = "ended, not rewarded" if unrewarded else attempt.status
    lines = [f"Attempt {attempt.attempt}: {ended} ({attempt.phase}{step})"]
    lines.append(f"  task {attempt.task_id}, group {attempt.group_id}")
    if attempt.error:
        lines.append(f"  {'' if unrewarded else 'error: '}{attempt.error}")
    for reward in attempt.rewards:
        scope = "rollout" if reward.call_id is None else f"call {reward.call_id}"
        note = "" if reward.counted else "; counts for nothing: that call gave no transition"
        value = f"{_number(reward.value)}{_weight(reward.weight)}"
        lines.append(f"  reward {reward.name} = {value} for the {scope}, from {reward.source}{note}")
    if not attempt.rewards:
        lines.append("  no reward")
    if not attempt.calls:
        lines.append("  no call")
    return lines


def _weight(weight: float | None) -> str:
    """The factor of a reward, where it has one to speak of."""
    if weight is None:
        return " (no weight)"
    return "" if weight == 1 else f" x {_number(weight)}"


def _work_lines(work: ExplainedWork) -> list[str]:
    """A piece of work, indented by its depth, with what a tool got and gave below it."""
    call = f", call {work.call_id}" if work.call_id else ""
    unfinished = ", still under way when the rollout ended" if work.incomplete else ""
    lines = [f"{_shown(work.name)}{call}{unfinished}"]
    told = {"arguments": work.arguments, "result": work.result, "error": work.error}
    lines += [f"  {name}: {_shown(text)}" for name, text in told.items() if text is not None]
    return [f"{'  ' * work.depth}{line}" for line in lines]


def _shown(text: str) -> str:
    """Text in one line of readable length."""
    whole = "".join(map(_visible, text.replace("\n", " ")))
    return whole if len(whole) <= _WIDTH else f"{whole[:_WIDTH]}…"


def _choice(call: ExplainedCall) -> str:
    return f", choice {call.choice}" if call.choice else ""


def _call_lines(call: ExplainedCall, max_prompt_chars: int) -> list[str]:
    served = f"policy {call.policy} version {call.policy_version}" if call.policy else "not trained"
    if not call.policy and call.endpoint:  # without one, no model has that name
        served += f", {call.endpoint}"
    agent = f", agent {call.agent}" if call.agent else ""
    ended = f"{call.status}, finished by {call.finish_reason}" if call.finish_reason else call.status
    lines = [f"model {call.model} ({served}){agent}: {ended}"]
    lines.append(_fate(call))
    lines.append(
        f"reward {_number(call.reward)}, return {_number(call.episode_return)}, advantage {_number(call.advantage)}"
    )
    if call.state is not None:
        lines.append(f"state {_shown(call.state)}{'' if call.score is None else f', score {_number(call.score)}'}")
    if call.prompt_origin is not None:
        lines += call.prompt_origin.lines()
    lines += _prompt_lines(call, max_prompt_chars)
    lines += _action_lines(call)
    return lines


def _fate(call: ExplainedCall) -> str:
    if call.reason == Reason.NOT_IN_TRAINING.value:  # "dropped" would read as if something were wrong
        return f"not trained: {call.detail}"
    step = "" if call.step is None else f" in step {call.step}"
    why = "" if call.fate == call.reason else f": {call.reason}"
    return f"{call.fate}{step}{why}{f' ({call.detail})' if call.detail else ''}"


def _prompt_lines(call: ExplainedCall, limit: int) -> list[str]:
    if call.prompt_ids is None:
        return ["prompt: token ids unknown"]
    if not call.decoded:
        return [f"prompt, {len(call.prompt_ids)} tokens, mask 0{_UNDECODED}:", *_ids(call.prompt_ids, limit)]
    text = call.prompt_text
    hidden = max(0, len(text) - limit)
    note = f", the first {hidden} characters not shown" if hidden else ""
    return [f"prompt, {len(call.prompt_ids)} tokens, mask 0{note}:", *_quoted(text[hidden:])]


def _action_lines(call: ExplainedCall) -> list[str]:
    if call.action_ids is None:
        return ["sampled: token ids unknown", *_told(call)]
    mask = call.mask[-1] if call.action_ids else 0
    if not call.decoded:
        return [
            f"sampled, {len(call.action_ids)} tokens, mask {mask}{_UNDECODED}:",
            *_ids(call.action_ids, len(call.action_ids)),
            *_told(call),
        ]
    lines = [f"sampled, {len(call.action_ids)} tokens, mask {mask}:", *_quoted(call.action_text)]
    if call.logprobs and len(call.logprobs) == len(call.action_ids):
        pairs = [f"{piece!r} {value:.3f}" for piece, value in zip(call.action_pieces, call.logprobs, strict=True)]
        lines += ["log-probabilities:", *_wrapped(pairs)]
    return lines


def _told(call: ExplainedCall) -> list[str]:
    return ["answered:", *_quoted(call.answer)] if call.answer else []


def _ids(ids: Sequence[int], limit: int) -> list[str]:
    """Token ids behind a bar, the last `limit` of them."""
    hidden = max(0, len(ids) - limit)
    shown = _wrapped([str(token) for token in ids[hidden:]])
    return [f"  |{line[1:]}" for line in [*([f"  ... {hidden} more before"] if hidden else []), *shown]]


def _quoted(text: str) -> list[str]:
    """The text behind a bar, so that its line breaks cannot be mistaken for ours; a model's control characters are
    written out, so that they cannot reach the terminal.
    """
    return [f"  | {''.join(map(_visible, line))}" for line in text.split("\n")]


def _visible(character: str) -> str:
    return character if character.isprintable() or character == "\t" else repr(character)[1:-1]


def _wrapped(items: list[str]) -> list[str]:
    """The items, separated by commas, in lines of readable width; no item is broken."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 3 <= _WIDTH:
            lines[-1] += f", {item}"
        else:
            if lines:
                lines[-1] += ","
            lines.append(f"  {item}")
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
