"""How fast recorded rollouts become transitions: `extract` against Agent Lightning 0.3's TracerTraceToTriplet.

python benchmarks/extract.py --json

Both are given the same calls, spans and rewards, as each one's own store holds them, and must find the same prompt ids, answer ids
and rewards before anything is timed. "in memory" begins with objects, "stored" with what is on the disk (ours: an SQLite file) or
comes over the wire (theirs: JSON).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import measuring
import peers
from traces import Recorded, Trace, as_plain, as_recorded, expected, make

from spangrad.store import Store, open_store
from spangrad.transitions import Extraction, extract

PEER: Final = "agentlightning-0.3"
CALLS: Final = (1, 8, 64)
OTHERS: Final = (0, 10, 50)
SPANS: Final = 600
"""About so many a case has in all its rollouts."""


def main() -> None:
    """The command."""
    chosen = measuring.parser(__doc__).parse_args()
    cases = [(calls, others) for calls in CALLS for others in OTHERS]
    if chosen.small:
        cases = cases[:2]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peer, theirs = None, None
        if not chosen.without_peers:
            peer = peers.installed(PEER)
            theirs = stack.enter_context(peers.Conversation(peer, "extract_agentlightning.py"))
        found = {
            f"{calls} calls, {others} other spans": _case(
                folder, calls, others, chosen.repeats, theirs, rollouts=2 if chosen.small else None
            )
            for calls, others in cases
        }
    result: dict[str, Any] = {"benchmark": "extract", "repeats": chosen.repeats, "cases": found}
    if peer is not None:
        for view in ("in memory", "stored"):
            result[f"lowest ratio, {view}"] = min(case[view]["ratio"]["median"] for case in found.values())
    result["versions"] = {"ours": measuring.our_versions(), "theirs": {} if peer is None else peer.versions}
    measuring.show(result | {"machine": measuring.machine()}, as_json=chosen.json)


def _case(
    folder: Path, calls: int, others: int, repeats: int, theirs: peers.Conversation | None, *, rollouts: int | None
) -> dict[str, Any]:
    """One size, in both views."""
    count = rollouts or max(2, SPANS // (2 * calls + others + 1))
    traces = [make(number, calls, others) for number in range(count)]
    recorded = [as_recorded(trace) for trace in traces]
    name = f"{calls}-{others}"
    store = open_store(folder / f"{name}.db")
    _save(store, recorded)
    _check("spangrad", traces, [_ours(extraction) for extraction in map(_extract, recorded)])
    _check("spangrad, stored", traces, [_ours(_extract(_read(store, one))) for one in recorded])
    if theirs is not None:
        path = folder / f"{name}.json"
        path.write_text(json.dumps([as_plain(trace) for trace in traces]), encoding="utf-8")
        answered = theirs.ask(do="load", path=str(path))
        _check("Agent Lightning", traces, [[tuple(row) for row in rollout] for rollout in answered])

    def stored() -> None:
        for one in recorded:
            _extract(_read(store, one))

    def in_memory() -> None:
        for one in recorded:
            _extract(one)

    found: dict[str, Any] = {"rollouts": count, "spans": sum(len(one.spans) for one in recorded)}
    for view, work in (("in memory", in_memory), ("stored", stored)):
        measures: dict[str, Callable[[], float]] = {"spangrad": lambda work=work: count / _seconds(work)}  # type: ignore[misc]
        if theirs is not None:
            measures["agentlightning"] = lambda view=view: count / theirs.ask(do="time", view=view)  # type: ignore[misc]
        figures = measuring.in_turns(repeats, measures)
        found[view] = {f"{who}, rollouts/s": measuring.summary(values) for who, values in figures.items()}
        if theirs is not None:
            found[view]["ratio"] = measuring.ratios(figures["spangrad"], figures["agentlightning"])
    store.close()
    return found


def _seconds(work: Callable[[], None], least: float = 0.1) -> float:
    """Seconds of the processor that the work takes, on average over as many times as fill the least time."""
    times, begun = 0, time.process_time()
    while (taken := time.process_time() - begun) < least or not times:
        work()
        times += 1
    return taken / times


def _extract(one: Recorded) -> Extraction:
    return extract(one.rollout, one.calls, one.rewards, one.spans)


def _save(store: Store, recorded: Sequence[Recorded]) -> None:
    for one in recorded:
        store.save_rollout(one.rollout)
        waiting = [store.submit_call(call) for call in one.calls]
        store.add_spans(one.spans)
        for reward in one.rewards:
            store.add_reward(reward)
        for future in waiting:
            future.result()


def _read(store: Store, one: Recorded) -> Recorded:
    """The rollout out of the store, as the training loop reads it."""
    rollout_id = one.rollout.rollout_id
    return Recorded(one.rollout, store.calls(rollout_id), store.rewards(rollout_id, 1), store.spans(rollout_id))


def _ours(extraction: Extraction) -> list[tuple[list[int], list[int], float | None]]:
    return [(list(t.prompt_ids), list(t.action_ids), t.reward) for t in extraction.transitions]


def _check(who: str, traces: Sequence[Trace], found: Sequence[Any]) -> None:
    """Ends the program unless the results are what was recorded."""
    for trace, rows in zip(traces, found, strict=True):
        if rows != expected(trace):
            sys.exit(f"{who} does not find the transitions of {trace.rollout_id} as they were recorded")


if __name__ == "__main__":
    main()
