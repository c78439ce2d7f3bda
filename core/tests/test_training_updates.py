"""A step's report becomes update batches: whole groups, what each compares with, and nothing that is stale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spangrad.backend import UpdateBatch
from spangrad.lightningrl import AdvantageReport, DrGRPO, Identical, LightningRL
from spangrad.testing import ScriptedBackend
from spangrad.training import load_config
from spangrad.training._loss import loss_settings
from spangrad.training._staleness import without_stale
from spangrad.training._updates import update_batches
from spangrad.transitions import Reason, TransitionBatch

OUTSIDE = "policy.endpoint=http://127.0.0.1:8000/v1"
SEVERAL = "training.updates_per_step=2"
STEP_START = 'algorithm.proximal="step_start"'


async def batches_of(folder: Path, report: AdvantageReport, *overrides: str) -> list[UpdateBatch]:
    """The batches of a step under a train.toml with some overrides."""
    path = folder / "train.toml"
    path.write_text('[agent]\nrun = "a:b"\n[tasks]\ntrain = "t.jsonl"\n[training]\nsteps = 1\n')
    loaded = load_config(path, overrides)
    learner = ScriptedBackend(lambda _: "x").policies["policy"].learner
    return await update_batches(loaded.config, loss_settings(loaded), learner, report, policy="policy", step=1)


@pytest.fixture
def report(make_transition_batch: Callable[..., TransitionBatch]) -> AdvantageReport:
    """Of three tasks with two rollouts each, one call a rollout."""
    batch = make_transition_batch([(f"task-{n // 2}", float(n % 2), [n + 1]) for n in range(6)])
    return LightningRL(Identical(), DrGRPO()).compute(batch)


def groups(batch: UpdateBatch) -> list[str]:
    return [transition.group_id for transition in batch.transitions.transitions]


async def test_one_update_takes_everything_and_compares_with_the_present_weights(
    tmp_path: Path, report: AdvantageReport
) -> None:
    (batch,) = await batches_of(tmp_path, report)
    assert groups(batch) == ["task-0", "task-0", "task-1", "task-1", "task-2", "task-2"]
    assert batch.proximal == "present"
    assert batch.advantages.tolist() == [-0.5, 0.5] * 3


async def test_several_updates_share_whole_groups_and_weigh_as_one(tmp_path: Path, report: AdvantageReport) -> None:
    (whole,) = await batches_of(tmp_path, report)
    (first, second) = await batches_of(tmp_path, report, SEVERAL)
    assert (groups(first), groups(second)) == (["task-0"] * 2 + ["task-1"] * 2, ["task-2"] * 2)
    assert [first.proximal, second.proximal] == ["recorded", "recorded"]
    assert np.concatenate([first.token_weights, second.token_weights]) == pytest.approx(2 * whole.token_weights)


async def test_decoupled_updates_compare_with_the_weights_before_the_first_of_them(
    tmp_path: Path, report: AdvantageReport
) -> None:
    (first, second) = await batches_of(tmp_path, report, SEVERAL, STEP_START, OUTSIDE)
    assert first.proximal == "present"
    assert [list(row) for row in second.proximal] == [[-1.0] * 5, [-1.0] * 6]


@pytest.mark.parametrize(
    ("overrides", "proximal"),
    [
        ((OUTSIDE,), "recorded"),
        ((OUTSIDE, 'algorithm.corrections=["truncated_is"]'), "present"),
        ((OUTSIDE, 'algorithm.loss="reinforce"'), "present"),
    ],
)
async def test_what_another_server_sampled_is_compared_with_or_corrected(
    tmp_path: Path, report: AdvantageReport, overrides: tuple[str, ...], proximal: str
) -> None:
    (batch,) = await batches_of(tmp_path, report, *overrides)
    assert batch.proximal == proximal


async def test_nothing_to_train_on_makes_no_batch(tmp_path: Path, report: AdvantageReport) -> None:
    nothing = report.without_update(Reason.BATCH_FAILED)
    for overrides in ((), (SEVERAL, STEP_START, OUTSIDE)):
        assert await batches_of(tmp_path, nothing, *overrides) == []


def aged(report: AdvantageReport, versions: Sequence[int]) -> AdvantageReport:
    rows = zip(report.batch.transitions, versions, strict=True)
    return replace(report, batch=TransitionBatch(tuple(replace(row, policy_version=version) for row, version in rows)))


def test_what_is_older_than_the_bound_is_left_out_and_counted(report: AdvantageReport) -> None:
    old = aged(report, [7, 8, 9, 10, 6, 10])
    kept = without_stale(old, {"policy": 10}, 2)
    assert [reason.value for reason in kept.reasons] == ["stale", "trained", "trained", "trained", "stale", "trained"]
    assert kept.advantages.tolist() == [0.0, 0.5, -0.5, 0.5, 0.0, 0.5]
    assert kept.token_weights.tolist() == (report.token_weights * [0, 1, 1, 1, 0, 1]).tolist()
    assert {name: kept.metrics[name] for name in ("stale", "trained_transitions", "trained_rollouts")} == {
        "stale": 2,
        "trained_transitions": 4,
        "trained_rollouts": 4,
    }
    assert kept.metrics["return_mean"] == report.metrics["return_mean"]
    assert kept.warnings[-1] == ("2 of 6 calls were answered by a policy more than 2 versions old and were left out")
    (entry, *_) = kept.ledger(1)
    assert (entry.fate.value, entry.reason, "versions older" in entry.detail) == ("dropped", Reason.STALE, True)


def test_a_call_that_is_left_out_anyway_keeps_its_own_reason(report: AdvantageReport) -> None:
    old = aged(replace(report, reasons=(Reason.TOO_LONG, *report.reasons[1:])), [0] * 6)
    kept = without_stale(old, {"policy": 10}, 2)
    assert [reason.value for reason in kept.reasons] == ["too_long", *["stale"] * 5]
    assert kept.metrics["stale"] == 5


def test_without_a_bound_or_anything_old_all_stays_as_it_is(report: AdvantageReport) -> None:
    assert without_stale(aged(report, [0] * 6), {"policy": 10}, None).reasons == report.reasons
    fresh = without_stale(report, {"policy": 2}, 2)
    assert (fresh.reasons, fresh.warnings) == (report.reasons, report.warnings)
    assert fresh.metrics["stale"] == 0


def test_an_empty_step_has_nothing_stale() -> None:
    empty = LightningRL(Identical(), DrGRPO()).compute(TransitionBatch(()))
    assert without_stale(empty, {"policy": 3}, 0).metrics["stale"] == 0


async def test_the_scripted_learner_knows_the_recorded_log_probabilities(report: AdvantageReport) -> None:
    found = await ScriptedBackend(lambda _: "x").policies["policy"].learner.logprobs(report.batch)
    assert [row.tolist() for row in found] == [list(row.logprobs) for row in report.batch.transitions]
