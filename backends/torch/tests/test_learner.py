"""The learner moves the weights where the advantages say, exactly, or not at all."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spangrad.backend import KlTerm, LossSettings, TruncatedIS, UpdateBatch, UpdateReport
from spangrad.errors import BackendError, CheckpointError
from spangrad.transitions import Transition, TransitionBatch, pack_sequences
from spangrad_torch._forward import predict
from spangrad_torch._learner import TorchLearner
from spangrad_torch._model import LoadedModel, load_model
from spangrad_torch._options import LoraOptions, TorchOptions
from spangrad_torch._sampler import TorchSampler

PROMPT = (3, 4, 5)
GOOD, BAD = (6, 7, 8), (6, 9, 2)


class Rig:
    """A learner with the model and sampler it shares, on one thread."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.loaded: LoadedModel = load_model(folder)
        self.sampler = TorchSampler(self.loaded, threads=1)
        settings = TorchOptions(model=str(folder), **options)
        self.learner = TorchLearner(self.loaded, self.sampler, settings, threads=1, seed=5)

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.loaded.model.state_dict().items()}

    def logprob(self, *actions: tuple[int, ...]) -> list[float]:
        """Of each whole action after the prompt."""
        packed = pack_sequences([row(action) for action in actions], budget=1000)
        totals = torch.zeros(len(actions))
        with torch.no_grad():
            for pack in packed.packs:
                predictions = predict(self.loaded.model, pack, np.ones(len(pack.targets)))
                totals.index_add_(0, torch.from_numpy(pack.owners), predictions.logprobs)
        return totals.tolist()

    async def close(self) -> None:
        await self.learner.close()
        await self.sampler.close()


@pytest.fixture(params=[{}, {"adapter": "lora", "lora": {"rank": 4, "alpha": 8}}], ids=["full", "lora"])
async def rig(request: pytest.FixtureRequest, tiny_model_folder: Path) -> AsyncIterator[Rig]:
    rig = Rig(tiny_model_folder, **request.param)
    yield rig
    await rig.close()


@pytest.fixture
async def twin(request: pytest.FixtureRequest, rig: Rig, tiny_model_folder: Path) -> AsyncIterator[Rig]:
    """A second rig like the first."""
    twin = Rig(tiny_model_folder, **request.node.callspec.params["rig"])
    assert_same(twin, rig)
    yield twin
    await twin.close()


def row(action: tuple[int, ...], prompt: tuple[int, ...] = PROMPT, **changes: Any) -> Transition:
    logprobs = (-2.0,) * len(action)
    plain = Transition("r", 0, "g", "call-1", 0, 0, None, "p", 0, prompt, action, logprobs, 1.0, 1.0, 0, None, 0.0)
    return replace(plain, **changes)


def batch(rows: Sequence[Transition], advantages: Sequence[float], **settings: Any) -> UpdateBatch:
    weights = settings.pop("token_weights", [0.1] * len(rows))
    return UpdateBatch(
        transitions=TransitionBatch(tuple(rows)),
        learning_rate=settings.pop("learning_rate", 1e-2),
        advantages=np.array(advantages, dtype=np.float64),
        token_weights=np.array(weights, dtype=np.float64),
        **settings,
    )


CONTRAST = batch([row(GOOD), row(BAD)], [1.0, -1.0])


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_same(left: Rig, right: Rig) -> None:
    ours, theirs = left.weights(), right.weights()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


async def test_an_update_makes_good_actions_likelier_and_bad_ones_less_likely(rig: Rig) -> None:
    good, bad = rig.logprob(GOOD, BAD)
    report = await rig.learner.update(CONTRAST)
    better, worse = rig.logprob(GOOD, BAD)
    assert better - worse > good - bad
    # Three tokens of weight 0.1 each, advantages +1 and -1, ratio 1: the losses cancel.
    assert report.loss == pytest.approx(0.0, abs=1e-6)
    assert (report.tokens, report.computed_tokens) == (6, 6)  # 3 4 5 6 7 and 9 beside the 7
    assert report.metrics["flat_tokens"] == 10
    assert report.metrics["clip_fraction"] == report.metrics["approx_kl"] == 0.0
    assert report.grad_norm > 0


async def test_the_gradient_is_what_the_update_steps_down_and_moves_nothing(rig: Rig) -> None:
    before = rig.weights()
    found = await rig.learner.gradient(CONTRAST)
    assert [name for name, weight in rig.weights().items() if not torch.equal(weight, before[name])] == []
    # d (sum of 0.1 x -advantage x logprob) = -0.1 x (d logprob of GOOD - d logprob of BAD), each alone under plain attention.
    names = dict(rig.loaded.model.named_parameters())
    logits = rig.loaded.model(input_ids=torch.tensor([PROMPT + GOOD, PROMPT + BAD])).logits[:, 2:5].log_softmax(-1)
    good, bad = (logits[i].gather(1, torch.tensor(ids)[:, None]).sum() for i, ids in enumerate((GOOD, BAD)))
    (-0.1 * (good - bad)).backward()
    assert found
    for name, gradient in found.items():
        expected = names[name].grad
        assert expected is not None
        assert torch.allclose(gradient, expected, atol=1e-5), name
    rig.loaded.model.zero_grad()
    report = await rig.learner.update(CONTRAST)
    assert report.grad_norm == pytest.approx(float(sum(g.square().sum() for g in found.values())) ** 0.5, rel=1e-4)


async def test_imitation_makes_the_demonstrated_action_the_likeliest(rig: Rig) -> None:
    (before,) = rig.logprob(GOOD)
    first = await rig.learner.imitate(batch([row(GOOD)], [0.0]))
    assert first.metrics["nll"] == pytest.approx(-before / 3, abs=1e-5)
    assert first.loss == pytest.approx(-before * 0.1, abs=1e-5)
    for _ in range(60):
        await rig.learner.imitate(batch([row(GOOD)], [0.0], learning_rate=3e-2))
    assert rig.logprob(GOOD)[0] > np.log(0.5)


async def test_two_learners_of_one_seed_are_bit_equal_after_three_steps(rig: Rig, twin: Rig) -> None:
    for step in range(3):
        steps = [await one.learner.update(batch([row(GOOD), row(BAD)], [1.0, 0.5 * step])) for one in (rig, twin)]
        assert steps[0].loss == steps[1].loss
        assert steps[0].grad_norm == steps[1].grad_norm
    assert_same(rig, twin)


async def test_every_step_raises_the_version_and_publish_names_it(rig: Rig) -> None:
    assert await rig.learner.publish() == 0
    await rig.learner.update(CONTRAST)
    assert await rig.learner.publish() == rig.sampler.policy_version == 1
    await rig.learner.imitate(CONTRAST)
    assert await rig.learner.publish() == 2


async def test_the_gradient_is_bounded_by_max_grad_norm_and_reported_before_that(tiny_model_folder: Path) -> None:
    norms = {}
    for bound in (1e-3, 1e3):
        rig = Rig(tiny_model_folder, max_grad_norm=bound, betas=(0.0, 0.0))
        norms[bound] = (await rig.learner.update(CONTRAST)).grad_norm
        moments = rig.learner._trained.state(0).optimizer  # with betas 0 the first moment is the gradient itself
        norm = torch.cat([v.flatten() for k, v in moments.items() if k.startswith("exp_avg/")]).norm().item()
        assert norm == pytest.approx(min(bound, norms[bound]), rel=1e-4)
        await rig.close()
    assert norms[1e-3] == norms[1e3] > 1e-3


async def test_budget_of_a_pass_changes_the_cost_but_not_the_step(tiny_model_folder: Path) -> None:
    rows = [row((6, n, 7)) for n in range(8, 20)]
    advantages = np.linspace(-1, 1, len(rows)).tolist()
    results = {}
    for budget in (1, 1000):
        rig = Rig(tiny_model_folder, max_tokens_per_pass=budget)
        report = await rig.learner.update(batch(rows, advantages))
        results[budget] = (report, rig.weights())
        await rig.close()
    (many, left), (one, right) = results[1], results[1000]
    assert (many.metrics["packs"], one.metrics["packs"]) == (12, 1)
    assert (many.computed_tokens, one.computed_tokens) == (12 * 5, 4 + 12)
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    for name, weight in left.items():
        torch.testing.assert_close(weight, right[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "idle",
    [
        batch([], []),
        batch([row(GOOD)], [0.0]),
        batch([row(GOOD)], [1.0], token_weights=[0.0]),
    ],
    ids=["no transitions", "advantage 0", "weight 0"],
)
async def test_a_batch_without_gradient_takes_no_step(rig: Rig, idle: UpdateBatch) -> None:
    before = rig.weights()
    report = await rig.learner.update(idle)
    assert report == UpdateReport(
        loss=0.0, grad_norm=0.0, tokens=0, computed_tokens=0, metrics={"optimizer_steps": 0.0}
    )
    assert rig.sampler.policy_version == 0
    assert all(torch.equal(weight, before[name]) for name, weight in rig.weights().items())


async def test_the_kl_term_pulls_back_to_the_frozen_reference(rig: Rig) -> None:
    await rig.learner.freeze_reference()
    before = rig.logprob(GOOD, BAD)
    for _ in range(5):
        await rig.learner.update(CONTRAST)
    away = np.abs(np.subtract(rig.logprob(GOOD, BAD), before)).sum()
    pull = batch([row(GOOD), row(BAD)], [0.0, 0.0], loss=LossSettings(kl=KlTerm("k3", 1.0)))
    first = await rig.learner.update(pull)
    assert first.metrics["reference_kl"] > 0.01
    for _ in range(40):
        last = await rig.learner.update(pull)
    assert np.abs(np.subtract(rig.logprob(GOOD, BAD), before)).sum() < 0.3 * away
    assert last.metrics["reference_kl"] < 0.1 * first.metrics["reference_kl"]


async def test_off_policy_steps_are_measured_against_the_recorded_logprobs(rig: Rig) -> None:
    new = rig.logprob((6,), (9,))
    rows = [row((6,), logprobs=(new[0] - 1.0,)), row((9,), logprobs=(new[1] + 1.0,))]
    report = await rig.learner.update(batch(rows, [1.0, -1.0], proximal="recorded", token_weights=[1.0, 1.0]))
    # Ratios e and 1/e: both beyond the bounds in the direction asked for, so the loss is held at -1.2 and +0.8.
    assert report.loss == pytest.approx(-1.2 + 0.8, abs=1e-5)
    assert report.metrics["clip_fraction"] == 1.0
    assert report.grad_norm == pytest.approx(0.0, abs=1e-6)
    assert report.metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-5)


WRONG = {
    "has 6 tokens, more than the 5": ({"max_sequence": 5}, batch([row(GOOD)], [1.0])),
    "token id outside": ({}, batch([row((6, 100_000))], [1.0])),
    "empty action": ({}, batch([row(())], [1.0])),
    "empty prompt": ({}, batch([row(GOOD, prompt=())], [1.0])),
    "advantages of call call-1 is nan": ({}, batch([row(GOOD)], [float("nan")])),
    "token_weights of call call-1 is inf": ({}, batch([row(GOOD)], [1.0], token_weights=[float("inf")])),
    "advantages has shape": ({}, batch([row(GOOD)], [1.0, 2.0], token_weights=[1.0])),
    "learning rate is -1": ({}, batch([row(GOOD)], [1.0], learning_rate=-1.0)),
    "not one finite number per action token": ({}, batch([row(GOOD)], [1.0], proximal=[np.zeros(2)])),
    "corrections would do nothing": (
        {},
        batch([row(GOOD)], [1.0], proximal="recorded", loss=LossSettings(corrections=(TruncatedIS(),))),
    ),
    "no reference": ({}, batch([row(GOOD)], [1.0], loss=LossSettings(kl=KlTerm("k3", 0.1)))),
    "2 log-probabilities": ({}, batch([row(GOOD, logprobs=(-1.0, -1.0))], [1.0])),
    "top_p or top_k": ({}, batch([row(GOOD, top_p=0.9)], [1.0], proximal="recorded")),
}


@pytest.mark.parametrize("message", WRONG)
async def test_what_cannot_be_trained_on_is_refused_and_changes_nothing(tiny_model_folder: Path, message: str) -> None:
    options, wrong = WRONG[message]
    rig = Rig(tiny_model_folder, **options)
    before = rig.weights()
    with pytest.raises(BackendError, match=message):
        await rig.learner.update(wrong)
    assert all(torch.equal(weight, before[name]) for name, weight in rig.weights().items())
    await rig.close()


async def test_a_loss_that_is_not_finite_stops_before_the_step(rig: Rig) -> None:
    with torch.no_grad():
        next(iter(rig.loaded.model.parameters())).fill_(float("inf"))
    before = rig.weights()
    with pytest.raises(BackendError, match="loss of this batch is not a finite number"):
        await rig.learner.update(CONTRAST)
    assert rig.sampler.policy_version == 0
    assert all(torch.equal(weight, before[name]) for name, weight in rig.weights().items())


async def test_a_gradient_that_is_not_finite_stops_before_the_step_and_the_next_batch_works(rig: Rig) -> None:
    before = rig.weights()
    with pytest.raises(BackendError, match="gradient of this batch is not finite"):
        await rig.learner.update(batch([row(GOOD)], [1e38], token_weights=[1.0]))
    assert all(torch.equal(weight, before[name]) for name, weight in rig.weights().items())
    assert (await rig.learner.update(CONTRAST)).metrics["optimizer_steps"] == 1.0


async def test_a_cancelled_update_takes_no_step_and_leaves_nothing_behind(rig: Rig, twin: Rig) -> None:
    rows = [row((6, 7, 8), prompt=(n, m, 5)) for n in range(3, 200) for m in range(3, 30)]
    slow = asyncio.create_task(rig.learner.update(batch(rows, [1.0] * len(rows))))
    done, _ = await asyncio.wait([slow], timeout=0.2)
    assert not done
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert rig.sampler.policy_version == 0
    assert_same(rig, twin)
    await rig.learner.update(CONTRAST)
    await twin.learner.update(CONTRAST)
    assert_same(rig, twin)


async def test_closing_during_an_update_ends_it_with_an_error(tiny_model_folder: Path) -> None:
    rig = Rig(tiny_model_folder, max_tokens_per_pass=1)
    rows = [row((6, 7, 8), prompt=(n, m, 5)) for n in range(3, 200) for m in range(3, 10)]
    slow = asyncio.create_task(rig.learner.update(batch(rows, [1.0] * len(rows))))
    done, _ = await asyncio.wait([slow], timeout=0.2)
    assert not done
    await rig.close()
    with pytest.raises(BackendError, match="closed before the step"):
        await slow
    assert rig.sampler.policy_version == 0


async def test_the_event_loop_stays_free_during_an_update(rig: Rig) -> None:
    update = asyncio.create_task(rig.learner.update(batch([row((n, 7)) for n in range(3, 60)], [1.0] * 57)))
    turns = 0
    while not update.done():
        await asyncio.wait([update], timeout=0.001)
        turns += 1
    assert update.result().tokens == 114
    assert turns > 1


async def test_training_goes_on_exactly_from_a_checkpoint(rig: Rig, twin: Rig, tmp_path: Path) -> None:
    pull = batch([row(GOOD), row(BAD)], [1.0, -1.0], loss=LossSettings(kl=KlTerm("k3", 0.5)))
    await rig.learner.imitate(CONTRAST)
    await rig.learner.freeze_reference()
    await rig.learner.update(pull)
    await rig.learner.save(tmp_path / "checkpoint")
    saved_random = torch.get_rng_state()
    torch.rand(3)
    await twin.learner.load(tmp_path / "checkpoint")
    assert torch.equal(torch.get_rng_state(), saved_random)
    assert twin.sampler.policy_version == 2
    for _ in range(2):
        left, right = await rig.learner.update(pull), await twin.learner.update(pull)
        assert (left.loss, left.grad_norm) == (right.loss, right.grad_norm)
    assert_same(rig, twin)


async def test_going_back_to_a_checkpoint_never_takes_the_version_back(rig: Rig, tmp_path: Path) -> None:
    await rig.learner.update(CONTRAST)
    await rig.learner.save(tmp_path / "checkpoint")
    saved = rig.weights()
    await rig.learner.update(CONTRAST)
    await rig.learner.load(tmp_path / "checkpoint")
    assert rig.sampler.policy_version == 3
    assert all(torch.equal(weight, saved[name]) for name, weight in rig.weights().items())


async def test_saving_again_replaces_the_checkpoint_whole(rig: Rig, twin: Rig, tmp_path: Path) -> None:
    for _ in range(2):
        await rig.learner.update(CONTRAST)
        await rig.learner.save(tmp_path / "checkpoint")
    assert names_in(tmp_path) == ["checkpoint"]
    await twin.learner.load(tmp_path / "checkpoint")
    assert_same(rig, twin)


async def test_a_process_killed_between_the_renamings_leaves_a_checkpoint_to_load(
    rig: Rig, twin: Rig, tmp_path: Path
) -> None:
    await rig.learner.update(CONTRAST)
    await rig.learner.save(tmp_path / "checkpoint")
    (tmp_path / "checkpoint").rename(tmp_path / ".checkpoint.previous")
    (tmp_path / ".checkpoint.partial").mkdir()
    await twin.learner.load(tmp_path / "checkpoint")
    assert_same(rig, twin)


@contextmanager
def disk_quota(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes; writing more fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_is_reported_and_keeps_the_checkpoint_before(rig: Rig, twin: Rig, tmp_path: Path) -> None:
    await rig.learner.update(CONTRAST)
    await rig.learner.save(tmp_path / "checkpoint")
    saved = rig.weights()
    await rig.learner.update(CONTRAST)
    with disk_quota(10_000), pytest.raises(CheckpointError, match="could not be written"):
        await rig.learner.save(tmp_path / "checkpoint")
    assert names_in(tmp_path) == ["checkpoint"]
    await twin.learner.load(tmp_path / "checkpoint")
    assert all(torch.equal(weight, saved[name]) for name, weight in twin.weights().items())


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: cut(folder / "weights.safetensors"), "weights.safetensors has changed"),
        (lambda folder: flip(folder / "optimizer.safetensors"), "optimizer.safetensors has changed"),
        (lambda folder: (folder / "random.safetensors").unlink(), "random.safetensors is missing"),
        (lambda folder: (folder / "learner.json").unlink(), "is no checkpoint"),
        (lambda folder: (folder / "learner.json").write_text("{}"), "learner.json cannot be read"),
    ],
    ids=["cut short", "one bit flipped", "file missing", "no record", "empty record"],
)
async def test_a_damaged_checkpoint_is_refused_and_changes_nothing(
    rig: Rig, tmp_path: Path, damage: Any, message: str
) -> None:
    await rig.learner.update(CONTRAST)
    await rig.learner.save(tmp_path / "checkpoint")
    damage(tmp_path / "checkpoint")
    await rig.learner.update(CONTRAST)
    before = rig.weights()
    with pytest.raises(CheckpointError, match=message):
        await rig.learner.load(tmp_path / "checkpoint")
    assert all(torch.equal(weight, before[name]) for name, weight in rig.weights().items())


async def test_a_checkpoint_of_other_training_is_refused(tiny_model_folder: Path, tmp_path: Path) -> None:
    full = Rig(tiny_model_folder)
    await full.learner.save(tmp_path / "checkpoint")
    lora = Rig(tiny_model_folder, adapter="lora")
    with pytest.raises(
        CheckpointError, match=r"all weights of a LlamaForCausalLM .* but this run trains LoRA adapters"
    ):
        await lora.learner.load(tmp_path / "checkpoint")
    await full.close()
    await lora.close()


async def test_adapters_on_layers_the_model_lacks_are_refused(tiny_model_folder: Path) -> None:
    loaded = load_model(tiny_model_folder)
    sampler = TorchSampler(loaded, threads=1)
    options = TorchOptions(adapter="lora", lora=LoraOptions(targets=("q_proj", "query")))
    with pytest.raises(BackendError, match=r"no linear layer called query.*Choose lora.targets among down_proj"):
        TorchLearner(loaded, sampler, options)
    await sampler.close()
