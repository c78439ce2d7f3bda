"""TRL's side of train_step.py: its GRPOTrainer's own loop, held between two steps until the next one is asked for."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

ROWS_AT_A_TIME = 4
"""Of a forward and backward pass: the fastest of 1, 2, 4, 8 and 16 here; all 64 at once need more than 24 GB."""


def answer(value: Any) -> None:
    """One line of JSON."""
    print(json.dumps({"answer": value}), flush=True)


def question() -> dict[str, Any]:
    """The next one; none ends the script."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return dict(json.loads(line))


class Held(TrainerCallback):
    """Lets the trainer take a step when it is asked for, and says how long it took. It is the reward function, too.

    The trainer asks for rewards when it has sampled a step's answers; what follows is learning.
    """

    __name__ = "reward"

    def __init__(self) -> None:
        self._begun = self._sampled = (0.0, 0.0)

    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        """Rewards, as ours."""
        self._sampled = (time.perf_counter(), time.process_time())
        return [hashlib.sha256(text.encode()).digest()[0] / 255 for text in completions]

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Waits to be asked."""
        question()
        self._begun = (time.perf_counter(), time.process_time())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Answers."""
        ended = (time.perf_counter(), time.process_time())
        seconds = {}
        for place, clock in enumerate(("", ", processor")):
            seconds[f"step{clock}"] = ended[place] - self._begun[place]
            seconds[f"sampling{clock}"] = self._sampled[place] - self._begun[place]
            seconds[f"learning{clock}"] = ended[place] - self._sampled[place]
        answer(seconds)


def trainer_of(asked: dict[str, Any], held: Held, folder: str) -> GRPOTrainer:
    """The trainer, set to do what ours does."""
    rows = asked["prompts"] * asked["group"]
    at_a_time = min(ROWS_AT_A_TIME, rows)
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        fp16=False,
        model_init_kwargs={"dtype": "float32"},
        gradient_checkpointing=False,
        per_device_train_batch_size=at_a_time,
        gradient_accumulation_steps=rows // at_a_time,
        steps_per_generation=rows // at_a_time,
        num_generations=asked["group"],
        max_completion_length=asked["answer"],
        generation_kwargs={"min_new_tokens": asked["answer"]},
        temperature=1.0,
        beta=0.0,
        loss_type="grpo",
        learning_rate=asked["learning_rate"],
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        max_steps=1_000_000,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        shuffle_dataset=False,
        seed=1,
    )
    data = Dataset.from_dict({"prompt": asked["texts"]})
    return GRPOTrainer(asked["model"], reward_funcs=held, args=config, train_dataset=data, callbacks=[held])


def gradient(trainer: GRPOTrainer, asked: dict[str, Any]) -> None:
    """Of TRL's own loss, on the rows given; all answers are equally long."""
    advantages = torch.tensor(asked["advantages"])
    pad = trainer.processing_class.pad_token_id
    longest = max(len(row["prompt"]) for row in asked["rows"])
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = len(advantages) // ROWS_AT_A_TIME or 1
    for start in range(0, len(advantages), ROWS_AT_A_TIME):
        rows = asked["rows"][start : start + ROWS_AT_A_TIME]
        prompts = [[pad] * (longest - len(row["prompt"])) + row["prompt"] for row in rows]
        masks = [[0] * (longest - len(row["prompt"])) + [1] * len(row["prompt"]) for row in rows]
        answers = torch.tensor([row["answer"] for row in rows])
        inputs = {
            "prompt_ids": torch.tensor(prompts),
            "prompt_mask": torch.tensor(masks),
            "completion_ids": answers,
            "completion_mask": torch.ones_like(answers),
            "advantages": advantages[start : start + ROWS_AT_A_TIME],
            "num_items_in_batch": answers.numel(),
        }
        trainer.compute_loss(trainer.model, inputs).backward()
    found = {name: weight.grad.clone() for name, weight in trainer.model.named_parameters() if weight.grad is not None}
    save_file(found, asked["path"])
    trainer.model.zero_grad()


def main() -> None:
    """Answers until the input ends."""
    torch.set_num_threads(int(sys.argv[1]))
    asked = question()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(asked, Held(), folder)
        answer(sorted({len(ids) for ids in trainer.processing_class(asked["texts"])["input_ids"]}))
        gradient(trainer, question())
        answer("saved")
        trainer.train()


if __name__ == "__main__":
    main()
