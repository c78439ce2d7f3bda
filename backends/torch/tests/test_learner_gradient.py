"""The gradient of a packed batch equals the sum of hand-made gradients: each transition alone, plain causal attention."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from spangrad.backend import KlTerm, LossSettings, PpoClip, UpdateBatch
from spangrad.transitions import Transition, TransitionBatch, pack_sequences
from spangrad_torch._adapters import choose_trained, merged_weights
from spangrad_torch._forward import predict, takes_tree_masks
from spangrad_torch._gradient import accumulate, pack_logprobs
from spangrad_torch._model import load_model
from spangrad_torch._options import LoraOptions
from spangrad_torch._sums import Sums
from spangrad_torch._work import lay_out

TOKENS = st.integers(3, 6)  # few, so that sequences share prefixes
TEMPERATURES = st.sampled_from([1.0, 0.7, 0.0])


@pytest.fixture(scope="module")
def model(tiny_model_folder: Path) -> PreTrainedModel:
    return load_model(tiny_model_folder).model


@st.composite
def transition(draw: st.DrawFn) -> Transition:
    action = draw(st.lists(TOKENS, min_size=1, max_size=5))
    logprobs = draw(st.lists(st.floats(-5, -0.1), min_size=len(action), max_size=len(action)))
    return Transition(
        rollout_id="r",
        attempt=0,
        group_id="g",
        call_id="c",
        choice=0,
        index=0,
        agent=None,
        policy="p",
        policy_version=0,
        prompt_ids=tuple(draw(st.lists(TOKENS, min_size=1, max_size=6))),
        action_ids=tuple(action),
        logprobs=tuple(logprobs),
        temperature=draw(TEMPERATURES),
        top_p=1.0,
        top_k=0,
        reward=None,
        rollout_reward=0.0,
    )


@st.composite
def update_batch(draw: st.DrawFn) -> UpdateBatch:
    rows = draw(st.lists(transition(), min_size=1, max_size=6))
    numbers = st.lists(st.floats(-2, 2), min_size=len(rows), max_size=len(rows))
    return UpdateBatch(
        transitions=TransitionBatch(tuple(rows)),
        learning_rate=1e-3,
        advantages=np.array(draw(numbers)),
        token_weights=np.abs(np.array(draw(numbers))),
        proximal=draw(st.sampled_from(["present", "recorded"])),
        loss=LossSettings(PpoClip(0.2, 0.3), draw(st.sampled_from([None, KlTerm("k3", 0.5)]))),
    )


def alone(model: PreTrainedModel, row: Transition, temperature: float) -> Tensor:
    """(A,) log-probabilities of one action: one sequence, no mask, no packing."""
    ids = torch.tensor([row.prompt_ids + row.action_ids])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1]
    chosen: Tensor = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(row.action_ids)[:, None])[:, 0]
    return chosen


def by_hand(model: PreTrainedModel, batch: UpdateBatch, reference: PreTrainedModel | None, *, imitate: bool) -> None:
    """Adds each transition's own gradient, the loss written out from its formula."""
    columns = zip(batch.transitions.transitions, batch.advantages.tolist(), batch.token_weights.tolist(), strict=True)
    for row, advantage, weight in columns:
        temperature = 1.0 if imitate or row.temperature == 0 else row.temperature
        new = alone(model, row, temperature)
        if imitate:
            (-weight * new).sum().backward()
            continue
        old = new.detach() if batch.proximal == "present" else torch.tensor(row.logprobs)
        ratio = (new - old).exp()
        loss = torch.maximum(-advantage * ratio, -advantage * torch.clip(ratio, 0.8, 1.3))
        if reference is not None:
            difference = alone(reference, row, temperature).detach() - new
            loss = loss + 0.5 * (difference.exp() - difference - 1)
        (weight * loss).sum().backward()


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    """The accumulated gradient by weight, which is then dropped; zeros where there is none."""
    found = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
    model.zero_grad()
    return found


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    scale = max(float(value.abs().max()) for value in right.values())
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=1e-4, atol=1e-5 * max(scale, 1e-3), msg=name)


def packed_gradient(
    model: PreTrainedModel, batch: UpdateBatch, reference: PreTrainedModel | None, *, imitate: bool, budget: int
) -> Sums:
    work = lay_out(batch, imitate=imitate, budget=budget, share=True)
    options = {"autocast": nullcontext, "before_pack": lambda: None}
    frozen = None if reference is None else pack_logprobs(reference, work, **options)  # type: ignore[arg-type]  # a dict of both
    return accumulate(model, work, frozen, **options)  # type: ignore[arg-type]  # as above


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=update_batch(), imitate=st.booleans(), budget=st.integers(1, 60))
def test_gradient_of_a_batch_is_the_sum_of_gradients_of_its_transitions(
    model: PreTrainedModel, other_model: PreTrainedModel, batch: UpdateBatch, *, imitate: bool, budget: int
) -> None:
    model.requires_grad_(requires_grad=True)
    reference = other_model if batch.loss.kl and not imitate else None
    by_hand(model, batch, reference, imitate=imitate)
    expected = gradients(model)
    packed_gradient(model, batch, reference, imitate=imitate, budget=budget)
    assert_equal(gradients(model), expected)


@pytest.fixture(scope="module")
def other_model(tiny_model_folder: Path) -> PreTrainedModel:
    """A reference whose weights differ."""
    other = load_model(tiny_model_folder).model
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return other


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(transition(), min_size=1, max_size=8), budget=st.integers(1, 60))
def test_packed_logprobs_are_those_of_each_sequence_alone(
    model: PreTrainedModel, rows: list[Transition], budget: int
) -> None:
    temperatures = np.array([row.temperature or 1.0 for row in rows])
    found: dict[tuple[int, int], float] = {}
    with torch.no_grad():
        for pack in pack_sequences(rows, budget=budget).packs:
            logprobs = predict(model, pack, temperatures[pack.owners]).logprobs.tolist()
            found |= dict(zip(zip(pack.owners.tolist(), pack.offsets.tolist(), strict=True), logprobs, strict=True))
        for number, row in enumerate(rows):
            expected = alone(model, row, temperatures[number]).tolist()
            assert [found[number, offset] for offset in range(len(expected))] == pytest.approx(expected, abs=1e-5)


@st.composite
def conversation(draw: st.DrawFn) -> list[tuple[tuple[int, ...], bool]]:
    """Turns in order: tokens, and whether the policy sampled them. The others are the prompt's and the tools'."""
    turns: list[tuple[tuple[int, ...], bool]] = []
    for _ in range(draw(st.integers(1, 4))):
        turns.append((tuple(draw(st.lists(TOKENS, min_size=1, max_size=4))), False))
        turns.append((tuple(draw(st.lists(TOKENS, min_size=1, max_size=4))), True))
    return turns


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(talks=st.lists(conversation(), min_size=1, max_size=4), data=st.data(), budget=st.integers(1, 60))
def test_what_tools_said_gives_no_gradient_in_policy_and_kl_terms(
    model: PreTrainedModel,
    other_model: PreTrainedModel,
    talks: list[list[tuple[tuple[int, ...], bool]]],
    data: st.DataObject,
    budget: int,
) -> None:
    """The reference never cuts a conversation into calls: one pass over all of it, and every token's loss times its mask."""
    model.requires_grad_(requires_grad=True)
    advantages = data.draw(st.lists(st.floats(-2, 2), min_size=len(talks), max_size=len(talks)))
    rows: list[Transition] = []
    owners: list[int] = []
    for number, turns in enumerate(talks):
        ids = torch.tensor([[token for tokens, _ in turns for token in tokens]])
        mask = torch.tensor([float(sampled) for tokens, sampled in turns for _ in tokens])[1:]
        with torch.no_grad():
            frozen = other_model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1)
            reference = frozen.gather(1, ids[0, 1:, None])[:, 0]
        new = model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        ratio, difference = (new - new.detach()).exp(), reference - new
        (mask * (-advantages[number] * ratio + 0.5 * (difference.exp() - difference - 1))).sum().backward()
        before: tuple[int, ...] = ()
        for tokens, sampled in turns:
            if sampled:
                rows.append(row_of(before, tokens))
                owners.append(number)
            before += tokens
    expected = gradients(model)
    batch = UpdateBatch(
        transitions=TransitionBatch(tuple(rows)),
        learning_rate=1e-3,
        advantages=np.array([advantages[owner] for owner in owners]),
        token_weights=np.ones(len(rows)),
        loss=LossSettings(PpoClip(0.2, 0.3), KlTerm("k3", 0.5)),
    )
    sums = packed_gradient(model, batch, other_model, imitate=False, budget=budget)
    assert sums.tokens == sum(len(tokens) for turns in talks for tokens, sampled in turns if sampled)
    assert_equal(gradients(model), expected)


def test_entropy_is_that_of_the_distribution_each_token_was_drawn_from(model: PreTrainedModel) -> None:
    rows = [row_of((3, 4), (5, 6)), row_of((3, 4), (6,))]
    (pack,) = pack_sequences(rows, budget=100).packs
    with torch.no_grad():
        predictions = predict(model, pack, np.full(3, 0.5))
        logits = model(input_ids=torch.tensor([[3, 4, 5]])).logits[0, 1:] / 0.5
    first, second = torch.special.entr(logits.softmax(-1)).sum(-1).tolist()
    found = dict(
        zip(zip(pack.owners.tolist(), pack.offsets.tolist(), strict=True), predictions.entropy.tolist(), strict=True)
    )
    assert found == pytest.approx({(0, 0): first, (0, 1): second, (1, 0): first}, abs=1e-5)


def row_of(prompt: tuple[int, ...], action: tuple[int, ...], logprobs: tuple[float, ...] | None = None) -> Transition:
    return Transition(
        "r", 0, "g", "c", 0, 0, None, "p", 0, prompt, action, logprobs or (-1.0,) * len(action), 1.0, 1.0, 0, None, 0.0
    )


def test_adapters_get_the_same_gradient_packed_as_alone_and_merge_into_the_weights(tiny_model_folder: Path) -> None:
    model = load_model(tiny_model_folder).model
    trained = choose_trained(model, LoraOptions(rank=4, alpha=8), seed=3)
    assert all(".lora_" in name for name in trained)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in trained.values():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    rows = (row_of((3, 4, 5), (6, 7, 8)), row_of((3, 4, 5), (6, 9)), row_of((3, 4, 5, 6, 7), (3, 3)))
    batch = UpdateBatch(TransitionBatch(rows), 1e-3, np.array([1.0, -1.0, 0.5]), np.array([0.5, 0.25, 1.0]))
    by_hand(model, batch, None, imitate=False)
    expected = gradients(model)
    packed_gradient(model, batch, None, imitate=False, budget=6)
    assert_equal(gradients(model), expected)
    plain = load_model(tiny_model_folder).model
    plain.load_state_dict(merged_weights(model))
    with torch.no_grad():
        torch.testing.assert_close(alone(plain, rows[0], 1.0), alone(model, rows[0], 1.0), rtol=1e-5, atol=1e-5)


def test_sums_report_the_means_their_names_promise(model: PreTrainedModel) -> None:
    model.requires_grad_(requires_grad=True)
    rows = (row_of((3, 4), (5, 6), (-2.0, -3.0)), row_of((3, 4), (5,), (-9.0,)))
    batch = UpdateBatch(TransitionBatch(rows), 1e-3, np.array([1.0, -2.0]), np.array([1.0, 1.0]), proximal="recorded")
    sums = packed_gradient(model, batch, None, imitate=False, budget=100)
    gradients(model)
    with torch.no_grad():
        new = torch.cat([alone(model, row, 1.0) for row in rows])
    old = torch.tensor([-2.0, -3.0, -9.0])
    ratio = (new - old).exp()
    metrics = sums.metrics()
    assert sums.tokens == 3
    assert metrics["mismatch_tokens"] == 3
    assert metrics["mismatch_kl"] == pytest.approx((old - new).mean().item(), abs=1e-5)
    assert metrics["approx_kl"] == pytest.approx((ratio - 1 - (new - old)).mean().item(), rel=1e-4)
    up, down = ratio[:2] > 1.2, ratio[2:] < 0.8
    assert metrics["clip_fraction"] == pytest.approx((up.sum() + down.sum()).item() / 3)


def test_a_given_up_pass_stops_before_the_next_pack(model: PreTrainedModel) -> None:
    model.requires_grad_(requires_grad=True)
    rows = (row_of((3, 4), (5, 6)), row_of((7, 4), (5,)), row_of((8, 4), (5,)))
    batch = UpdateBatch(TransitionBatch(rows), 1e-3, np.ones(3), np.ones(3))
    work = lay_out(batch, imitate=False, budget=1, share=True)
    given_up, seen = threading.Event(), list[int]()

    def before_pack() -> None:
        seen.append(len(seen))
        if len(seen) == 2:
            given_up.set()
        if given_up.is_set():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        accumulate(model, work, None, autocast=nullcontext, before_pack=before_pack)
    gradients(model)
    assert seen == [0, 1]
    assert len(work.packed.packs) == 3


def test_a_full_attention_model_takes_tree_masks_and_one_with_a_window_does_not(tiny_model_folder: Path) -> None:
    model = load_model(tiny_model_folder).model
    assert takes_tree_masks(model)
    model.config.sliding_window = 128
    assert not takes_tree_masks(model)


def test_a_model_that_ignores_the_tree_mask_is_found_out(tiny_model_folder: Path) -> None:
    model = load_model(tiny_model_folder).model
    inner = model.model.forward

    def forward(*args: object, attention_mask: Tensor | None = None, **options: object) -> object:
        del attention_mask  # attends causally, whatever it is told
        return inner(*args, **options)

    model.model.forward = forward
    assert not takes_tree_masks(model)
