"""The ledger of a step that ended by an error before it was trained on."""

from __future__ import annotations

from spangrad.errors import SpangradError
from spangrad.training._collection import settle
from spangrad.training._session import Session
from spangrad.training._step_rollouts import StepRollouts
from spangrad.transitions import Reason, left_out


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
    rows = [left_out(transition, step, Reason.STEP_GIVEN_UP, why) for transition in rollouts.batch.transitions]
    collection = rollouts.collection
    settle(session, [*collection.excluded, *rollouts.discarded, *collection.annotated(rows)], step)
