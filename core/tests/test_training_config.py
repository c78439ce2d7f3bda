from __future__ import annotations

from pathlib import Path

import pytest

from spangrad.errors import ConfigError
from spangrad.training import load_config

GOOD = """\
name = "demo"
seed = 3

[agent]
run = "agent:solve"

[tasks]
train = "tasks.jsonl"
heldout = { numbers = "tasks:heldout" }

[torch]
precision = "fp32"

[algorithm]
credit = { name = "discounted", gamma = 0.9 }

[training]
steps = 4
learning_rate = 2e-5
"""


@pytest.fixture
def write(tmp_path: Path) -> object:
    def written(text: str) -> Path:
        path = tmp_path / "train.toml"
        path.write_text(text)
        return path

    return written


def problems_of(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "train.toml"
    path.write_text(GOOD)
    return path


def test_a_good_file_is_read_with_its_defaults(config_file: Path) -> None:
    loaded = load_config(config_file)

    assert loaded.config.name == "demo"
    assert loaded.config.training.tasks_per_step == 8
    assert loaded.config.algorithm.estimator.name == "grpo"
    assert loaded.config.algorithm.credit.name == "discounted"
    assert loaded.config.algorithm.credit.options == {"gamma": 0.9}
    assert loaded.backend_options == {"model": "smollm2-135m", "precision": "fp32"}
    assert loaded.folder == config_file.parent


def test_every_problem_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(
        GOOD.replace("steps = 4", 'steps = "four"\nrollout_per_task = 4').replace('run = "agent:solve"', "timeout = 3"),
    )

    problems = problems_of(path)

    assert problems == [
        "train.toml, line 5: agent.timeout: unknown key",
        "train.toml, line 18: training.steps: Input should be a valid integer (got 'four')",
        "train.toml, line 19: training.rollout_per_task: unknown key (did you mean rollouts_per_task?)",
    ]


def test_an_agent_needs_exactly_one_way_to_run(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(GOOD.replace('run = "agent:solve"', 'run = "agent:solve"\ncommand = "python agent.py"'))

    assert problems_of(path) == [
        'train.toml, line 4: agent: give either run = "module:function" or command = "..."',
    ]


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text('[agent]\nrun = "a:b"\n')

    assert problems_of(path) == [
        "train.toml: tasks: required, but missing",
        "train.toml: training: required, but missing",
    ]


def test_the_table_of_another_backend_is_an_unknown_key(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(GOOD + "\n[verl]\nnodes = 1\n")

    assert problems_of(path) == ["train.toml, line 21: verl: unknown key"]


def test_an_override_replaces_a_value_and_keeps_its_type(config_file: Path) -> None:
    config = load_config(config_file, ["training.steps=9", "policy.model=other", "evaluation.every=2"]).config

    assert (config.training.steps, config.policy.model, config.evaluation.every) == (9, "other", 2)


@pytest.mark.parametrize("override", ["steps", "=3", "training..steps=3"])
def test_an_override_of_the_wrong_form_is_refused(config_file: Path, override: str) -> None:
    with pytest.raises(ConfigError, match="not of the form"):
        load_config(config_file, [override])


def test_an_override_into_a_value_is_refused(config_file: Path) -> None:
    with pytest.raises(ConfigError, match="seed is a value, not a table"):
        load_config(config_file, ["seed.x=1"])


def test_a_missing_file_and_text_that_is_not_toml_are_said_so(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[agent\n")

    with pytest.raises(ConfigError, match="There is no file"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(broken)


def test_a_model_folder_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = tmp_path / "train.toml"
    path.write_text(GOOD + '\n[policy]\nmodel = "model"\n')

    assert load_config(path).backend_options["model"] == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("sampling.temperature=0", "sampling.temperature"),
        ("sampling.top_p=1.5", "sampling.top_p"),
        ("rollouts.timeout=inf", "rollouts.timeout"),
        ("training.steps=-1", "training.steps"),
        ("training.learning_rate=nan", "training.learning_rate"),
        ("seed=-1", "seed"),
        ("name=a/b", "name"),
        ("name=.", "name"),
        ("name=..", "name"),
        (f"name={'n' * 201}", "name"),
        ("policy.endpoint=not a url", "policy.endpoint"),
        ("policy.endpoint=localhost:8000/v1", "policy.endpoint"),
        ("policy.endpoint=ftp://host/v1", "policy.endpoint"),
        ("policy.endpoint=http://", "policy.endpoint"),
        ("policy.endpoint=http://host:port/v1", "policy.endpoint"),
        ("training.steps=true", "training.steps"),
    ],
)
def test_values_out_of_range_are_refused(config_file: Path, setting: str, key: str) -> None:
    (problem,) = problems_of(config_file, setting)

    assert f": {key}: " in problem


@pytest.mark.parametrize("value", ["abc", "-3", "2=3", "[1"])
def test_a_wrong_override_is_blamed_and_not_the_file(config_file: Path, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(config_file, [f"training.steps={value}"])

    head, problem = str(caught.value).splitlines()
    assert head == "1 problem in the command:"
    assert problem.startswith(f"  --set training.steps={value}: training.steps: Input should be")


def test_an_override_of_a_table_that_is_not_in_the_file_is_blamed_alone(config_file: Path) -> None:
    assert problems_of(config_file, "nosuch.x=1") == ["--set nosuch.x=1: nosuch: unknown key"]


def test_an_override_that_contradicts_the_file_is_named_beside_it(config_file: Path) -> None:
    (problem,) = problems_of(config_file, "agent.command=python agent.py")

    assert problem.startswith("train.toml, line 4 with --set agent.command=python agent.py: agent: give either run =")


@pytest.mark.parametrize(
    ("override", "policies"),
    [
        ("policies.a.train=['x=y']", {"a": ["x=y"]}),
        ('policies."a".train=["x"]', {"a": ["x"]}),
        ("policies.'a' . train = ['x']", {"a": ["x"]}),
    ],
)
def test_names_in_overrides_may_be_in_quotes(config_file: Path, override: str, policies: dict[str, list[str]]) -> None:
    config = load_config(config_file, [override]).config
    assert {name: table.train for name, table in config.policies.items()} == policies


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ('policies.".."={}', 'policies."..": must be a name; this is a folder that exists already'),
        ('policies."a=b"={}', 'policies."a=b": String should match pattern'),
    ],
)
def test_a_name_that_cannot_be_is_shown_as_toml_would_have_it(config_file: Path, override: str, problem: str) -> None:
    (found,) = problems_of(config_file, override)
    assert found.startswith(f"--set {override}: {problem}")


@pytest.mark.parametrize("override", ['policies."a={}', "=1", "a..b=1", "training.steps", 'x."=1'])
def test_an_override_without_a_key_is_refused(config_file: Path, override: str) -> None:
    with pytest.raises(ConfigError, match=r"is not of the form table\.key=value"):
        load_config(config_file, [override])


def test_problems_of_the_file_and_of_overrides_are_listed_together(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(GOOD.replace("seed = 3", "sed = 3"))

    assert problems_of(path, "training.stps=3") == [
        "--set training.stps=3: training.stps: unknown key (did you mean steps?)",
        "train.toml, line 2: sed: unknown key (did you mean seed?)",
    ]


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://models.example/v1", "http://[::1]:80/v1"])
def test_an_endpoint_is_a_web_address(config_file: Path, url: str) -> None:
    assert load_config(config_file, [f"policy.endpoint={url}"]).config.policy.endpoint == url


def test_a_file_nested_too_deeply_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(f"x = {'[' * 5000}{']' * 5000}\n")

    with pytest.raises(ConfigError, match="nested too deeply"):
        load_config(path)


def test_characters_that_only_python_takes_for_line_ends_do_not_shift_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(GOOD.replace('name = "demo"', 'name = "demo"  # a\u2028b\u0085c').replace("seed = 3", "sed = 3"))

    assert problems_of(path) == ["train.toml, line 2: sed: unknown key (did you mean seed?)"]
