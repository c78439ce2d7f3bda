"""The documents say what the code does."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

import pytest
from pydantic import BaseModel

from spangrad.rollouts.rules import OPTIONS
from spangrad.training import TrainConfig, load_config
from spangrad.training._config import JudgeTable, RuleTable
from spangrad.training._overlong_config import OverlongTable
from spangrad.training._policies import policy_conflicts
from spangrad_torch import TorchOptions
from spangrad_torch.plugin import TorchFactory
from spangrad_vllm import VllmOptions

ROOT = Path(__file__).parent.parent
SETTINGS = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
REWARDS = (ROOT / "docs/rewards.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def documented(table: str) -> set[str]:
    """Keys that the tables of a section of docs/configuration.md name."""
    section = re.split(r"^## ", SETTINGS, flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(table)]
    return {
        key for row in re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE) for key in re.findall(r"`(\w+)`", row)
    }


def tables() -> Iterator[tuple[str, type[BaseModel]]]:
    yield "`[torch]`", TorchOptions
    yield "`[torch.vllm]`", VllmOptions
    yield "`[rewards.judge]`", JudgeTable
    yield "`[[rewards.rules]]`", RuleTable
    yield "`[rewards.overlong]`", OverlongTable
    for name, field in TrainConfig.model_fields.items():
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for candidate in candidates:
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                yield f"`[{name}.NAME]`" if get_origin(field.annotation) is dict else f"`[{name}]`", candidate


@pytest.mark.parametrize(
    ("heading", "model"), list(tables()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_setting_is_documented_and_every_documented_setting_exists(heading: str, model: type[BaseModel]) -> None:
    of_the_policy = {"model"} if heading == "`[torch]`" else set()

    assert documented(heading) == set(model.model_fields) - of_the_policy


def test_the_top_level_settings_are_documented() -> None:
    named = {heading.strip("`[]").partition(".")[0] for heading, _ in tables()}

    assert documented("Top level") == set(TrainConfig.model_fields) - named


def test_the_settings_of_policies_and_routes_that_are_shown_are_valid_together(tmp_path: Path) -> None:
    text = (ROOT / "docs/policies.md").read_text(encoding="utf-8")
    one, *several = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    rest = '[agent]\nrun = "a:b"\n[tasks]\ntrain = "a:c"\n[training]\nsteps = 1\n'
    path = tmp_path / "train.toml"
    path.write_text(one + rest)
    assert [policy.agents for policy in load_config(path).config.trained] == [("writer",)]
    path.write_text("".join(several) + rest)
    config = load_config(path).config
    assert [(policy.name, policy.aliases) for policy in config.trained] == [
        ("writer", ("writer",)),
        ("rewriter", ("rewriter", "editor")),
    ]
    assert list(config.routes) == ["critic", "gpt-4.1-mini"]
    assert not list(policy_conflicts(config, "torch", TorchFactory.capabilities))


def test_every_condition_of_a_rule_is_documented_with_its_options() -> None:
    section = REWARDS.partition("## Rules over spans")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", section, flags=re.MULTILINE)

    assert {when: set(re.findall(r"`(\w+)`", options)) for when, options in rows if when != "when"} == {
        when: set(options) for when, options in OPTIONS.items()
    }
    assert set(OPTIONS) == set(get_args(RuleTable.model_fields["when"].annotation))


def test_the_readmes_train_toml_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    path = tmp_path / "train.toml"
    path.write_text(block)

    assert load_config(path).config.training.steps == tomllib.loads(block)["training"]["steps"]


def test_links_between_documents_lead_somewhere() -> None:
    files = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("*/*/README.md"),
        *ROOT.glob("*/README.md"),
    ]
    broken = [
        f"{file.relative_to(ROOT)}: {target}"
        for file in files
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", file.read_text(encoding="utf-8"))
        if not (file.parent / target).exists()
    ]

    assert broken == []
