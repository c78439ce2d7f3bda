"""The backend's own table of train.toml. Imports neither torch nor transformers: `--dry-run` validates without them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DecayRate = Annotated[float, Field(strict=True, ge=0, lt=1)]
OWN_SAMPLERS: Final = ("shared", "process")
_OWN_SAMPLERS_SETTINGS: Final = ("decode_threads", "max_rows", "prefix_cache_mb")
Threads = Literal["auto"] | Annotated[int, Field(ge=1, le=1024)]


class LoraOptions(BaseModel):
    """Low-rank adapters (arXiv 2106.09685): only these are trained."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    """The adapter's output is scaled by alpha / rank."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = "all-linear"
    """Names of the layers that get an adapter, such as q_proj; all-linear means every linear layer except the head."""


class TorchOptions(BaseModel):
    """How the torch backend loads, samples and trains its model."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str = Field(default="smollm2-135m", min_length=1)
    """A Hugging Face folder, a .gguf file, or smollm2-135m."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes the GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the matrix multiplications; weights and optimiser are always kept in fp32. auto measures which is faster."""
    decode_threads: Threads = "auto"
    """Threads of the sampler; auto measures. A GPU needs none."""
    train_threads: Threads = "auto"
    """Threads of the learner; auto measures. Results are bit-equal between runs only on one thread."""
    sampler: str = Field(default="shared", min_length=1)
    """shared draws with the learner's own weights; process with a copy of them in a process of its own, so that neither slows the
    other down where rollouts overlap with learning. Any other is the name of a plug-in that brings servers, such as vllm, whose
    settings are a table of that name within this one."""
    max_rows: int = Field(default=64, ge=1)
    """Most answers sampled at the same time."""
    prefix_cache_mb: int = Field(default=256, ge=0)
    """Memory for keys and values of prompts seen before."""
    adapter: Literal["none", "lora"] = "none"
    """none trains every weight."""
    lora: LoraOptions | None = None
    """Only with adapter = "lora"; left out, that has its defaults."""
    max_sequence: int = Field(default=2048, ge=2)
    """Most tokens of a prompt and its answer that are trained on; lowered to the model's context."""
    max_tokens_per_pass: int = Field(default=512, ge=1)
    """Token positions of one forward and backward pass; more passes are accumulated. Bounds memory, not results."""
    tree_attention: Literal["auto", "flex"] = "auto"
    """How the learner attends over shared prefixes. auto: by the paths of the tree on a CPU, by a dense mask on a GPU; flex: by
    FlexAttention, on a GPU only."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The gradient is scaled down to this norm."""
    betas: tuple[DecayRate, DecayRate] = Field(default=(0.9, 0.95), strict=False)
    """AdamW's decay rates of the first and second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's, on matrices only."""

    @model_validator(mode="after")
    def _lora_table_goes_with_lora(self) -> Self:
        if self.adapter == "none" and self.lora is not None:
            raise ValueError('the table lora does nothing unless adapter = "lora"')
        return self

    @model_validator(mode="after")
    def _samplers_settings_go_with_it(self) -> Self:
        idle = [name for name in _OWN_SAMPLERS_SETTINGS if self.served and name in self.model_fields_set]
        if idle:
            raise ValueError(
                f'{", ".join(idle)} would do nothing with sampler = "{self.sampler}", which has settings of its own'
            )
        return self

    @model_validator(mode="after")
    def _flex_needs_a_gpu(self) -> Self:
        if self.tree_attention == "flex" and self.device == "cpu":
            raise ValueError('tree_attention = "flex" needs a GPU: torch has no backward of FlexAttention on a CPU')
        return self

    @property
    def served(self) -> bool:
        """Answers are drawn by servers that another plug-in brings."""
        return self.sampler not in OWN_SAMPLERS

    def filled_in(self) -> dict[str, Any]:
        """All settings that do something, defaults included; gives an equal object when read again."""
        return self.model_dump(mode="json", exclude=set(_OWN_SAMPLERS_SETTINGS) if self.served else set())

    @property
    def adapter_options(self) -> LoraOptions | None:
        """The adapter to train, or None to train every weight."""
        if self.adapter == "none":
            return None
        return self.lora or LoraOptions()
