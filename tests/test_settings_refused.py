"""Settings that would do nothing, or make a whole run fail, are refused before the first rollout, all at once and with their places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import DryRun

from spangrad.errors import ConfigError
from spangrad.testing import ScriptedBackend
from spangrad.training._preparation import settled_settings

ENDPOINT = 'endpoint = "http://127.0.0.1:8000/v1"'
JUDGE = f'[rewards.judge]\n{ENDPOINT}\nmodel = "judge"\ncriteria = "Right."\n'
RULE = '[[rewards.rules]]\nwhen = "tool_error"\nreward = -0.1\n'
MAXRL = '[algorithm]\nestimator = "maxrl"\n'
TWO = '[policy]\ntrain = ["writer", "boss"]\n'


def problems(dry_run: DryRun, settings: str) -> list[str]:
    """What a dry run lists, without the places."""
    with pytest.raises(ConfigError) as caught:
        dry_run(settings)
    first, *listed = caught.value.what.splitlines()
    assert f"has {len(listed)} problem" in first
    for line in listed:
        assert line.strip().startswith("train.toml, line "), line
    return [line.partition(": ")[2] for line in listed]


def credit(table: str, more: str = "") -> str:
    return f"[algorithm]\ncredit = {{ {table} }}\n{more}"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('[rewards]\nweights = { a = 1.0 }\ncheck = "pytest"', "rewards.weights: no weight for 'check'"),
        (f"[rewards]\nweights = {{ a = 1.0 }}\n{JUDGE}", "rewards.weights: no weight for 'judge'"),
        ("[rewards]\nweights = { a = 0, b = 0.0 }", "rewards.weights: every weight is 0"),
        (TWO + credit('name = "agent_share", shares = { writer = 1 }'), "algorithm.credit: no share for the agent 'boss'"),
        (
            TWO + credit('name = "agent_share", shares = { writer = 1, boss = 1, critic = 1 }'),
            "algorithm.credit: the calls of 'critic' are not trained on; a share would do nothing",
        ),
        (
            '[policy]\ntrain = ["writer"]\n'
            + credit('name = "sum", of = ["identical", { name = "agent_share", shares = { writer = 0, boss = 1 } }]'),
            "the share of every agent that is trained is 0",
        ),
        (f'[policy]\ntrain = ["writer"]\n{RULE}agent = "boss"', "rewards.rules.0.agent: the calls of 'boss' are not trained"),
        (credit('name = "gigpo", units = "rollout"', 'statistics = "call"'), 'units = "rollout" would do nothing'),
        (credit('name = "discounted", gamma = 1'), "discounts nothing; that is return_to_go"),
        (f"{JUDGE}relative = true\n[training]\nrollouts_per_task = 1\n[algorithm]\nestimator = 'rae'", "there is nothing to compare"),
        (RULE.replace("tool_error", "http_status") + "at_least = 600", "rewards.rules.0.at_least: Input should be less"),
        (credit('name = "progress"', 'estimator = "maxrl"'), "progress takes off for steps back, and maxrl cannot"),
        (f'[policy]\n{ENDPOINT}\naliases = ["judge"]\n{JUDGE}', "rewards.judge.model: this is the model of policy.endpoint"),
        (f'[policy]\n{ENDPOINT}\n[algorithm]\ncorrections = [{{ name = "truncated_is", cap = 0.5 }}]', "cap is 0.5. Give cap"),
        (f"{MAXRL}[failures]\nfailed = {{ policy = 'penalise', reward = -0.5 }}", "failures.failed.reward: maxrl takes no return below 0"),
        (f"{MAXRL}[rewards.overlong]\nmax_tokens = 9\ncache = 3", "rewards.overlong: maxrl takes no return below 0, and a rollout"),
        (f"{MAXRL}{RULE}", "rewards.rules.0.reward: maxrl takes no return below 0, and a rollout with no other reward"),
        ("[failures]\nfailed = { policy = 'penalise', reward = -1e31 }", "failures.failed.reward: is too large to be compared with other rewards; 1e+30 is the limit"),
        (RULE.replace("-0.1", "1e31"), "rewards.rules.0.reward: is too large to be compared"),
        ('[policy]\ntrain = ["writer", "writer"]', "policy.train: 'writer' is named more than once"),
        ('[policies.".."]', 'policies."..": must be a name; this is a folder that exists already'),
        ("[rewards]\nevaluator_processes = 2", "there is no rewards.evaluator; it would do nothing"),
        ('[rewards]\ncheck = "agent:reward"', "Write a command that is installed; a Python function that judges goes into"),
        ('[rewards]\ncheck = ""', "rewards.check: The check '' is no command line. Write a command and its arguments"),
        (f'{JUDGE}key_env = "NOT_SET_ANYWHERE"', "rewards.judge.key_env: The environment variable NOT_SET_ANYWHERE is not set"),
        (f"{JUDGE}lowest = 1.0", "lowest = 1 is not below highest = 1; not given, they are 0 and 1"),
        ("[algorithm]\ncredit = 7", "algorithm.credit: must be a name, or a table with a name (got 7)"),
        ("[algorithm]\nkl = 0.1", "algorithm.kl: must be a name, or a table with a name (got 0.1)"),
        ('[rewards]\njudge = "x"', "rewards.judge: must be a table (got 'x')"),
    ],
)  # fmt: skip
def test_it_is_refused_with_its_place(dry_run: DryRun, settings: str, said: str) -> None:
    listed = problems(dry_run, settings)
    assert any(said in problem for problem in listed), listed


@pytest.mark.parametrize(
    "settings",
    [
        "[failures]\nfailed = { policy = 'penalise', reward = 0.0 }",
        f"{RULE}[rewards]\nweights = {{ correct = 1.0, tool_error = 0.0 }}",
        f"{RULE}[rewards]\nweights = {{ correct = 1.0, tool_error = -1.0 }}",
    ],
)
def test_rewards_that_take_nothing_off_go_with_maxrl(dry_run: DryRun, settings: str) -> None:
    dry_run(f"{MAXRL}{settings}")


def test_a_warm_start_cannot_take_more_demonstrations_than_there_are(dry_run: DryRun, tmp_path: Path) -> None:
    said = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    (tmp_path / "shown.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    table = '[warm_start]\ndemonstrations = "shown.jsonl"\nsteps = 1\n'
    assert problems(dry_run, f"{table}batch = 2") == [
        "warm_start.batch: a step takes 2 demonstrations, but there are only 1"
    ]
    assert dry_run(table).config.warm_start is not None


def test_shares_of_the_agents_that_are_trained_are_fine(dry_run: DryRun) -> None:
    dry_run(TWO + credit('name = "agent_share", shares = { writer = 1.0, boss = 0 }'))
    dry_run(
        credit('name = "agent_share", shares = { writer = 1.0 }')
    )  # where all agents are trained, nobody knows them


def test_all_that_is_wrong_is_said_at_once(dry_run: DryRun) -> None:
    listed = problems(
        dry_run,
        """
        seed = "x"
        nonsense = 1
        [algorithm]
        credit = { name = "sum", of = ["gipgo", { name = "last_call", weight = 0 }] }
        estimator = { name = "grpo", eps = -1 }
        weighting = "none"
        loss = { name = "ppo_clip", clip_low = 5 }
        kl = { name = "k3", coefficient = 0 }
        corrections = ["nope", { name = "masked_is", low = 2 }]
        [rewards]
        check = "no-such-program"
        [[rewards.rules]]
        when = "function"
        call = "my_rules:nobody"
        [tasks]
        train = "nowhere.jsonl"
        """.replace("        ", ""),
    )
    keys = [problem.partition(":")[0] for problem in listed]
    assert sorted(keys) == [
        "algorithm.corrections.0",
        "algorithm.corrections.1",
        "algorithm.credit",
        "algorithm.estimator",
        "algorithm.kl",
        "algorithm.loss",
        "algorithm.weighting",
        "nonsense",
        "rewards.check",
        "rewards.rules.0.call",
        "seed",
        "tasks.train",
    ]
    (parts,) = [problem for problem in listed if problem.startswith("algorithm.credit")]
    assert "of.0: Unknown credit assigner 'gipgo'" in parts
    assert "of.1: weight is 0" in parts


def test_a_module_that_cannot_be_imported_is_said_once(dry_run: DryRun) -> None:
    (listed,) = problems(dry_run, '[agent]\nrun = "absent:solve"\nreward = "absent:reward"\n')
    assert listed.startswith("agent.run: The agent's module 'absent' is neither in ")


def test_corrections_that_turn_out_to_do_nothing_are_said_when_the_model_is_loaded(dry_run: DryRun) -> None:
    preparation = dry_run('[algorithm]\ncorrections = ["masked_is"]')  # precision "auto" may come to bf16, or not
    (note,) = settled_settings(preparation, ScriptedBackend(lambda _: "x"))
    assert note.startswith("Sampler and learner turn out to compute alike, so algorithm.corrections has no effect: the")
    assert settled_settings(dry_run(""), ScriptedBackend(lambda _: "x")) == []
