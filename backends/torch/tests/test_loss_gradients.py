"""Every loss has the gradient, learnt over a prefix tree in several packs, that its formula has for each call on its own.

The reference is written here from the papers' formulas: one sequence at a time, plain causal attention, autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spangrad.backend import (
    Cispo,
    Correction,
    DualClip,
    GeometricRejection,
    Gspo,
    GspoToken,
    KlForm,
    KlTerm,
    LossSettings,
    MaskedIS,
    PolicyLoss,
    PpoClip,
    Reinforce,
    Sapo,
    TruncatedIS,
    UpdateBatch,
)
from spangrad.transitions import Transition, TransitionBatch
from spangrad_torch._gradient import accumulate, pack_logprobs
from spangrad_torch._model import load_model
from spangrad_torch._sums import Sums
from spangrad_torch._work import lay_out

SEEDS = (0, 1)
BUDGET = 9
"""Tokens of a pack: the batch makes several, and some packs hold several calls."""

Formula = Callable[[Tensor, Tensor, float], Tensor]
"""(A,) present log-probabilities of an action, (A,) proximal ones, the advantage -> (A,) losses."""


def clipped(ratio: Tensor, advantage: float, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def dual(new: Tensor, old: Tensor, advantage: float) -> Tensor:
    inner = -clipped((new - old).exp(), advantage, 0.1, 0.2)
    return -(torch.maximum(inner, torch.full_like(inner, 1.25 * advantage)) if advantage < 0 else inner)


def gspo_token(new: Tensor, old: Tensor, advantage: float) -> Tensor:
    ratio = (new - old).mean().exp().detach() * new.exp() / new.exp().detach()
    return clipped(ratio, advantage, 0.02, 0.03)


def sapo(new: Tensor, old: Tensor, advantage: float) -> Tensor:
    tau = 1.0 if advantage > 0 else 1.5
    return -advantage * 4 / tau / (1 + (-tau * ((new - old).exp() - 1)).exp())


LOSSES: dict[str, tuple[PolicyLoss, Formula]] = {
    "ppo_clip": (PpoClip(0.1, 0.2), lambda new, old, a: clipped((new - old).exp(), a, 0.1, 0.2)),
    "dual_clip": (DualClip(0.1, 0.2, 1.25), dual),
    "gspo": (Gspo(0.02, 0.03), lambda new, old, a: clipped((new - old).mean().exp(), a, 0.02, 0.03).expand(len(new))),
    "gspo_token": (GspoToken(0.02, 0.03), gspo_token),
    "cispo": (Cispo(0.1, 0.2), lambda new, old, a: -(new - old).exp().detach().clamp(0.9, 1.2) * a * new),
    "sapo": (Sapo(1.0, 1.5), sapo),
    "reinforce": (Reinforce(), lambda new, _, a: -a * new),
}

CORRECTIONS: dict[str, tuple[tuple[Correction, ...], Callable[[Tensor], Tensor]]] = {
    "token": ((TruncatedIS("token", 1.1),), lambda w: w.clamp(max=1.1)),
    "sequence": ((TruncatedIS("sequence", 1.1),), lambda w: w.prod().clamp(max=1.1).expand(len(w))),
    "masked": ((MaskedIS(0.9, 1.1),), lambda w: w * ((w >= 0.9) & (w <= 1.1))),
    "geometric": (
        (GeometricRejection(0.95, 1.05),),
        lambda w: torch.ones_like(w) * bool(0.95 <= w.log().mean().exp() <= 1.05),
    ),
    "both": (
        (TruncatedIS("token", 1.1), GeometricRejection(0.95, 1.05)),
        lambda w: w.clamp(max=1.1) * bool(0.95 <= w.log().mean().exp() <= 1.05),
    ),
}


@pytest.fixture(scope="module")
def model(tiny_model_folder: Path) -> PreTrainedModel:
    return load_model(tiny_model_folder).model.requires_grad_(requires_grad=True)


@pytest.fixture(scope="module")
def reference(tiny_model_folder: Path) -> PreTrainedModel:
    """A frozen model whose weights differ."""
    other = load_model(tiny_model_folder).model
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=generator))
    return other


def scores(model: PreTrainedModel, row: Transition) -> Tensor:
    """(A, V) log-probabilities at each token of one action: one sequence, no mask, no packing."""
    ids = torch.tensor([row.prompt_ids + row.action_ids])
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1]
    return (logits / (row.temperature or 1.0)).log_softmax(-1)


def chosen(scores: Tensor, row: Transition) -> Tensor:
    """(A,) those of the action's tokens."""
    return scores.gather(1, torch.tensor(row.action_ids)[:, None])[:, 0]


def make_batch(model: PreTrainedModel, seed: int, loss: LossSettings, proximal: str) -> UpdateBatch:
    """Ten calls with advantages of both signs, which share prompts, beginnings and whole actions.

    Recorded and given log-probabilities lie around the model's own, so that ratios fall on both sides of every bound.
    """
    random = np.random.default_rng(seed)
    stem = tuple(random.integers(3, 60, 4).tolist())
    rows, given = [], []
    for number in range(10):
        prompt = stem[: 2 + number % 3]
        action = (5, 6, 7, 8)[: 1 + number % 4] + tuple(random.integers(3, 7, number % 3).tolist())
        row = Transition(
            "r", 0, "g", f"c{number}", 0, 0, None, "p", 0, prompt, action, (), (1.0, 0.7, 0.0)[number % 3], 1.0, 0, None, 0.0
        )  # fmt: skip
        with torch.no_grad():
            own = chosen(scores(model, row), row).double().numpy()
        given.append(own + random.normal(0, 0.15, len(own)))
        recorded = given[-1] + random.normal(0, 0.08, len(own))
        rows.append(replace(row, logprobs=tuple(recorded.tolist())))
    advantages = random.normal(0, 1, len(rows))
    assert (advantages > 0).any()
    assert (advantages < 0).any()
    return UpdateBatch(
        transitions=TransitionBatch(tuple(rows)),
        learning_rate=1e-3,
        advantages=advantages,
        token_weights=random.uniform(0.1, 1.0, len(rows)),
        proximal=given if proximal == "given" else proximal,  # type: ignore[arg-type]  # one of the two names
        loss=loss,
    )


def old_logprobs(batch: UpdateBatch, number: int, present: Tensor) -> Tensor:
    if batch.proximal == "present":
        return present.detach()
    row = batch.transitions.transitions[number]
    return torch.tensor(row.logprobs if batch.proximal == "recorded" else batch.proximal[number])


def expected_gradient(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    batch: UpdateBatch,
    formula: Formula,
    correct: Callable[[Tensor], Tensor] = torch.ones_like,
) -> dict[str, Tensor]:
    for number, row in enumerate(batch.transitions.transitions):
        everything = scores(model, row)
        new = chosen(everything, row)
        old = old_logprobs(batch, number, new)
        factor = correct((old - torch.tensor(row.logprobs, dtype=torch.float64)).exp())
        loss = factor * formula(new, old, float(batch.advantages[number]))
        loss = loss - batch.loss.entropy_bonus * torch.special.entr(everything.exp()).sum(-1)
        if (kl := batch.loss.kl) is not None:
            with torch.no_grad():
                frozen = chosen(scores(reference, row), row)
            d = new - frozen
            terms = {"k1": d.detach() * new, "k2": d.square() / 2, "k3": (-d).exp() - 1 + d}
            loss = loss + kl.coefficient * terms[kl.form]
        (float(batch.token_weights[number]) * loss).sum().backward()
    return taken_gradient(model)


def taken_gradient(model: PreTrainedModel) -> dict[str, Tensor]:
    """The accumulated gradient by weight, which is then dropped."""
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return found


def tree_gradient(
    model: PreTrainedModel, reference: PreTrainedModel, batch: UpdateBatch, *, budget: int = BUDGET
) -> tuple[dict[str, Tensor], Sums]:
    work = lay_out(batch, imitate=False, budget=budget, share=True)
    assert budget > BUDGET or len(work.packed.packs) > 2
    assert work.packed.computed_tokens < work.packed.flat_tokens
    frozen = None
    if batch.loss.kl is not None:
        frozen = pack_logprobs(reference, work, autocast=nullcontext, before_pack=lambda: None)
    sums = accumulate(model, work, frozen, autocast=nullcontext, before_pack=lambda: None)
    return taken_gradient(model), sums


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    scale = max(float(value.abs().max()) for value in right.values())
    assert scale > 1e-2
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=1e-4, atol=1e-5 * scale, msg=name)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("proximal", ["present", "recorded", "given"])
@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_has_the_gradient_of_its_formula(
    model: PreTrainedModel, reference: PreTrainedModel, name: str, proximal: str, seed: int
) -> None:
    policy, formula = LOSSES[name]
    batch = make_batch(model, seed, LossSettings(policy), proximal)
    expected = expected_gradient(model, reference, batch, formula)
    found, sums = tree_gradient(model, reference, batch)
    assert_equal(found, expected)
    if proximal != "present" and "clip_fraction" in sums.metrics():
        assert 0 < sums.metrics()["clip_fraction"] < 1  # else only half of the formula was looked at


@pytest.mark.parametrize("loss", ["ppo_clip", "gspo", "reinforce"])
@pytest.mark.parametrize("proximal", ["present", "given"])
@pytest.mark.parametrize("name", CORRECTIONS)
def test_corrections_weigh_tokens_and_whole_actions_as_their_formulas_say(
    model: PreTrainedModel, reference: PreTrainedModel, name: str, proximal: str, loss: str
) -> None:
    corrections, correct = CORRECTIONS[name]
    policy, formula = LOSSES[loss]
    batch = make_batch(model, 3, LossSettings(policy, corrections=corrections), proximal)
    expected = expected_gradient(model, reference, batch, formula, correct)
    found, sums = tree_gradient(model, reference, batch)
    assert_equal(found, expected)
    masks = name in {"masked", "geometric", "both"}
    assert (0 < sums.metrics()["masked_fraction"] < 1) == masks


@pytest.mark.parametrize("form", ["k1", "k2", "k3"])
def test_a_kl_term_is_added_uncorrected_and_also_where_there_is_no_advantage(
    model: PreTrainedModel, reference: PreTrainedModel, form: KlForm
) -> None:
    corrections, correct = CORRECTIONS["token"]
    policy, formula = LOSSES["cispo"]
    settings = LossSettings(policy, KlTerm(form, 0.7), corrections=corrections)
    batch = make_batch(model, 4, settings, "given")
    batch.advantages[:4] = 0.0

    def corrected(new: Tensor, old: Tensor, advantage: float) -> Tensor:
        return formula(new, old, advantage) * factors.pop(0)

    factors = [
        correct((old_logprobs(batch, number, torch.empty(0)) - torch.tensor(row.logprobs)).exp())
        for number, row in enumerate(batch.transitions.transitions)
    ]
    expected = expected_gradient(model, reference, batch, corrected)
    assert_equal(tree_gradient(model, reference, batch)[0], expected)


def test_the_entropy_bonus_has_the_gradient_of_the_entropy(model: PreTrainedModel, reference: PreTrainedModel) -> None:
    policy, formula = LOSSES["ppo_clip"]
    for advantages in (None, np.zeros(10)):
        batch = make_batch(model, 5, LossSettings(policy, entropy_bonus=0.3), "recorded")
        if advantages is not None:
            batch.advantages[:] = advantages
        expected = expected_gradient(model, reference, batch, formula)
        assert_equal(tree_gradient(model, reference, batch)[0], expected)


@pytest.mark.parametrize("name", ["gspo", "gspo_token"])
def test_where_packs_are_cut_changes_nothing_of_a_whole_actions_ratio(
    model: PreTrainedModel, reference: PreTrainedModel, name: str
) -> None:
    loss = LossSettings(LOSSES[name][0], corrections=(TruncatedIS("sequence", 1.1), GeometricRejection(0.9, 1.1)))
    batch = make_batch(model, 6, loss, "given")
    one, _ = tree_gradient(model, reference, batch, budget=1000)
    assert_equal(tree_gradient(model, reference, batch)[0], one)
