"""Leaving out what a policy of long ago has answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from spangrad.lightningrl import AdvantageReport
from spangrad.transitions import Reason


def without_stale(report: AdvantageReport, versions: Mapping[str, int], max_staleness: int | None) -> AdvantageReport:
    """The same report without an update from transitions that are too old.

    They keep their place in the statistics, and the others their weights: a term that is left out counts as 0, as it does
    for calls that are too long.

    Args:
        report: of a step.
        versions: of the policies that are about to be updated, by name.
        max_staleness: most versions that a transition's policy may be older; None for any.
    """
    if max_staleness is None:
        return report
    ages = np.array([versions[t.policy] - t.policy_version for t in report.batch.transitions], dtype=np.int64)
    stale = report.trained & (ages > max_staleness)
    left = report.leaving_out(stale, Reason.STALE)
    metrics = {**left.metrics, "stale": int(stale.sum())}
    if not stale.any():
        return replace(left, metrics=metrics)
    warning = (
        f"{int(stale.sum())} of {len(ages)} calls were answered by a policy more than {max_staleness} versions old "
        "and were left out"
    )
    return replace(left, metrics=metrics, warnings=(*report.warnings, warning))
