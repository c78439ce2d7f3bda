"""The scripted backend: a whole backend whose policy is a script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from spangrad.backend import Backend, BackendFactory, SampleRequest, SamplingParams, UpdateBatch
from spangrad.errors import CheckpointError
from spangrad.testing import ScriptedBackend, ScriptedFactory, arithmetic_script
from spangrad.transitions import Transition, TransitionBatch


def batch() -> UpdateBatch:
    transition = Transition(
        rollout_id="r", attempt=1, group_id="g", call_id="c", choice=0, index=0, agent=None, policy="policy", policy_version=0,
        prompt_ids=(1, 2, 3), action_ids=(4, 5), logprobs=(-1.0, -1.0), temperature=1.0, top_p=1.0, top_k=0, reward=None,
        rollout_reward=1.0,
    )  # fmt: skip
    return UpdateBatch(TransitionBatch((transition,)), 1e-5, np.ones(1), np.ones(1))


async def said(backend: ScriptedBackend, question: str, **params: float) -> str:
    ids = backend.chat_format.render([{"role": "user", "content": question}])
    request = SampleRequest(ids, SamplingParams(**params))  # type: ignore[arg-type]  # temperature and seed
    return "".join([delta.text async for delta in backend.policies["policy"].sampler.sample(request)])


def test_it_is_a_backend_and_its_factory_a_factory() -> None:
    factory: BackendFactory = ScriptedFactory(lambda _: "x")
    backend: Backend = factory.create({}, seed=0)
    assert backend.name == backend.describe()["model"] == "scripted"


async def test_publishing_changes_what_the_policy_does() -> None:
    backend = ScriptedBackend(lambda prompt: f"version {prompt.policy_version}")
    assert await said(backend, "?") == "version 0"
    assert await backend.policies["policy"].learner.publish() == 1
    assert await said(backend, "?") == "version 1"
    assert backend.policies["policy"].version == 1


async def test_the_learner_keeps_what_it_was_given() -> None:
    learner = ScriptedBackend(lambda _: "x").policies["policy"].learner
    update, imitation = batch(), batch()
    report = await learner.update(update)
    await learner.imitate(imitation)
    await learner.freeze_reference()
    assert learner.updates[0] is update
    assert learner.imitations[0] is imitation
    assert (learner.steps, learner.references) == (2, 1)
    assert (report.tokens, report.computed_tokens) == (2, 5)


async def test_a_checkpoint_restores_the_counters_and_the_version(tmp_path: Path) -> None:
    first, second = ScriptedBackend(lambda _: "x"), ScriptedBackend(lambda _: "x")
    await first.policies["policy"].learner.update(batch())
    await first.policies["policy"].learner.publish()
    await first.policies["policy"].learner.save(tmp_path / "checkpoint")
    await second.policies["policy"].learner.load(tmp_path / "checkpoint")
    assert (second.policies["policy"].learner.steps, second.policies["policy"].version) == (1, 1)


@pytest.mark.parametrize("content", [None, "", "[]", '{"steps": "many"}'])
async def test_a_missing_or_damaged_checkpoint_is_an_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "scripted.json").write_text(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        await ScriptedBackend(lambda _: "x").policies["policy"].learner.load(tmp_path)


def test_the_factory_checks_its_options_and_keeps_what_it_made() -> None:
    factory = ScriptedFactory(lambda _: "x")
    assert factory.check({})["context_length"] == 65536
    with pytest.raises(ValidationError, match="context_lenght"):
        factory.check({"context_lenght": 5})
    backend = factory.create({"context_length": 100}, seed=1)
    assert factory.created == [backend]
    assert backend.policies["policy"].sampler.context_length == 100
    assert backend.policies["policy"].learner.max_sequence == 100


async def test_the_arithmetic_policy_is_right_as_often_as_its_skill_says() -> None:
    backend = ScriptedBackend(arithmetic_script(lambda version: 0.25 if version == 0 else 1.0))
    answers = [await said(backend, "3*4?", seed=seed) for seed in range(400)]
    assert set(answers) == {"12", "13"}
    assert 60 <= answers.count("12") <= 140
    await backend.policies["policy"].learner.publish()
    assert await said(backend, "3*4?", seed=1) == "12"


async def test_greedy_arithmetic_does_not_depend_on_the_seed() -> None:
    backend = ScriptedBackend(arithmetic_script(lambda _: 0.5))
    for question in ("1+1", "2-1", "3*3", "7+8"):
        assert len({await said(backend, question, temperature=0.0, seed=seed) for seed in range(5)}) == 1


async def test_the_arithmetic_policy_says_so_when_there_is_no_sum() -> None:
    assert await said(ScriptedBackend(arithmetic_script(lambda _: 1.0)), "hello") == "I only do sums."
