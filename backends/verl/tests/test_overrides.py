"""Options of verl's as overrides, against a small configuration of the same form."""

from __future__ import annotations

from typing import Any

import pytest

from spangrad_verl._overrides import Override, read_overrides

KNOWN: dict[str, Any] = {
    "actor_rollout_ref": {
        "model": {"path": "x", "lora_rank": 0, "override_config": {}, "target_modules": "all-linear"},
        "actor": {
            "strategy": "fsdp",
            "loss_agg_mode": "token-mean",
            "optim": {"_target_": "Optimizer", "lr": 1e-3, "weight_decay": 0.01, "betas": [0.9, 0.999]},
            "use_dynamic_bsz": False,
        },
        "rollout": {"n": 1},
    },
    "ray_kwargs": {"ray_init": {"num_cpus": None, "runtime_env": {"py_executable": None}}},
    "trainer": {"n_gpus_per_node": 8, "total_epochs": 30},
}


def fields(target: str) -> frozenset[str]:
    assert target == "Optimizer"
    return frozenset({"lr", "weight_decay", "clip_grad"})


def written(tables: dict[str, Any]) -> list[str]:
    overrides, refused = read_overrides(tables, KNOWN, fields)
    assert refused == []
    return [str(override) for override in overrides]


def refusals(tables: dict[str, Any]) -> list[tuple[str, str]]:
    return [(".".join(refusal.key), refusal.why) for refusal in read_overrides(tables, KNOWN, fields)[1]]


@pytest.mark.parametrize(
    "tables",
    [
        {"actor_rollout_ref": {"actor": {"optim": {"weight_decay": 0.1}}}},
        {"actor_rollout_ref.actor.optim.weight_decay": 0.1},
        {"actor_rollout_ref": {"actor.optim": {"weight_decay": 0.1}}},
    ],
)
def test_tables_and_dots_mean_the_same(tables: dict[str, Any]) -> None:
    assert written(tables) == ["++actor_rollout_ref.actor.optim.weight_decay=0.1"]


def test_what_verls_class_takes_may_be_set_though_its_configuration_does_not_name_it() -> None:
    assert written({"actor_rollout_ref.actor.optim.clip_grad": 0.5}) == [
        "++actor_rollout_ref.actor.optim.clip_grad=0.5"
    ]


def test_a_table_that_verl_leaves_empty_takes_anything() -> None:
    found = written({"actor_rollout_ref.model.override_config": {"attn_implementation": "sdpa", "layers": [1, 2]}})

    assert found == ["++actor_rollout_ref.model.override_config={attn_implementation:'sdpa',layers:[1,2]}"]


def test_rays_own_options_go_to_ray() -> None:
    found = written({"ray_kwargs": {"ray_init": {"num_cpus": 4, "runtime_env": {"env_vars": {"A": "b"}}}}})

    assert found == [
        "++ray_kwargs.ray_init.num_cpus=4",
        "++ray_kwargs.ray_init.runtime_env={env_vars:{A:'b'}}",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (3, "3"),
        (0.25, "0.25"),
        ("it's", r"'it\'s'"),
        ("C:\\", "'C:\\\\'"),
        ([1, "a"], "[1,'a']"),
        ({"a": {"b": False}}, "{a:{b:false}}"),
    ],
)
def test_values_are_written_in_hydras_grammar(value: Any, text: str) -> None:
    assert str(Override(("a", "b"), value)) == f"++a.b={text}"


@pytest.mark.parametrize(
    ("tables", "key", "why"),
    [
        (
            {"actor_rollout_ref": {"actor": {"stratgy": "fsdp2"}}},
            "actor_rollout_ref.actor.stratgy",
            "did you mean strategy",
        ),
        ({"nothing": {"like": 1}}, "nothing", "no such option"),
        ({"actor_rollout_ref.actor.optim.lr": 1.0}, "actor_rollout_ref.actor.optim.lr", "training.learning_rate"),
        (
            {"actor_rollout_ref.actor": {"loss_agg_mode": "x"}},
            "actor_rollout_ref.actor.loss_agg_mode",
            "algorithm.weighting",
        ),
        ({"actor_rollout_ref.rollout.n": 4}, "actor_rollout_ref.rollout.n", "[verl.vllm]"),
        ({"trainer": {"total_epochs": 3}}, "trainer.total_epochs", "would do nothing"),
        ({"actor_rollout_ref.model.lora_rank": "8"}, "actor_rollout_ref.model.lora_rank", "an integer"),
        ({"actor_rollout_ref.actor.use_dynamic_bsz": 1}, "actor_rollout_ref.actor.use_dynamic_bsz", "true or false"),
        ({"actor_rollout_ref.actor.optim.betas": 0.9}, "actor_rollout_ref.actor.optim.betas", "a list"),
        ({"actor_rollout_ref.actor.optim": 1}, "actor_rollout_ref.actor.optim", "a table"),
        (
            {"trainer": {"n_gpus_per_node": 1}, "trainer.n_gpus_per_node": 2},
            "trainer.n_gpus_per_node",
            "given twice",
        ),
    ],
)
def test_an_option_that_cannot_be_set_is_named_with_the_reason(tables: dict[str, Any], key: str, why: str) -> None:
    ((found, reason),) = refusals(tables)

    assert found == key
    assert why in reason
