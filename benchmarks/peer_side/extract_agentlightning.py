"""Runs in the environment of agentlightning 0.3: recorded rollouts become its spans, and these its triplets.

Questions: {"do": "load", "path": ...} answers the prompt ids, answer ids and rewards found; {"do": "time", "view": "in memory" or
"stored"} the seconds of the processor that all rollouts take.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from agentlightning.adapter import TracerTraceToTriplet
from agentlightning.types import Span, Triplet

LEAST = 0.1
"""Seconds to measure for."""


class Extraction:
    """Rollouts in both views, and the adapter with its defaults."""

    def __init__(self, path: str) -> None:
        rollouts = json.loads(Path(path).read_text(encoding="utf-8"))
        self._spans = [
            [_span(rollout, span, index) for index, span in enumerate(rollout["spans"])] for rollout in rollouts
        ]
        self._stored = [[span.model_dump_json() for span in spans] for spans in self._spans]
        self._adapter = TracerTraceToTriplet()

    def results(self, view: str) -> list[list[Any]]:
        """(prompt ids, answer ids, reward) of each call of each rollout."""
        triplets = self._in_memory() if view == "in memory" else self._from_json()
        return [[[t.prompt["token_ids"], t.response["token_ids"], t.reward] for t in rollout] for rollout in triplets]

    def seconds(self, view: str) -> float:
        """Of the processor, on average over as many times as fill the least time."""
        work = self._in_memory if view == "in memory" else self._from_json
        times, begun = 0, time.process_time()
        while (taken := time.process_time() - begun) < LEAST or not times:
            work()
            times += 1
        return taken / times

    def _in_memory(self) -> list[list[Triplet]]:
        return [self._adapter.adapt(spans) for spans in self._spans]

    def _from_json(self) -> list[list[Triplet]]:
        return [self._adapter.adapt([Span.model_validate_json(span) for span in spans]) for spans in self._stored]


def _span(rollout: dict[str, Any], span: dict[str, Any], index: int) -> Span:
    name, attributes = span["name"], span["attributes"]
    if span["reward"] is not None:
        name = "agentlightning.annotation"
        attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": span["reward"]}
    return Span.from_attributes(
        attributes=attributes,
        rollout_id=rollout["rollout_id"],
        attempt_id="attempt",
        sequence_id=index,
        name=name,
        trace_id=rollout["trace_id"],
        span_id=span["span_id"],
        parent_id=span["parent_id"],
        start_time=span["start"],
        end_time=span["end"],
    )


def main() -> None:
    """Answers until nothing more is asked."""
    logging.disable(logging.WARNING)
    extraction: Extraction | None = None
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "load":
            extraction = Extraction(question["path"])
            answer: Any = extraction.results("stored")
            if answer != extraction.results("in memory"):
                sys.exit("The two views differ")
        else:
            assert extraction is not None  # noqa: S101 - loaded first
            answer = extraction.seconds(question["view"])
        print(json.dumps({"answer": answer}), flush=True)


if __name__ == "__main__":
    main()
