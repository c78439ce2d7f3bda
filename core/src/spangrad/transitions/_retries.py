"""Which HTTP attempt of a request answered the agent.

Client libraries repeat a request that failed or took too long. The engine may have answered several of the attempts; the
agent saw one answer at most, and only that one was an action.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from spangrad.transitions._call import Call, CallStatus


def superseded_by(calls: Sequence[Call], delivered: AbstractSet[str]) -> Mapping[str, str]:
    """Which calls another HTTP attempt of the same request took the place of.

    Attempts with one request key belong together: the one whose answer is known to have reached the agent counts, else the
    last one, since a client that repeats a request did not take the answer before (not even when the repetition failed).
    Without a request key, a call that says it is retry k repeats an earlier call with an equal body that was retry k - 1:
    a failed one if there is any, else the latest one that was answered.

    Args:
        calls: the calls of one attempt of a rollout.
        delivered: ids of calls whose answer is known to have reached the agent; they are never superseded.

    Returns:
        Call id -> id of the call that took its place.
    """
    by_request: dict[str, list[Call]] = defaultdict(list)
    keyless: list[Call] = []
    for call in sorted(calls, key=lambda call: (call.retry, call.received_at, call.call_id)):
        if call.request_key in {"", call.call_id}:
            keyless.append(call)
        else:
            by_request[call.request_key].append(call)
    replaced: dict[str, str] = {}
    for attempts in by_request.values():
        proven = [call for call in attempts if call.call_id in delivered]
        winner = (proven or attempts)[-1]
        replaced.update({call.call_id: winner.call_id for call in attempts if call is not winner})
    replaced.update(_repetitions(keyless))
    return {loser: winner for loser, winner in replaced.items() if loser not in delivered}


def _repetitions(calls: Sequence[Call]) -> Mapping[str, str]:
    """Pairs each retry without a request key with the call it repeats; `calls` in order of retry, then of time."""
    replaced: dict[str, str] = {}
    for retry in (call for call in calls if call.retry > 0):
        candidates = [
            call
            for call in calls
            if call.retry == retry.retry - 1
            and call.received_at <= retry.received_at
            and call.call_id not in replaced
            and call.request == retry.request
        ]
        if candidates:
            repeated = max(candidates, key=lambda call: (call.status is not CallStatus.OK, call.received_at))
            replaced[repeated.call_id] = retry.call_id
    return replaced
