"""The maths example with verl and vLLM, on the CPU: `spangrad train` as a user types it, for a few rollouts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.timeout(2400)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "math_autogen"
VERL: Final = """[verl]
max_sequence = 1024

[verl.vllm]
dtype = "float32"
context = 1024
flags = { max-num-seqs = 32 }
log_folder = "logs"

[verl.trainer]
device = "cpu"

[verl.ray_kwargs.ray_init]
num_cpus = 2
include_dashboard = false
object_store_memory = 200_000_000

[verl.actor_rollout_ref.model]
use_remove_padding = false
override_config = { attn_implementation = "sdpa" }

[verl.actor_rollout_ref.actor]
ppo_max_token_len_per_gpu = 2048

[verl.actor_rollout_ref.actor.fsdp_config]
use_torch_compile = false
mixed_precision = { param_dtype = "fp32", reduce_dtype = "fp32" }

"""
SHORT: Final = '''"""Makes a short trial of the example."""

from __future__ import annotations

import tasks


def few() -> list[tasks.Task]:
    return tasks.heldout()[:2]


def reward(output: str | None) -> float:
    """A model this little trained is hardly ever right; but some answers are longer than others."""
    return 1 / (1 + len(output or ""))
'''
OVERRIDES: Final = (
    "agent.reward=short:reward",
    'tasks.heldout={few="short:few"}',
    "warm_start.steps=1",
    "warm_start.batch=2",
    "warm_start.ramp_steps=0",
    "training.steps=2",
    "training.tasks_per_step=2",
    "training.rollouts_per_task=4",
    "training.ramp_steps=0",
    "sampling.max_tokens=32",
    "rollouts.concurrency=8",
    "evaluation.every=0",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run."""
    place = tmp_path_factory.mktemp("run")
    shutil.copytree(EXAMPLE, place / "example")
    text = (EXAMPLE / "train.toml").read_text(encoding="utf-8").replace('backend = "torch"', 'backend = "verl"')
    begin, end = text.index("[torch]"), text.index("[warm_start]")
    (place / "example" / "train.toml").write_text(text[:begin] + VERL + text[end:], encoding="utf-8")
    (place / "example" / "short.py").write_text(SHORT, encoding="utf-8")
    before, after = (tomllib.loads((at / "train.toml").read_text()) for at in (EXAMPLE, place / "example"))
    assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} == {
        "backend",
        "torch",
        "verl",
    }
    sets = [word for override in OVERRIDES for word in ("--set", override)]
    command = [sys.executable, "-m", "spangrad", "train", "example/train.toml", *sets]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=2300, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return place / "runs" / "math_autogen"


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_every_step_updates_the_policy_and_what_is_drawn_next_is_the_updated_one(run: Path) -> None:
    steps = records(run, "step")

    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["rollouts"] == 8 and not step["failures"] for step in steps)
    # In float32 vLLM draws with the learner's very weights, up to rounding: those of the warm start, then those of step 1.
    for step in steps:
        (update,) = step["updates"]
        assert update["grad_norm"] > 0
        assert update["mismatch_tokens"] == update["tokens"] > 0
        assert abs(update["mismatch_kl"]) < 1e-3
    assert [step["policy_versions"]["policy"] for step in steps] == [2, 3]  # the warm start made the first


def test_the_run_ends_with_a_model_that_transformers_loads(run: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoModelForCausalLM.from_pretrained(run / "model").config.model_type == "llama"
    assert AutoTokenizer.from_pretrained(run / "model").chat_template


def test_the_summary_says_what_trained_and_what_drew(run: Path) -> None:
    backend = json.loads((run / "summary.json").read_text(encoding="utf-8"))["backend"]

    assert backend["training"] == "all weights of a model of type llama by verl"
    assert backend["workers"] == 1
    assert backend["vllm"]["device"] == "cpu"
