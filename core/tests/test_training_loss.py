"""What a train.toml says about the loss has an effect, or is an error before the first rollout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spangrad.backend import Capabilities, LossSettings
from spangrad.errors import ConfigError
from spangrad.training._loaded_config import LoadedConfig, load_config
from spangrad.training._loss import loss_conflicts, loss_settings, proximal_policy

EVERYTHING = Capabilities(
    losses=frozenset({"ppo_clip", "dual_clip", "gspo", "gspo_token", "cispo", "sapo", "reinforce"}),
    kl_forms=frozenset({"k1", "k2", "k3"}),
    corrections=frozenset({"truncated_is", "masked_is", "geometric"}),
    entropy_bonus=True,
    decoupled=True,
)

Load = Callable[..., LoadedConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Reads a train.toml with the given lines as overrides."""

    def loaded(*overrides: str) -> LoadedConfig:
        path = tmp_path / "train.toml"
        path.write_text('[agent]\nrun = "a:b"\n[tasks]\ntrain = "t.jsonl"\n[training]\nsteps = 1\n')
        return load_config(path, overrides)

    return loaded


SEVERAL = "training.updates_per_step=2"
OUTSIDE = "policy.endpoint=http://127.0.0.1:8000/v1"
STEP_START = 'algorithm.proximal="step_start"'
SAMPLER = 'algorithm.proximal="sampler"'
CORRECTED = 'algorithm.corrections=["truncated_is"]'
REINFORCE = 'algorithm.loss="reinforce"'
CLIPPED = "algorithm.loss={name = 'ppo_clip', clip_high = 0.3}"


def test_a_loss_and_its_companions_are_read_with_their_options(load: Load) -> None:
    loss = loss_settings(
        load(
            "algorithm.loss={name = 'gspo', clip_high = 0.001}",
            "algorithm.kl={name = 'k2', coefficient = 0.05}",
            "algorithm.entropy_bonus=0.01",
            "algorithm.corrections=[{name = 'truncated_is', level = 'sequence', cap = 3.0}, 'geometric']",
        )
    )
    assert (loss.policy.name, loss.policy) == ("gspo", type(loss.policy)(clip_low=3e-4, clip_high=0.001))  # type: ignore[call-arg]  # of GSPO
    assert loss.kl is not None
    assert (loss.kl.form, loss.kl.coefficient, loss.entropy_bonus) == ("k2", 0.05, 0.01)
    assert [correction.name for correction in loss.corrections] == ["truncated_is", "geometric"]
    assert loss_settings(load()) == LossSettings()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.loss=ppo", "Unknown loss 'ppo' \\(known: ppo_clip, "),
        ("algorithm.loss={name = 'reinforce', clip_high = 0.3}", "Its options: it has none"),
        ("algorithm.kl=k3", "missing a required argument: 'coefficient'"),
        ("algorithm.kl={name = 'k9', coefficient = 0.1}", "Unknown KL form 'k9'"),
        ("algorithm.corrections=['tis']", "Unknown correction 'tis' \\(known: truncated_is, masked_is, geometric\\)"),
        ("algorithm.corrections=['truncated_is', 'masked_is']", "the same difference twice"),
    ],
)
def test_names_and_options_that_are_not_known_are_errors(load: Load, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        loss_settings(load(override))


@pytest.mark.parametrize(
    ("overrides", "proximal"),
    [
        ((), "step_start"),
        ((SEVERAL,), "sampler"),
        ((OUTSIDE,), "sampler"),
        ((OUTSIDE, CORRECTED), "step_start"),
        ((SEVERAL, STEP_START), "step_start"),
    ],
)
def test_the_ratio_compares_with_the_sampler_where_that_may_be_another_policy(
    load: Load, overrides: tuple[str, ...], proximal: str
) -> None:
    assert proximal_policy(load(*overrides).config) == proximal


GOOD = [
    (),
    (REINFORCE,),
    (REINFORCE, SEVERAL),
    (REINFORCE, SEVERAL, CORRECTED),
    (REINFORCE, OUTSIDE, CORRECTED),
    (SEVERAL, CLIPPED),
    (OUTSIDE, CLIPPED),
    (OUTSIDE, CORRECTED),
    (OUTSIDE, SEVERAL, CORRECTED, CLIPPED),
    (OUTSIDE, "algorithm.max_staleness=2"),
    (SEVERAL, STEP_START, "sampling.top_p=0.9"),
    (SEVERAL, "algorithm.loss=cispo"),
    ("algorithm.kl={name = 'k3', coefficient = 0.1}", "algorithm.entropy_bonus=0.01"),
]


@pytest.mark.parametrize("overrides", GOOD)
def test_what_has_an_effect_is_no_problem(load: Load, overrides: tuple[str, ...]) -> None:
    assert loss_conflicts(load(*overrides), EVERYTHING, may_mismatch=False) == []


IDLE = [
    ((CLIPPED,), "loss", "every ratio is 1; clip_high would do nothing"),
    (("algorithm.loss=gspo",), "loss", "gspo gives what reinforce gives; set training.updates_per_step"),
    ((OUTSIDE, CORRECTED, CLIPPED), "loss", "every ratio is 1; clip_high would do nothing"),
    ((CORRECTED,), "corrections", "they would do nothing"),
    ((SEVERAL, CORRECTED), "corrections", "they would do nothing"),
    ((REINFORCE, CORRECTED), "corrections", "they would do nothing"),
    ((REINFORCE, SEVERAL, STEP_START), "proximal", "the loss reinforce has no ratio; it would do nothing"),
    ((SAMPLER,), "proximal", "the sampler has the weights of the step's start; it would do nothing"),
    ((SEVERAL, STEP_START), "proximal", "the sampler has the weights of the step's start; it would do nothing"),
    (("algorithm.max_staleness=2",), "max_staleness", "every call is answered by the present policy"),
    ((OUTSIDE, SAMPLER, CORRECTED), "corrections", 'they need proximal = "step_start"'),
]


@pytest.mark.parametrize(("overrides", "key", "message"), IDLE)
def test_what_would_do_nothing_is_a_problem(load: Load, overrides: tuple[str, ...], key: str, message: str) -> None:
    (problem,) = loss_conflicts(load(*overrides), EVERYTHING, may_mismatch=False)
    assert problem[0] == ("algorithm", key)
    assert message in problem[1]


@pytest.mark.parametrize("overrides", [(CORRECTED,), (SEVERAL, CORRECTED), (SEVERAL, STEP_START), (SAMPLER, CLIPPED)])
def test_where_sampler_and_learner_compute_differently_there_is_something_to_correct(
    load: Load, overrides: tuple[str, ...]
) -> None:
    assert loss_conflicts(load(*overrides), EVERYTHING, may_mismatch=True) == []


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ((SEVERAL, "sampling.top_p=0.9"), "top_p"),
        ((OUTSIDE, "sampling.top_k=20"), "top_k"),
        ((OUTSIDE, CORRECTED, "sampling.top_k=20"), "top_k"),
        ((REINFORCE, OUTSIDE, CORRECTED, "sampling.top_p=0.9"), "top_p"),
    ],
)
def test_samples_of_a_cut_distribution_cannot_be_compared_with(
    load: Load, overrides: tuple[str, ...], key: str
) -> None:
    (problem,) = loss_conflicts(load(*overrides), EVERYTHING, may_mismatch=False)
    assert problem[0] == ("sampling", key)
    assert "the sampler's whole distribution" in problem[1]


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        ((REINFORCE,), "loss", "the backend torch knows the losses ppo_clip"),
        (("algorithm.kl={name = 'k3', coefficient = 0.1}",), "kl", "has no reference policy; it would do nothing"),
        (("algorithm.entropy_bonus=0.1",), "entropy_bonus", "has no entropy term; it would do nothing"),
        ((OUTSIDE, CORRECTED), "corrections", "knows not truncated_is (known: none)"),
        ((OUTSIDE, SEVERAL, STEP_START), "proximal", "does not compute log-probabilities of the step's start"),
    ],
)
def test_what_a_backend_does_not_honour_is_a_problem(
    load: Load, overrides: tuple[str, ...], key: str, message: str
) -> None:
    (problem,) = loss_conflicts(load(*overrides), Capabilities(), may_mismatch=False)
    assert problem[0] == ("algorithm", key)
    assert message in problem[1]


def test_a_kl_form_that_the_backend_lacks_is_said_with_those_it_has(load: Load) -> None:
    loaded = load("algorithm.kl={name = 'k1', coefficient = 0.1}")
    (problem,) = loss_conflicts(loaded, Capabilities(kl_forms=frozenset({"k3"})), may_mismatch=False)
    assert problem == (("algorithm", "kl"), "the backend torch knows the KL terms k3")
