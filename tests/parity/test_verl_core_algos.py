"""spangrad's mathematics beside verl's own (verl.trainer.ppo.core_algos), on random batches of one call per rollout.

Where each rollout is a single call, both projects mean the same by their names, so the numbers must agree. Where they are
known to differ (a rollout without others of its task, the tokens over which REINFORCE++ normalises), the difference itself
is tested. Runs in an environment of its own: see requirements.txt and verl.txt beside this file.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spangrad.lightningrl import (
    GAE,
    GDPO,
    GRPO,
    RLOO,
    AdvantageEstimator,
    DrGRPO,
    Grouping,
    Identical,
    LightningRL,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Weighting,
)
from spangrad.transitions import FloatArray, RewardWeights, Transition, TransitionBatch
from spangrad_torch.losses import k3, log_ratio, ppo_clip, value_loss

pytestmark = pytest.mark.parity

SEEDS = range(8)
WIDTH = 12
"""Columns of verl's padded matrices."""


@pytest.fixture(scope="module")
def verl() -> Any:
    """verl's functions. Imported here, so that this file can be collected where verl is not; the tests need it, though."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl and ray warn about their own dependencies when they are imported
        return importlib.import_module("verl.trainer.ppo.core_algos")


@pytest.fixture(scope="module")
def make_verl_actor(verl: Any) -> Callable[[float, float], Any]:
    """Makes verl's configuration of an actor from the lower and the upper bound of the clipping."""

    def make(clip_low: float, clip_high: float) -> Any:
        return verl.ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio=clip_low,
            clip_ratio_low=clip_low,
            clip_ratio_high=clip_high,
        )

    return make


def random_batch(seed: int, *, tokens: int | None = None, singletons: bool = False) -> TransitionBatch:
    """Rollouts of one call each, of 2 to 5 per task; some tasks without variance. `tokens` makes all equally long."""
    random = np.random.default_rng(seed)
    transitions: list[Transition] = []
    for task in range(6):
        size = 1 if singletons and task == 0 else int(random.integers(2, 6))
        rewards = np.full(size, 0.5) if task == 1 else random.normal(size=size)
        for reward in rewards:
            length = tokens or int(random.integers(1, WIDTH + 1))
            transitions.append(transition(len(transitions), f"task-{task}", float(reward), length))
    order = random.permutation(len(transitions))
    return TransitionBatch(tuple(transitions[i] for i in order))


def transition(number: int, group: str, reward: float, tokens: int) -> Transition:
    return Transition(
        rollout_id=f"rollout-{number}",
        attempt=0,
        group_id=group,
        call_id=f"call-{number}",
        choice=0,
        index=0,
        agent=None,
        policy="policy",
        policy_version=0,
        prompt_ids=(1,),
        action_ids=(2,) * tokens,
        logprobs=(-1.0,) * tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        reward=None,
        rollout_reward=reward,
    )


def padded(batch: TransitionBatch) -> dict[str, Any]:
    """The batch as verl has it: rewards at the last token of each row, a mask, and the tasks as group index."""
    mask = torch.zeros(len(batch), WIDTH, dtype=torch.float64)
    rewards = torch.zeros(len(batch), WIDTH, dtype=torch.float64)
    for row, item in enumerate(batch.transitions):
        mask[row, : len(item.action_ids)] = 1.0
        rewards[row, len(item.action_ids) - 1] = item.rollout_reward
    groups = np.array([item.group_id for item in batch.transitions], dtype=object)
    return {"token_level_rewards": rewards, "response_mask": mask, "index": groups}


def verl_advantages(verl: Any, name: str, batch: TransitionBatch, /, **options: Any) -> FloatArray:
    """verl's advantage of each row, which all its tokens share."""
    values, _ = verl.get_adv_estimator_fn(name)(**padded(batch), **options)
    advantages: FloatArray = values[:, 0].numpy().astype(np.float64)
    return advantages


def our_advantages(estimator: AdvantageEstimator, batch: TransitionBatch) -> FloatArray:
    compared = Identical().comparisons(batch)
    return estimator.advantages(Grouping().applied(compared, batch, among=estimator.requirements.among))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "options", "estimator"),
    [
        ("grpo", {}, GRPO()),
        ("grpo", {"norm_adv_by_std_in_grpo": False}, DrGRPO()),
        ("rloo", {}, RLOO()),
        ("rloo_vectorized", {}, RLOO()),
    ],
    ids=["grpo", "dr_grpo", "rloo", "rloo_vectorized"],
)
def test_group_estimators_agree(
    verl: Any, name: str, options: dict[str, Any], estimator: AdvantageEstimator, seed: int
) -> None:
    batch = random_batch(seed)
    expected = verl_advantages(verl, name, batch, **options)
    assert np.abs(expected).max() > 0.5
    assert our_advantages(estimator, batch) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tokens", [1, 7])
def test_reinforce_pp_baseline_agrees_but_for_what_the_deviation_counts(verl: Any, seed: int, tokens: int) -> None:
    batch = random_batch(seed, tokens=tokens)
    rows = len(batch)
    # verl's unbiased deviation counts tokens, ours rollouts
    factor = np.sqrt((rows * tokens - 1) / (tokens * (rows - 1)))
    expected = verl_advantages(verl, "reinforce_plus_plus_baseline", batch)
    assert np.abs(expected).max() > 0.5
    assert our_advantages(ReinforcePlusPlusBaseline(), batch) * factor == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tokens", [1, 7])
def test_reinforce_pp_agrees_but_for_what_the_deviation_counts(verl: Any, seed: int, tokens: int) -> None:
    batch = random_batch(seed, tokens=tokens, singletons=True)
    rows = len(batch)
    factor = np.sqrt((rows * tokens - 1) / (tokens * (rows - 1)))
    expected = verl_advantages(verl, "reinforce_plus_plus", batch, config=verl.AlgoConfig(gamma=1.0))
    assert np.abs(expected).max() > 0.5
    assert our_advantages(ReinforcePlusPlus(), batch) * factor == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.0, 0.5, 0.0), (1.0, -2.0, 0.1)])
def test_gdpo_agrees_but_for_what_the_deviation_counts(
    verl: Any, seed: int, tokens: int, weights: tuple[float, float, float]
) -> None:
    names = ("correct", "form", "short")
    by_name = dict(zip(names, weights, strict=True))
    batch = with_components(random_batch(seed, tokens=tokens), names, seed)
    rows = len(batch)
    report = LightningRL(Identical(), GDPO(), component_weights=RewardWeights(by_name)).compute(batch)

    matrices = padded(batch)
    mask = matrices["response_mask"]
    expected = verl_advantages(
        verl,
        "gdpo",
        batch,
        config=verl.AlgoConfig(gdpo_reward_keys=list(names), gdpo_reward_weights=list(weights)),
        non_tensor_batch={name: np.array([t.rollout_components[name] for t in batch.transitions]) for name in names},
        batch={"prompts": torch.ones(rows, 1), "attention_mask": torch.cat([torch.ones(rows, 1), mask], dim=1).long()},
    )
    factor = np.sqrt((rows * tokens - 1) / (tokens * (rows - 1)))
    assert np.abs(expected).max() > 0.5
    assert report.trained.all()
    # verl keeps single rewards in float32, and adds 1e-6 to each group's deviation
    assert report.advantages * factor == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (0.5, 0.0)])
def test_gae_over_tokens_agrees(verl: Any, seed: int, gamma: float, lam: float) -> None:
    batch = random_batch(seed, singletons=True)
    matrices = padded(batch)
    mask, values = matrices["response_mask"], token_matrix(batch, seed) * matrices["response_mask"]
    expected, returns = verl.compute_gae_advantage_return(
        matrices["token_level_rewards"], values, mask, *torch.tensor([gamma, lam], dtype=torch.float64)
    )
    rows = [row[kept.bool()].numpy() for row, kept in zip(values, mask, strict=True)]
    ours = GAE(level="token", gamma=gamma, lam=lam, whiten=False).estimates(batch, rows, batch.rollout_index)

    assert ours.token_advantages is not None
    raw = np.concatenate(ours.token_advantages)
    assert np.concatenate(ours.targets.targets) == pytest.approx(flat(returns, mask).numpy(), rel=1e-6, abs=1e-9)
    # verl always whitens, over tokens
    whitened = (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    assert whitened == pytest.approx(flat(expected, mask).numpy(), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_of_prompts_between_calls_are_passed_over_alike(verl: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths, gaps = random.integers(1, 4, size=3), random.integers(1, 3, size=2)
    calls = tuple(
        replace(transition(0, "task", 1.5, int(n)), call_id=f"call-{k}", index=k, reward=float(k))
        for k, n in enumerate(lengths)
    )
    batch = TransitionBatch(calls)
    # the same rollout as verl has it: one row, in which the tokens between two answers are masked
    mask = torch.tensor(
        [[1.0] * lengths[0] + [0.0] * gaps[0] + [1.0] * lengths[1] + [0.0] * gaps[1] + [1.0] * lengths[2]]
    )
    values = torch.from_numpy(random.normal(size=mask.shape))
    ends = np.flatnonzero(mask[0].numpy())[np.cumsum(lengths) - 1]
    rewards = torch.zeros_like(values)
    rewards[0, ends] = torch.tensor([0.0, 1.0, 2.0 + 1.5], dtype=torch.float64)
    _, returns = verl.compute_gae_advantage_return(
        rewards, values, mask.double(), *torch.tensor([0.9, 0.5], dtype=torch.float64)
    )

    rows = np.split(values[mask.bool()].numpy(), np.cumsum(lengths)[:-1])
    ours = GAE(level="token", gamma=0.9, lam=0.5).estimates(batch, rows, batch.rollout_index)
    assert np.concatenate(ours.targets.targets) == pytest.approx(returns[mask.bool()].numpy(), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("clip", [0.2, 1.0])
def test_the_clipped_value_loss_agrees(verl: Any, seed: int, clip: float) -> None:
    batch = random_batch(seed)
    mask = padded(batch)["response_mask"]
    values, before, targets = (token_matrix(batch, seed + 100 * k) for k in range(3))
    expected, held = verl.compute_value_loss(values, targets, before, mask, cliprange_value=clip)
    ours, ours_held = value_loss(*(flat(matrix, mask) for matrix in (values, targets, before)), clip=clip)
    assert ours.mean().item() == pytest.approx(expected.item(), rel=1e-9)
    assert ours_held.double().mean().item() == pytest.approx(held.item(), rel=1e-9)


def with_components(batch: TransitionBatch, names: Sequence[str], seed: int) -> TransitionBatch:
    """The batch with a random reward of every name for each rollout, of quite different sizes."""
    random = np.random.default_rng(seed + 1000)
    values = random.normal(size=(len(batch), len(names))) * 10.0 ** np.arange(len(names))
    return TransitionBatch(
        tuple(
            replace(item, rollout_components=dict(zip(names, row.tolist(), strict=True)))
            for item, row in zip(batch.transitions, values, strict=True)
        )
    )


@pytest.mark.parametrize(("name", "estimator"), [("grpo", GRPO()), ("rloo", RLOO())], ids=["grpo", "rloo"])
def test_a_rollout_without_others_keeps_its_raw_reward_there_and_gets_nothing_here(
    verl: Any, name: str, estimator: AdvantageEstimator
) -> None:
    batch = random_batch(0, singletons=True)
    alone = np.array([item.group_id == "task-0" for item in batch.transitions])
    theirs, ours = verl_advantages(verl, name, batch), our_advantages(estimator, batch)
    assert theirs[alone] == pytest.approx(batch.rollout_rewards[alone], rel=1e-5)
    assert ours[alone].tolist() == [0.0]
    assert ours[~alone] == pytest.approx(theirs[~alone], rel=1e-9, abs=1e-9)


def token_matrix(batch: TransitionBatch, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(len(batch), WIDTH)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("weighting", "mode", "options"),
    [
        (Weighting("rollout"), "seq-mean-token-mean", {}),
        (Weighting("call"), "seq-mean-token-mean", {}),
        (Weighting("token"), "token-mean", {}),
        (Weighting("constant", length=40), "seq-mean-token-sum-norm", {"loss_scale_factor": 40}),
    ],
    ids=["rollout", "call", "token", "constant"],
)
def test_token_weights_sum_to_the_loss_aggregation_of_that_kind(
    verl: Any, weighting: Weighting, mode: str, options: dict[str, Any], seed: int
) -> None:
    batch = random_batch(seed)
    losses, mask = token_matrix(batch, seed), padded(batch)["response_mask"]
    expected = verl.agg_loss(losses, mask, mode, **options).item()
    ours = (losses * mask).numpy() * weighting.token_weights(batch)[:, None]
    assert ours.sum() == pytest.approx(expected, rel=1e-7)


def flat(matrix: Tensor, mask: Tensor) -> Tensor:
    return matrix[mask.bool()]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.2, 0.28)], ids=["symmetric", "clip_higher"])
def test_a_whole_step_gives_the_same_loss_and_gradient(
    verl: Any, make_verl_actor: Callable[[float, float], Any], seed: int, clip: Sequence[float]
) -> None:
    low, high = clip
    batch = random_batch(seed)
    matrices = padded(batch)
    mask = matrices["response_mask"]
    old = -torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # ratios from 0.55 to 1.8: far outside the clip range on both sides, inside verl's further bound of 3
    new = (old + (token_matrix(batch, seed) * 0.3).clamp(-0.6, 0.6)).requires_grad_()
    advantages, _ = verl.get_adv_estimator_fn("grpo")(**matrices)
    expected, metrics = verl.compute_policy_loss_vanilla(
        old, new, advantages, mask, loss_agg_mode="seq-mean-token-mean", config=make_verl_actor(low, high)
    )
    (expected_gradient,) = torch.autograd.grad(expected, new)
    assert metrics["actor/pg_clipfrac"] > 0.05

    report = LightningRL(Identical(), GRPO(), Weighting("rollout")).compute(batch)
    per_token = [torch.from_numpy(a).unsqueeze(1).expand(mask.shape) for a in (report.advantages, report.token_weights)]
    advantage, weight = (flat(matrix, mask) for matrix in per_token)
    ratio = log_ratio(flat(new, mask), flat(old, mask))
    loss = (weight * ppo_clip(ratio, advantage, clip_low=low, clip_high=high)).sum()
    (gradient,) = torch.autograd.grad(loss, new)

    assert loss.item() == pytest.approx(expected.item(), rel=1e-7, abs=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_kl_estimate_agrees(verl: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    policy, reference = (-torch.rand(50, generator=generator, dtype=torch.float64) * 2 for _ in range(2))
    # verl cuts the estimate off at 10, which log-probabilities this close do not reach
    expected = verl.kl_penalty_forward(policy, reference, "low_var_kl")
    torch.testing.assert_close(k3(policy, reference), expected, rtol=1e-12, atol=1e-12)
