"""The real 135M model through the whole of it: train, export, evaluate, and the same answers from plain transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spangrad.store import open_store
from spangrad.transitions import Call

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples/from_scratch"

PLAIN_TRANSFORMERS = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = sys.argv[1]
assert not any(name.startswith("spangrad") for name in sys.modules)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
answers = []
for request in json.load(sys.stdin):
    ids = tokenizer.apply_chat_template(
        request["messages"], tools=request["tools"], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=request["max_tokens"], do_sample=False)
    answers.append({"prompt": ids[0].tolist(), "answer": output[0, ids.shape[1] :].tolist()})
print(json.dumps(answers))
"""


def spangrad(*arguments: str | Path) -> Any:
    command = [sys.executable, "-m", "spangrad", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def calls_of(run: Path) -> list[Call]:
    store = open_store(run / "spangrad.db", create=False)
    try:
        return [call for rollout in store.rollouts() for call in store.calls(rollout.rollout_id)]
    finally:
        store.close()


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trained_model_answers_the_same_in_plain_transformers(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    lines = [
        {"task_id": f"t{n}", "question": f"Ann has {n} pens and buys 7 more. How many pens now?", "answer": n + 7}
        for n in (21, 34)
    ]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    small = {
        "tasks.heldout.numbers": tasks,
        "tasks.heldout.phrasings": tasks,
        "warm_start.steps": 3,
        "warm_start.batch": 4,
        "training.steps": 1,
        "training.tasks_per_step": 2,
        "training.rollouts_per_task": 4,
        "torch.precision": "fp32",
    }
    settings = [part for key, value in small.items() for part in ("--set", f"{key}={value}")]
    config = EXAMPLE / "train.toml"

    trained = spangrad("train", config, "--runs", tmp_path, *settings)
    model = tmp_path / trained["run"] / "model"
    measured = spangrad("eval", config, "--runs", tmp_path, *settings, "--model", model)

    assert trained["backend"]["parameters"] == 134_515_008
    for name in ("numbers", "phrasings"):
        (again,) = [one for one in measured["evaluations"] if one["heldout"] == name]
        assert again["reward_mean"] == trained["heldout"][name]["after"]["reward_mean"]
    calls = calls_of(Path(measured["run"]))
    assert len(calls) >= 4
    plain = subprocess.run(
        [sys.executable, "-c", PLAIN_TRANSFORMERS, str(model)],
        input=json.dumps([call.request for call in calls]),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert plain.returncode == 0, plain.stderr
    for call, answer in zip(calls, json.loads(plain.stdout), strict=True):
        assert tuple(answer["prompt"]) == call.prompt_ids
        assert tuple(answer["answer"]) == call.choices[0].token_ids
