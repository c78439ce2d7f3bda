"""A learnt value: what it reads, what its gradient is, that it learns, and that it is kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spangrad.backend import CriticSettings, LossSettings, UpdateBatch, UpdateReport
from spangrad.errors import BackendError, CheckpointError
from spangrad.transitions import FloatArray, Transition, TransitionBatch, ValueTargets
from spangrad_torch._gradient import accumulate, pack_values
from spangrad_torch._learner import TorchLearner
from spangrad_torch._model import LoadedModel, load_model
from spangrad_torch._options import TorchOptions
from spangrad_torch._sampler import TorchSampler
from spangrad_torch._sums import Sums
from spangrad_torch._value_head import ValueHead
from spangrad_torch._work import in_rows, lay_out
from spangrad_torch.losses import value_loss

STEM = (3, 4, 5)
CALLS = [(STEM, (6, 7, 8)), (STEM, (6, 9)), ((*STEM, 6, 9, 10), (11,)), ((*STEM, 6), (7, 8, 12, 6))]
"""Prompts and actions that share prefixes; the last one's prompt is another one's first token."""
EVERY_TOKEN = [[0.5, -1.0, 2.0], [1.0, 0.25], [-0.5], [0.0, 0.125, 3.0, 1.5]]
CONSISTENT = [[0.5, -1.0, 2.0], [0.5, -1.0], [-0.5], [-1.0, 2.0, 3.0, 1.5]]
"""Equal where the prefix is equal, so that a value can be right everywhere."""
ONE_A_CALL = [[0.5], [1.0], [-0.5], []]


def transition(prompt: tuple[int, ...], action: tuple[int, ...], temperature: float = 1.0) -> Transition:
    logprobs = (-2.0,) * len(action)
    return Transition(
        "r", 0, "g", "call-1", 0, 0, None, "p", 0, prompt, action, logprobs, temperature, 1.0, 0, None, 0.0
    )


def rows(values: Sequence[Sequence[float]]) -> tuple[FloatArray, ...]:
    return tuple(np.array(row, dtype=np.float64) for row in values)


def batch(targets: Sequence[Sequence[float]], *, before: float = 0.0, **critic: Any) -> UpdateBatch:
    """No advantage at all: whatever moves is the value's doing."""
    transitions = tuple(transition(*call, temperature=0.5 + k) for k, call in enumerate(CALLS))
    wanted = rows(targets)
    return UpdateBatch(
        TransitionBatch(transitions),
        learning_rate=1e-3,
        advantages=np.zeros(len(CALLS)),
        token_weights=np.array([0.1, 0.2, 0.3, 0.05]),
        loss=LossSettings(critic=CriticSettings(**critic)),
        value_targets=ValueTargets(wanted, tuple(np.full(len(row), before) for row in wanted)),
    )


@pytest.fixture(scope="module")
def model(tiny_model_folder: Path) -> PreTrainedModel:
    return load_model(tiny_model_folder).model


@pytest.fixture
def head(model: PreTrainedModel) -> ValueHead:
    """One that has learnt something."""
    head = ValueHead.of(model)
    torch.manual_seed(3)
    for weight in head.parameters():
        torch.nn.init.normal_(weight)
    return head


def alone(model: PreTrainedModel, head: ValueHead, call: tuple[tuple[int, ...], tuple[int, ...]]) -> Tensor:
    """(A,) values before each token of one action: one sequence, no packing, the read-out written out."""
    prompt, action = call
    output = model.model(input_ids=torch.tensor([prompt + action]), use_cache=False)
    states = output.last_hidden_state[0, len(prompt) - 1 : -1]
    values: Tensor = states @ head.linear.weight[0] / states.norm(dim=-1) + head.linear.bias
    return values


@pytest.mark.parametrize("budget", [1, 1000], ids=["a pack each", "one pack"])
def test_a_value_is_read_where_the_token_after_it_is_predicted(
    model: PreTrainedModel, head: ValueHead, budget: int
) -> None:
    work = lay_out(batch(EVERY_TOKEN), imitate=False, budget=budget, share=True)
    found = in_rows(work, pack_values(model, head, work, autocast=nullcontext, before_pack=lambda: None))
    for call, values in zip(CALLS, found, strict=True):
        torch.testing.assert_close(torch.from_numpy(values).float(), alone(model, head, call).detach())
    assert found[0][0] == found[1][0]  # one prompt, one value
    assert found[0][1] == pytest.approx(found[3][0], abs=1e-5)  # one's second token is where the other begins


def gradients(*modules: torch.nn.Module) -> dict[str, Tensor]:
    """What has been accumulated, which is then dropped; zeros where there is nothing."""
    found = {}
    for number, module in enumerate(modules):
        for name, weight in module.named_parameters():
            found[f"{number}/{name}"] = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        module.zero_grad()
    return found


@pytest.mark.parametrize("targets", [EVERY_TOKEN, ONE_A_CALL], ids=["every token", "one a call"])
@pytest.mark.parametrize(("coefficient", "clip"), [(0.0, None), (0.5, None), (0.5, 0.3)])
@pytest.mark.parametrize("budget", [1, 1000], ids=["a pack each", "one pack"])
def test_the_gradient_of_packed_calls_is_that_of_each_alone(
    request: pytest.FixtureRequest, targets: list[list[float]], coefficient: float, clip: float | None, budget: int
) -> None:
    model, head = (request.getfixturevalue(name) for name in ("model", "head"))
    made = batch(targets, before=0.2, clip=clip, coefficient=coefficient)
    work = lay_out(made, imitate=False, budget=budget, share=True)
    sums = accumulate(model, work, None, head=head, autocast=nullcontext, before_pack=lambda: None)
    packed = gradients(model, head)

    figures = []
    for call, row, weight in zip(CALLS, rows(targets), made.token_weights.tolist(), strict=True):
        if not len(row):
            continue
        values, wanted = alone(model, head, call)[: len(row)], torch.from_numpy(row).float()
        losses = (values - wanted) ** 2
        if clip is not None:
            held = values.clamp(0.2 - clip, 0.2 + clip)
            losses = torch.maximum(losses, (held - wanted) ** 2)
        figures += (losses / 2).tolist()
        # the call's targets share the weight of its tokens
        (weight * len(call[1]) / len(row) * losses.sum() / 2).backward()
    by_hand = gradients(model, head)

    for name, gradient in by_hand.items():
        expected = gradient if name.startswith("1/") else coefficient * gradient
        torch.testing.assert_close(packed[name], expected, rtol=1e-4, atol=1e-5, msg=name)
    assert packed["1/linear.weight"].abs().max() > 0.01
    assert sums.metrics()["value_loss"] == pytest.approx(np.mean(figures), rel=1e-4)
    assert ("value_clip_fraction" in sums.metrics()) == (clip is not None)
    assert sums.loss == 0.0  # of the policy, which has no advantage


def test_prompts_and_what_tools_say_have_no_value_to_learn() -> None:
    made = batch(EVERY_TOKEN)
    work = lay_out(made, imitate=False, budget=1000, share=True)
    (pack,) = work.packed.packs
    assert work.value_targets is not None
    places, weights = work.valued(pack, work.value_targets)
    assert len(places) == sum(len(action) for _, action in CALLS) < len(pack) + len(places)
    assert weights.sum() == pytest.approx(0.1 * 3 + 0.2 * 2 + 0.3 * 1 + 0.05 * 4)


def test_the_clipped_loss_is_never_less_than_the_plain_one() -> None:
    # before 0, clip 1. Value 3, target 5: held to 1, (1 - 5)^2 > (3 - 5)^2. Value 3, target -1: (3 + 1)^2 > (1 + 1)^2.
    values, wanted = torch.tensor([3.0, 3.0, 0.5]), torch.tensor([5.0, -1.0, 2.0])
    losses, held = value_loss(values, wanted, torch.zeros(3), clip=1.0)
    assert losses.tolist() == [8.0, 8.0, 1.125]
    assert held.tolist() == [True, False, False]
    losses, held = value_loss(values, wanted, torch.zeros(3), clip=None)
    assert losses.tolist() == [2.0, 8.0, 1.125]
    assert not held.any()


def test_explained_variance_compares_errors_with_targets() -> None:
    sums = Sums()
    targets = torch.tensor([0.0, 2.0, 4.0, 6.0])
    for part in ([0, 1], [2, 3]):  # values 1, 1, 5, 5: errors -1, 1, -1, 1, variance 1, of 5
        sums.values(targets[part], torch.tensor([1.0, 1.0, 5.0, 5.0])[part], torch.zeros(2), None)
    assert sums.explained_variance() == pytest.approx(0.8)
    equal = Sums()
    equal.values(torch.ones(3), torch.zeros(3), torch.zeros(3), None)
    assert equal.explained_variance() is None


class Rig:
    """A learner with the model and sampler it shares, on one thread."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.loaded: LoadedModel = load_model(folder)
        self.sampler = TorchSampler(self.loaded, threads=1)
        settings = TorchOptions(model=str(folder), **options)
        self.learner = TorchLearner(self.loaded, self.sampler, settings, threads=1, seed=5)

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.loaded.model.state_dict().items()}

    async def values(self) -> list[float]:
        found = await self.learner.values(batch(EVERY_TOKEN).transitions)
        return [round(float(value), 6) for row in found for value in row]

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
    del rig
    twin = Rig(tiny_model_folder, **request.node.callspec.params["rig"])
    yield twin
    await twin.close()


async def learn(rig: Rig, steps: int, targets: Sequence[Sequence[float]] = EVERY_TOKEN) -> UpdateReport:
    for _ in range(steps):
        report = await rig.learner.update(replace(batch(targets), learning_rate=0.0))
    return report


async def test_values_begin_at_nothing_and_come_to_what_they_are_told(rig: Rig) -> None:
    assert await rig.values() == [0.0] * 10
    before = rig.weights()
    first = await learn(rig, 1, CONSISTENT)
    last = await learn(rig, 300, CONSISTENT)
    assert first.metrics["explained_variance"] == pytest.approx(0.0)
    assert last.metrics["explained_variance"] > 0.98
    assert last.metrics["value_loss"] < 0.02 * first.metrics["value_loss"]
    assert await rig.values() == pytest.approx([value for row in CONSISTENT for value in row], abs=0.3)
    assert all(torch.equal(value, before[name]) for name, value in rig.weights().items())  # the model is as it was


async def test_a_value_of_the_whole_call_is_that_before_its_first_token(rig: Rig) -> None:
    await learn(rig, 300, ONE_A_CALL)
    found = await rig.learner.values(batch(ONE_A_CALL).transitions)
    # two of the calls have one prompt, and so one value between 0.5 and 1; the other prompt has its own
    assert 0.5 < found[0][0] == found[1][0] < 1.0
    assert found[2][0] == pytest.approx(-0.5, abs=0.05)


async def test_going_on_from_a_checkpoint_is_exact(rig: Rig, twin: Rig, tmp_path: Path) -> None:
    await learn(rig, 5)
    await rig.learner.save(tmp_path / "saved")
    await twin.learner.load(tmp_path / "saved")
    assert await twin.values() == await rig.values() != [0.0] * 10
    for each in (rig, twin):
        await learn(each, 3)
    assert await twin.values() == await rig.values()
    assert json.loads((tmp_path / "saved/learner.json").read_text())["format"] == 2


async def test_a_checkpoint_without_a_value_head_begins_with_a_fresh_one(rig: Rig, twin: Rig, tmp_path: Path) -> None:
    plain = replace(batch(EVERY_TOKEN), value_targets=None, advantages=np.array([1.0, -1.0, 0.5, 0.0]))
    await rig.learner.update(plain)
    await rig.learner.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/learner.json").read_text())["format"] == 1
    assert not (tmp_path / "saved/value.safetensors").exists()
    await learn(twin, 5)
    await twin.learner.load(tmp_path / "saved")
    assert await twin.values() == [0.0] * 10


async def test_a_checkpoint_whose_value_head_is_gone_is_refused(rig: Rig, tmp_path: Path) -> None:
    await learn(rig, 1)
    await rig.learner.save(tmp_path / "saved")
    record = json.loads((tmp_path / "saved/learner.json").read_text())
    del record["files"]["value.safetensors"]
    (tmp_path / "saved/learner.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"says it has format 2, and value\.safetensors says otherwise"):
        await rig.learner.load(tmp_path / "saved")


async def test_the_value_head_is_not_exported(rig: Rig, tmp_path: Path) -> None:
    await learn(rig, 1)
    await rig.learner.export(tmp_path / "model")
    assert not [path.name for path in (tmp_path / "model").iterdir() if "value" in path.name]


async def test_restarting_the_optimiser_leaves_the_value_head_alone(rig: Rig, twin: Rig) -> None:
    for each in (rig, twin):
        await learn(each, 3)
    await rig.learner.restart_optimizer()
    for each in (rig, twin):
        await learn(each, 3)
    assert await rig.values() == await twin.values()


async def test_tokens_may_have_advantages_of_their_own(rig: Rig, twin: Rig) -> None:
    equal = replace(batch(EVERY_TOKEN), value_targets=None, advantages=np.array([1.0, -1.0, 0.5, 0.25]))
    same = replace(
        equal,
        advantages=np.zeros(4),
        token_advantages=[
            np.full(len(action), advantage) for (_, action), advantage in zip(CALLS, equal.advantages, strict=True)
        ],
    )
    ours, theirs = await rig.learner.update(equal), await twin.learner.update(same)
    assert ours.grad_norm == theirs.grad_norm
    assert all(torch.equal(value, twin.weights()[name]) for name, value in rig.weights().items())


async def test_only_the_token_that_has_an_advantage_is_pulled_at(rig: Rig) -> None:
    work = replace(
        batch(EVERY_TOKEN), value_targets=None, token_advantages=[*rows([[0, 1.0, 0], [0, 0], [0], [0, 0, 0, 0]])]
    )
    report = await rig.learner.update(work)
    assert report.tokens == 3  # of the one call that has any
    assert report.loss == pytest.approx(-0.1)  # weight 0.1, ratio 1, advantage 1 at one token


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"token_advantages": rows([[1.0], [1.0, 1.0], [1.0], [1.0]])}, "token_advantages are not one finite number"),
        ({"value_targets": ValueTargets(rows([[1.0]]), rows([[0.0]]))}, "value_targets has other tokens"),
        (
            {"value_targets": ValueTargets(rows([[1.0] * 4, [], [], []]), rows([[1.0] * 4, [], [], []]))},
            "value_targets has other tokens",
        ),
        (
            {"value_targets": ValueTargets(rows([[1.0], [], [], []]), rows([[], [], [], []]))},
            "value_targets has other tokens",
        ),
        (
            {"value_targets": ValueTargets(rows([[np.inf], [], [], []]), rows([[1.0], [], [], []]))},
            "value_targets has numbers that are not finite",
        ),
    ],
    ids=["advantages", "too few calls", "too many tokens", "no values before", "infinite"],
)
async def test_a_batch_that_does_not_fit_its_actions_is_refused(
    rig: Rig, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BackendError, match=problem):
        await rig.learner.update(replace(batch(EVERY_TOKEN), **changes))


async def test_a_target_that_overflows_moves_nothing(rig: Rig) -> None:
    before, values = rig.weights(), await rig.values()
    with pytest.raises(BackendError, match="not a finite number, so no step was taken") as caught:
        await rig.learner.update(batch([[1e30], [], [], []], coefficient=0.5))
    named = "a smaller learning rate or algorithm.critic.learning_rate (0.01), or a smaller algorithm.critic.coefficient (0.5)"
    assert named in caught.value.cure
    assert all(torch.equal(value, before[name]) for name, value in rig.weights().items())
    assert await rig.values() == values
