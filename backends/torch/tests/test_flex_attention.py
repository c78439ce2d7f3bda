"""FlexAttention over a tree gives what the dense mask gives, values and gradients.

On a CPU torch computes it step by step instead of in one kernel, and refuses the backward although that works step by step; the
refusal is taken out here. The fused kernel is a GPU's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch
from backends.torch.tests.trees import Tokens, batches, one_pack, wide_tree
from hypothesis import HealthCheck, given, settings
from torch import Tensor
from torch.nn.attention import flex_attention
from transformers import PreTrainedModel

from spangrad.errors import BackendError
from spangrad.transitions import PrefixTreePack
from spangrad_torch._backend import TorchBackend
from spangrad_torch._flex_attention import attend_by_flex, flex_mask
from spangrad_torch._forward import predict, takes_tree_masks
from spangrad_torch._model import load_model
from spangrad_torch._options import TorchOptions

pytestmark = [
    pytest.mark.usefixtures("step_by_step"),
    # torch's own, on the way to its compiler
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
]


@pytest.fixture
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled, and gradients are allowed on a CPU."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def models(tiny_model_folder: Path) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The same model twice: as it is, and prepared."""
    usual, prepared = load_model(tiny_model_folder).model, load_model(tiny_model_folder).model
    attend_by_flex(prepared)
    return usual, prepared


def learnt(model: PreTrainedModel, pack: PrefixTreePack) -> tuple[Tensor, list[Tensor | None]]:
    """Log-probabilities of a pack's actions, and the gradient of a sum of them that weighs each differently."""
    model.zero_grad()
    logprobs = predict(model, pack, np.ones(len(pack.targets))).logprobs
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    return logprobs.detach(), [weight.grad for weight in model.parameters()]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches)
def test_values_and_gradients_are_those_of_the_dense_mask(
    models: tuple[PreTrainedModel, PreTrainedModel], batch: list[Tokens]
) -> None:
    pack = one_pack(batch)
    (dense, dense_gradient), (flexible, gradient) = (learnt(model, pack) for model in models)
    torch.testing.assert_close(flexible, dense, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, dense_gradient, rtol=1e-4, atol=1e-4)


def test_in_bf16_it_takes_what_autocast_leaves_in_other_types(models: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    pack = wide_tree()
    usual, prepared = models
    exact, _ = learnt(usual, pack)
    with torch.autocast("cpu", torch.bfloat16):
        errors = [(learnt(model, pack)[0] - exact).abs().mean().item() for model in (usual, prepared)]
    assert 0 < errors[1] < 1.2 * errors[0]


def test_the_mask_passes_over_blocks_that_nobody_may_look_at(models: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    """Three branches of 255 nodes from one root, in blocks of 128. The first two blocks are the first branch's and the third
    the second's; the fourth ends with the first node of the third branch. All see the root's block, and back to where their branch begins.
    """
    usual, prepared = models
    pack = one_pack([Tokens((3,), tuple(10 + (branch * 256 + n) % 200 for n in range(256))) for branch in range(3)])
    assert flex_mask(usual, pack) is None
    mask = flex_mask(prepared, pack)
    assert mask is not None
    assert mask.shape == (1, 1, 766, 766)
    assert mask.to_dense()[0, 0].sum(-1).tolist() == [1, 2, 2, 3, 3, 4]


def test_a_prepared_model_takes_trees_and_plain_calls_of_it_are_untouched(
    models: tuple[PreTrainedModel, PreTrainedModel],
) -> None:
    usual, prepared = models
    assert takes_tree_masks(prepared)
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.equal(prepared(input_ids=ids).logits, usual(input_ids=ids).logits)


def test_without_a_gpu_it_is_refused(tiny_model_folder: Path) -> None:
    with pytest.raises(pydantic.ValidationError, match="needs a GPU"):
        TorchOptions(tree_attention="flex", device="cpu")
    if torch.cuda.is_available():
        return
    with pytest.raises(BackendError, match="torch sees none"):
        TorchBackend.load(TorchOptions(model=str(tiny_model_folder), tree_attention="flex"), seed=0)
