"""What a train.toml says about a learnt value has an effect, or is an error before the first rollout; and a step's values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spangrad.backend import Capabilities, CriticSettings, UpdateBatch
from spangrad.errors import ConfigError
from spangrad.lightningrl import GAE, GRPO, Identical, LightningRL
from spangrad.plugins import load_plugins
from spangrad.plugins._registry import Registered
from spangrad.testing import ScriptedBackend, ScriptedFactory
from spangrad.training import load_config
from spangrad.training._critic import values_of
from spangrad.training._loss import loss_settings
from spangrad.training._preparation import checked_parts
from spangrad.training._problems import Problems
from spangrad.training._updates import update_batches
from spangrad.transitions import TransitionBatch

GAE_OVER_CALLS = "algorithm.estimator=gae"
GAE_OVER_TOKENS = "algorithm.estimator={name = 'gae', level = 'token', whiten = false}"
SEVERAL = "training.updates_per_step=2"
Check = Callable[..., LightningRL]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Checks a train.toml with the given lines as overrides, against a scripted backend of the given capabilities."""
    path = tmp_path / "train.toml"
    path.write_text('backend = "scripted"\n[agent]\nrun = "a:b"\n[tasks]\ntrain = "t.jsonl"\n[training]\nsteps = 1\n')

    def checked(*overrides: str, capabilities: Capabilities | None = None) -> LightningRL:
        plugins = load_plugins({"SPANGRAD_PLUGINS": ""})
        factory = ScriptedFactory(lambda _: "x", capabilities=capabilities)
        plugins.backends.add(Registered("scripted", factory, plugin="test", distribution="test"))
        loaded = load_config(path, overrides)
        problems = Problems(loaded)
        algorithm = checked_parts(loaded, plugins, problems).algorithm
        problems.check()
        assert algorithm is not None
        return algorithm

    return checked


def test_the_estimator_and_its_critic_are_read_with_their_options(check: Check, tmp_path: Path) -> None:
    algorithm = check(GAE_OVER_TOKENS, "algorithm.critic={learning_rate = 0.5, clip = 0.2, coefficient = 0.1}", SEVERAL)
    assert algorithm.estimator == GAE(level="token", whiten=False)
    settings = loss_settings(load_config(tmp_path / "train.toml", ["algorithm.critic={learning_rate = 0.5}"])).critic
    assert settings == CriticSettings(learning_rate=0.5)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("algorithm.critic={}",), "algorithm.critic: the estimator grpo goes by no value; it would do nothing"),
        (
            (GAE_OVER_CALLS, "algorithm.critic={clip = 0.2}"),
            "algorithm.critic.clip: with one update per step every value",
        ),
        (
            (GAE_OVER_CALLS, "training.learning_rate=0.01"),
            "algorithm.critic.learning_rate: 0.01 is not above training.learning_rate = 0.01",
        ),
        ((GAE_OVER_CALLS, "algorithm.critic={rate = 0.2}"), "Its options: learning_rate, clip, coefficient"),
        ((GAE_OVER_CALLS, "algorithm.critic={learning_rate = 0}"), "learning_rate is 0"),
        ((GAE_OVER_CALLS, "algorithm.critic={clip = -1}", SEVERAL), "clip is -1"),
        ((GAE_OVER_CALLS, "algorithm.critic={coefficient = '1'}"), "coefficient is '1'"),
        ((GAE_OVER_CALLS, "algorithm.critic={coefficient = 1e300}"), "at least 0 and at most 100"),
        ((GAE_OVER_CALLS, "algorithm.credit=discounted"), "the credit assigner discounted would do nothing"),
        ((GAE_OVER_CALLS, "algorithm.per_agent=true"), "gae compares no calls with others: per_agent = true would do"),
        (
            (GAE_OVER_TOKENS, 'algorithm.statistics="call"'),
            'gae takes no mean over the batch: statistics = "call" would',
        ),
        ((GAE_OVER_TOKENS, "algorithm.loss=gspo", SEVERAL), "algorithm.loss: gspo takes one advantage per call"),
        (("algorithm.estimator={name = 'gae', lambda = 1}",), "Its options: level, gamma, lam, whiten, eps"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(check: Check, overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        check(*overrides)


def test_a_backend_without_values_or_without_tokens_is_refused(check: Check) -> None:
    with pytest.raises(ConfigError, match="gae goes by values, but the backend has none"):
        check(GAE_OVER_CALLS, capabilities=Capabilities())
    with pytest.raises(
        ConfigError, match="gae gives one advantage per token, but the backend takes them per transition"
    ):
        check(GAE_OVER_TOKENS, capabilities=Capabilities(values=True))


def test_one_rollout_of_a_task_is_enough(check: Check) -> None:
    assert check(GAE_OVER_CALLS, "training.rollouts_per_task=1").estimator == GAE()


async def test_values_are_asked_for_where_they_are_wanted_and_the_learner_takes_the_call(
    make_transition_batch: Callable[..., TransitionBatch],
) -> None:
    learner = ScriptedBackend(lambda _: "x", context_length=6).policies["policy"].learner
    learner.value = 0.25
    batch = make_transition_batch([("task", 1.0, [2, 4, 3])])  # the prompts have 3 tokens
    assert await values_of({"policy": learner}, LightningRL(Identical(), GRPO()), batch) is None
    found = await values_of({"policy": learner}, LightningRL(Identical(), GAE()), batch)
    assert found is not None
    assert [None if row is None else row.tolist() for row in found] == [[0.25] * 2, None, [0.25] * 3]


async def updates(tmp_path: Path, algorithm: LightningRL, batch: TransitionBatch) -> list[UpdateBatch]:
    """The two update batches of a step."""
    learner = ScriptedBackend(lambda _: "x").policies["policy"].learner
    report = algorithm.compute(batch, values=await values_of({"policy": learner}, algorithm, batch))
    path = tmp_path / "train.toml"
    path.write_text('[agent]\nrun = "a:b"\n[tasks]\ntrain = "t.jsonl"\n[training]\nsteps = 1\n')
    loaded = load_config(path, [SEVERAL, "algorithm.critic={clip = 0.5}"])
    return await update_batches(loaded.config, loss_settings(loaded), learner, report, policy="policy", step=1)


async def test_every_update_gets_the_targets_and_token_advantages_of_its_calls(
    tmp_path: Path, make_transition_batch: Callable[..., TransitionBatch]
) -> None:
    batch = make_transition_batch([("a", 1.0, [2]), ("b", 0.5, [1])])
    algorithm = LightningRL(Identical(), GAE(level="token", lam=1.0, whiten=False))
    first, second = await updates(tmp_path, algorithm, batch)
    assert [row.tolist() for row in first.token_advantages or ()] == [[1.0, 1.0]]
    assert [row.tolist() for row in second.token_advantages or ()] == [[0.5]]
    assert second.value_targets is not None
    assert [row.tolist() for row in second.value_targets.targets] == [[0.5]]
    assert first.loss.critic.clip == 0.5
    over_calls = await updates(tmp_path, LightningRL(Identical(), GAE(whiten=False)), batch)
    assert [each.token_advantages for each in over_calls] == [None, None]


async def test_the_scripted_learner_learns_the_mean_of_the_targets_and_keeps_it(
    tmp_path: Path, make_transition_batch: Callable[..., TransitionBatch]
) -> None:
    batch = make_transition_batch([("a", 1.0, [2]), ("b", 0.5, [1])])
    first, _ = await updates(tmp_path, LightningRL(Identical(), GAE(whiten=False)), batch)
    old, new = (
        ScriptedBackend(lambda _: "x").policies["policy"].learner,
        ScriptedBackend(lambda _: "x").policies["policy"].learner,
    )
    await old.update(first)
    await old.save(tmp_path / "saved")
    await new.load(tmp_path / "saved")
    assert [row.tolist() for row in await new.values(batch)] == [[1.0, 1.0], [1.0]]
    assert np.isclose(new.value, 1.0)
