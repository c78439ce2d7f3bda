"""A learner whose worker is verl's own, in this process: steps, reference, checkpoint, publishing and export."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backends.verl.tests.transitions import batch, some, transition

from spangrad.backend import KlTerm, LossSettings
from spangrad.errors import BackendError, CheckpointError
from spangrad.transitions import TransitionBatch

pytestmark = pytest.mark.verl

ROWS = some(4)
Made = Callable[..., Any]
LORA = {"actor_rollout_ref.model": {"lora_rank": 4, "lora_alpha": 8}}


@pytest.mark.parametrize("temperature", [None, 1.0, 0.5], ids=["of each call", "1", "0.5"])
async def test_log_probabilities_are_those_of_plain_transformers_at_the_temperature_of_the_call(
    temperature: float | None, make_learner: Made, model_folder: Path
) -> None:
    from transformers import AutoModelForCausalLM

    learner, *_ = make_learner()
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    given = ROWS.transitions if temperature is None else [replace(t, temperature=temperature) for t in ROWS.transitions]
    rows = TransitionBatch(tuple(given))

    found = await learner.logprobs(rows)

    for row, values in zip(rows.transitions, found, strict=True):
        logits = model(torch.tensor([row.prompt_ids + row.action_ids])).logits / row.temperature
        wanted = logits.log_softmax(-1)[0, len(row.prompt_ids) - 1 : -1].gather(
            1, torch.tensor(row.action_ids)[:, None]
        )
        np.testing.assert_allclose(values, wanted[:, 0].detach().numpy(), atol=2e-5)


async def test_a_step_moves_the_probabilities_as_the_advantages_say(make_learner: Made) -> None:
    learner, *_ = make_learner()
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    before = await learner.logprobs(ROWS)

    for _ in range(3):
        report = await learner.update(batch(ROWS, advantages=signs, token_weights=np.full(4, 0.25), learning_rate=3e-3))

    after = await learner.logprobs(ROWS)
    assert [float(np.sign((a - b).sum())) for a, b in zip(after, before, strict=True)] == signs.tolist()
    assert report.tokens == sum(len(t.action_ids) for t in ROWS.transitions)
    assert report.grad_norm > 0
    assert {"mismatch_kl", "verl/ppo_kl", "clip_fraction", "step_seconds"} <= set(report.metrics)


async def test_micro_batches_of_a_fixed_size_give_the_same_step(make_learner: Made) -> None:
    """Of four rows in threes, two are there once more to fill up, and weigh nothing."""
    fixed = {"actor_rollout_ref.actor": {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 3}}
    one, other = [await make_learner(**options)[0].update(batch(ROWS)) for options in ({}, fixed)]

    assert other.loss == pytest.approx(one.loss, rel=1e-5)
    assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    assert other.metrics["mismatch_kl"] == pytest.approx(one.metrics["mismatch_kl"], rel=1e-5)
    assert other.computed_tokens > one.computed_tokens


async def test_a_batch_without_a_gradient_takes_no_step(make_learner: Made) -> None:
    learner, _, served = make_learner()

    report = await learner.update(batch(ROWS, advantages=np.zeros(4)))

    assert report.metrics["optimizer_steps"] == 0
    assert await learner.publish() == 0
    assert served.weights == {}


async def test_a_call_that_is_too_long_is_named(make_learner: Made) -> None:
    learner, *_ = make_learner()
    long = TransitionBatch((transition(7, [1] * 200, [5] * 100),))

    with pytest.raises(BackendError, match="c7 has 300 tokens, more than the 256"):
        await learner.update(batch(long))


async def test_a_kl_term_without_a_reference_is_refused(make_learner: Made) -> None:
    learner, *_ = make_learner()

    with pytest.raises(BackendError, match="no reference"):
        await learner.update(batch(ROWS, loss=LossSettings(kl=KlTerm("k3", 0.1))))


async def test_the_kl_to_a_frozen_reference_is_0_until_the_weights_have_moved(make_learner: Made) -> None:
    learner, *_ = make_learner()
    loss = LossSettings(kl=KlTerm("k2", 0.1))
    await learner.freeze_reference()

    first = await learner.update(batch(ROWS, loss=loss, learning_rate=1e-2))
    second = await learner.update(batch(ROWS, loss=loss, learning_rate=1e-2))

    assert abs(first.metrics["reference_kl"]) < 1e-9
    assert second.metrics["reference_kl"] > 1e-6


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
async def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(
    adapter: dict[str, Any], make_learner: Made, tmp_path: Path
) -> None:
    loss = LossSettings(kl=KlTerm("k3", 0.1))
    learner, *_ = make_learner(**adapter)
    await learner.update(batch(ROWS))
    await learner.freeze_reference()
    await learner.update(batch(ROWS))
    await learner.save(tmp_path / "checkpoint")
    wanted = await learner.update(batch(ROWS, loss=loss))
    after = await learner.logprobs(ROWS)

    other, _, served = make_learner(**adapter)
    await other.load(tmp_path / "checkpoint")
    version = served.policy_version
    found = await other.update(batch(ROWS, loss=loss))

    assert version == 2
    assert found.loss == pytest.approx(wanted.loss, rel=1e-5)
    assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-5)
    assert found.metrics["reference_kl"] == pytest.approx(wanted.metrics["reference_kl"], rel=1e-4)
    for values, other_values in zip(after, await other.logprobs(ROWS), strict=True):
        np.testing.assert_allclose(values, other_values, atol=2e-5)


async def test_a_checkpoint_that_lost_a_file_is_refused(make_learner: Made, tmp_path: Path) -> None:
    learner, *_ = make_learner()
    await learner.save(tmp_path / "checkpoint")
    next((tmp_path / "checkpoint").glob("optim_*")).unlink()

    with pytest.raises(CheckpointError, match=r"optim_world_size_1_rank_0\.pt is missing"):
        await learner.load(tmp_path / "checkpoint")


async def test_a_checkpoint_with_a_damaged_file_is_refused(make_learner: Made, tmp_path: Path) -> None:
    learner, *_ = make_learner()
    await learner.save(tmp_path / "checkpoint")
    next((tmp_path / "checkpoint").glob("optim_*")).write_bytes(b"nothing of a pickle")

    with pytest.raises(CheckpointError, match="is damaged: verl cannot read it"):
        await learner.load(tmp_path / "checkpoint")


async def test_a_checkpoint_of_other_training_is_refused(make_learner: Made, tmp_path: Path) -> None:
    learner, *_ = make_learner()
    await learner.save(tmp_path / "checkpoint")
    other, *_ = make_learner(**LORA)

    with pytest.raises(CheckpointError, match=r"all weights of .* but this run trains adapters of rank 4"):
        await other.load(tmp_path / "checkpoint")


async def test_published_and_exported_weights_are_the_trained_ones(make_learner: Made, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    learner, worker, served = make_learner()
    await learner.update(batch(ROWS, learning_rate=1e-2))
    assert await learner.publish() == 1
    await learner.export(tmp_path / "model")

    trained = {name: weight.full_tensor() for name, weight in worker.engine.module.named_parameters()}
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for name, weight in exported.named_parameters():
        torch.testing.assert_close(weight.detach(), trained[name].detach(), rtol=0, atol=0)
        torch.testing.assert_close(served.weights[name], trained[name].detach(), rtol=0, atol=0)
    assert {"config.json", "tokenizer.json"} <= served.files
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template


async def test_an_adapter_is_published_as_peft_saves_one_and_exported_merged(
    make_learner: Made, model_folder: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    learner, _, served = make_learner(**LORA)
    for _ in range(2):  # after the first step only the second matrices are other than 0
        await learner.update(batch(ROWS, learning_rate=1e-2))
    await learner.publish()
    await learner.export(tmp_path / "model")

    assert {"adapter_config.json", "adapter_model.safetensors"} <= served.files
    assert all("lora_" in name for name in served.weights)
    original, merged = (AutoModelForCausalLM.from_pretrained(folder) for folder in (model_folder, tmp_path / "model"))
    row = replace(ROWS.transitions[0], temperature=1.0)
    ids = torch.tensor([row.prompt_ids + row.action_ids])
    found = (await learner.logprobs(TransitionBatch((row,))))[0]
    picked = torch.tensor(row.action_ids)[:, None]
    values, before = (
        model(ids).logits.log_softmax(-1)[0, len(row.prompt_ids) - 1 : -1].gather(1, picked)[:, 0].detach().numpy()
        for model in (merged, original)
    )
    np.testing.assert_allclose(found, values, atol=1e-4)
    assert np.abs(values - before).max() > 1e-3


async def test_forgotten_moments_make_the_next_step_a_first_step(make_learner: Made) -> None:
    learner, worker, _ = make_learner()
    await learner.update(batch(ROWS))
    assert worker.engine.optimizer.state

    await learner.restart_optimizer()

    assert not worker.engine.optimizer.state
    await learner.update(batch(ROWS))
    assert {int(state["step"]) for state in worker.engine.optimizer.state.values()} == {1}


async def test_the_record_of_a_checkpoint_says_what_it_is_of(make_learner: Made, tmp_path: Path) -> None:
    learner, *_ = make_learner()
    await learner.update(batch(ROWS))
    await learner.save(tmp_path / "checkpoint")

    record = json.loads((tmp_path / "checkpoint" / "learner.json").read_text(encoding="utf-8"))

    assert record == {
        "format": 1,
        "policy_version": 1,
        "steps": 1,
        "training": "all weights of a model of type llama by verl",
        "workers": 1,
    }
