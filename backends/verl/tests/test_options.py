"""`[verl]` of train.toml, validated by verl's own configuration."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from backends.verl.tests.settings import ON_CPU
from pydantic import ValidationError

from spangrad.errors import PluginError
from spangrad_verl import _installation
from spangrad_verl._checked import read_options
from spangrad_verl._terms import LIKELIHOOD
from spangrad_verl._worker_config import compute_dtype, loss_function
from spangrad_verl.plugin import VerlFactory

pytestmark = pytest.mark.verl


def problems(options: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        read_options(options)
    return {".".join(map(str, part["loc"])): part["msg"] for part in caught.value.errors()}


def test_what_is_not_set_is_verls_own_but_for_a_few() -> None:
    verl = read_options({}).verl

    actor = verl.actor_rollout_ref.actor
    assert actor.strategy == "fsdp2"
    assert actor.use_dynamic_bsz is True
    assert (list(actor.optim.betas), actor.optim.weight_decay) == ([0.9, 0.95], 0.0)
    assert actor.optim.clip_grad == 1.0
    assert verl.trainer.n_gpus_per_node == 1
    assert compute_dtype(verl) == "bfloat16"


def test_options_reach_verls_configuration_and_survive_being_written_down() -> None:
    given = {**ON_CPU, "max_sequence": 300, "vllm": {"dtype": "float32"}}
    found = VerlFactory().check(given)

    assert VerlFactory().check(found) == found
    verl = read_options(found).verl
    assert verl.actor_rollout_ref.model.override_config.attn_implementation == "sdpa"
    assert compute_dtype(verl) == "float32"
    assert found["vllm"]["dtype"] == "float32"


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = problems(
        {
            "actor_rollout_ref": {"actor": {"optim": {"lr": 1e-3, "weight_decay": "much"}, "stratgy": "fsdp2"}},
            "critic": {"strategy": "fsdp2"},
            "vllm": {"servers": 0},
        }
    )

    assert set(found) == {
        "vllm.servers",
        "actor_rollout_ref.actor.optim.lr",
        "actor_rollout_ref.actor.optim.weight_decay",
        "actor_rollout_ref.actor.stratgy",
        "critic.strategy",
    }
    assert "did you mean strategy?" in found["actor_rollout_ref.actor.stratgy"]


@pytest.mark.parametrize(
    ("options", "key", "why"),
    [
        ({"max_sequence": "long"}, "max_sequence", "valid integer"),
        ({"sampler": "nobody"}, "sampler", "nobody"),
        ({"vllm": 3}, "vllm", "table of the sampler's settings"),
        ({"actor_rollout_ref.actor.strategy": "megatron"}, "actor_rollout_ref.actor", "fsdp"),
        (
            {"actor_rollout_ref.actor.use_dynamic_bsz": False},
            "actor_rollout_ref.actor",
            "ppo_micro_batch_size_per_gpu",
        ),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], key: str, why: str) -> None:
    found = problems(options)

    assert any(name.startswith(key) and why in message for name, message in found.items()), found


def test_the_loss_has_its_options_in_verls_own_class() -> None:
    function = loss_function(read_options({}).verl, LIKELIHOOD)

    config, terms = function.args
    assert terms == LIKELIHOOD
    assert (config.clip_ratio_low, config.clip_ratio_c) == (LIKELIHOOD.clip_low, LIKELIHOOD.bound)


def test_a_version_that_is_not_supported_is_said_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "ray":
            raise metadata.PackageNotFoundError
        return "0.8.0" if name == "verl" else real(name)

    monkeypatch.setattr(_installation, "version", version)

    with pytest.raises(PluginError, match=r"verl 0\.8\.0 is not supported .*; ray is not installed.*spangrad\[verl\]"):
        read_options({})


def test_the_declared_versions_are_the_ones_that_are_checked() -> None:
    import tomllib

    file = Path(__file__).parents[1] / "pyproject.toml"
    from packaging.requirements import Requirement
    from packaging.version import Version

    wanted = {
        r.name.lower(): r.specifier
        for r in map(Requirement, tomllib.loads(file.read_text())["project"]["dependencies"])
    }
    for name, supported in _installation.SUPPORTED.items():
        installed = Version(metadata.version(name))
        assert supported.contains(installed), name
        assert wanted[name].contains(installed), name


README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_settings_that_the_readme_shows_are_valid() -> None:
    import re
    import tomllib

    (block,) = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    found = read_options(tomllib.loads(block)["verl"])

    assert found.verl.actor_rollout_ref.model.lora_rank == 32
    assert found.verl.trainer.n_gpus_per_node == 4


def test_the_examples_settings_for_verl_are_those_for_one_gpu_but_for_the_backend() -> None:
    import tomllib

    folder = Path(__file__).parents[3] / "examples" / "math_autogen"
    one, many = (tomllib.loads((folder / f"train.{name}.toml").read_text(encoding="utf-8")) for name in ("gpu", "verl"))

    assert {key for key in one.keys() | many.keys() if one.get(key) != many.get(key)} == {
        "name",
        "backend",
        "torch",
        "verl",
    }
    assert read_options(many["verl"]).verl.trainer.n_gpus_per_node == 4
