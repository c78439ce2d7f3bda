"""Writing the ledger once rollouts have ended: of all of them, and of a step that ended by an error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spangrad.errors import SpangradError
from spangrad.training._session import Session
from spangrad.training._step_rollouts import StepRollouts
from spangrad.transitions import Call, LedgerEntry, Reason, entry_of, leftovers


def settle(session: Session, entries: Iterable[LedgerEntry], step: int) -> list[LedgerEntry]:
    """Writes the ledger of a finished collection, so that every call there is has its row.

    Args:
        session: the run; none of its rollouts is under way, but those of a later step.
        entries: what became of the collection's calls.
        step: the training step they belong to.

    Returns:
        The rows of calls that belong to no collected rollout: orphans, and calls made after their rollout had ended.
    """
    session.store.add_ledger([replace(entry, step=step) for entry in entries])
    rest = leftovers(
        [call for call in session.store.unsettled_calls() if not _is_of_a_later_step(session, call, step)], step
    )
    if rest:
        session.store.add_ledger(rest)
    return rest


def settle_given_up(session: Session, rollouts: StepRollouts, step: int, error: SpangradError) -> None:
    """Writes why no call of the step was trained on. A run that goes on does the step again and replaces these rows.

    Args:
        session: the run's.
        rollouts: those of the step, all of which have ended.
        step: its number, from 1.
        error: what it ended by.

    Raises:
        StoreError: the ledger cannot be written.
    """
    why = f"the step was given up, and is done again with --resume: {error.what}"
    rows = [entry_of(transition, step, Reason.STEP_GIVEN_UP, why) for transition in rollouts.batch.transitions]
    collection = rollouts.collection
    settle(session, [*collection.excluded, *rollouts.discarded, *collection.annotated(rows)], step)


def _is_of_a_later_step(session: Session, call: Call, step: int) -> bool:
    record = None if call.rollout_id is None else session.store.rollout(call.rollout_id)
    return record is not None and record.phase == "train" and record.step is not None and record.step > step
