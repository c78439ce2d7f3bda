"""What an update came to: in the metrics and beside the progress bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spangrad.backend import UpdateReport
from spangrad.lightningrl import AdvantageReport


def update_figures(policy: str, report: UpdateReport) -> dict[str, Any]:
    """As they stand in metrics.jsonl."""
    return {
        "policy": policy,
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "tokens": report.tokens,
        "computed_tokens": report.computed_tokens,
        **report.metrics,
    }


def shown_figures(updates: Sequence[tuple[str, UpdateReport]], report: AdvantageReport) -> dict[str, str]:
    """As the display shows them for a step."""
    figures = {
        "groups": f"{report.metrics['groups']:.0f}",
        "without variance": f"{report.metrics['zero_variance_groups']:.0f}",
    }
    if not updates:
        return {**figures, "update": "none"}
    return {**figures, "grad norm": " ".join(f"{update.grad_norm:.2f}" for _, update in updates)}
