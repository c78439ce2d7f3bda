"""How many rollouts of a step failed, by kind, and what was done about each."""

from __future__ import annotations

from collections import Counter

from spangrad.store import Store
from spangrad.training._collection import Collection
from spangrad.transitions import kind_of

RETRIED = "retried"


def failure_figures(store: Store, collection: Collection) -> dict[str, dict[str, int]]:
    """Kind of failure -> what was done -> how often; kinds that did not occur are left out.

    An attempt that was followed by another counts as retried, one that was cut short with its run among them.

    Args:
        store: holds the earlier attempts.
        collection: the step's rollouts.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for result, extraction in zip(collection.results, collection.extractions, strict=True):
        if extraction.handling is not None:
            counts[extraction.handling.kind.value, extraction.handling.done.value] += 1
        for number in range(1, result.record.attempt):
            earlier = store.rollout(result.record.rollout_id, number)
            kind = None if earlier is None else kind_of(earlier.status)
            if kind is not None:
                counts[kind.value, RETRIED] += 1
    figures: dict[str, dict[str, int]] = {}
    for (kind_name, done), count in sorted(counts.items()):
        figures.setdefault(kind_name, {})[done] = count
    return figures
