"""verl's composed configuration as the objects that its training worker takes."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from omegaconf import OmegaConf, open_dict
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, TrainingWorkerConfig

from spangrad.errors import BackendError
from spangrad_verl._loss import token_loss
from spangrad_verl._terms import LossTerms

_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def worker_config(verl: Any, folder: str, *, max_sequence: int) -> TrainingWorkerConfig:
    """The configuration of a worker that trains.

    Args:
        verl: verl's whole configuration, composed.
        folder: of the model.
        max_sequence: most tokens of a row.

    Raises:
        BackendError: verl cannot read the model, or does not take what is said of it.
    """
    actor = omega_conf_to_dataclass(verl.actor_rollout_ref.actor)
    model = OmegaConf.merge(verl.actor_rollout_ref.model, {"path": folder})
    try:
        model_config: HFModelConfig = omega_conf_to_dataclass(model)
    except Exception as error:  # whatever transformers and verl stumble over
        cause = error.__cause__ or error
        raise BackendError(
            f"verl cannot use the model {folder}: {cause}", cure="Check [verl.actor_rollout_ref.model] and the folder"
        ) from error
    engine = actor.engine
    engine.use_dynamic_bsz = actor.use_dynamic_bsz
    engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = max(
        actor.ppo_max_token_len_per_gpu, -(-max_sequence // engine.ulysses_sequence_parallel_size)
    )
    engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = actor.ppo_micro_batch_size_per_gpu
    engine.use_remove_padding = model_config.use_remove_padding
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=model_config,
        engine_config=engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )


def loss_function(verl: Any, terms: LossTerms) -> Any:
    """What a worker minimises; it is sent to the workers."""
    actor = verl.actor_rollout_ref.actor.copy()
    with open_dict(actor):
        actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c = terms.clip_low, terms.clip_high, terms.bound
        actor.tau_pos, actor.tau_neg = terms.tau_positive, terms.tau_negative
    return partial(token_loss, omega_conf_to_dataclass(actor), terms)


def compute_dtype(verl: Any) -> str:
    """torch's name of the type that forward passes compute in."""
    mixed = verl.actor_rollout_ref.actor.fsdp_config.get("mixed_precision") or {}
    name = str(mixed.get("param_dtype", "bf16"))
    return _DTYPES.get(name, name)
