"""Every block of settings that the documents show passes `spangrad train --dry-run`, put into a train.toml as it stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from spangrad.errors import ConfigError
from spangrad.plugins import load_plugins
from spangrad.training import Preparation, prepare

DOCS = Path(__file__).parents[1] / "docs"

BASE = {
    "agent": 'run = "agent:solve"\nreward = "agent:reward"\n',
    "tasks": 'train = "agent:train"\n',
    "training": "steps = 1\ntasks_per_step = 4\n",
}
"""What every train.toml has."""

MODULE = """\
def solve(task): ...
def reward(task, output): ...
def train(): return [{"number": number} for number in range(8)]
def brief(calls, spans): ...
"""

DryRun = Callable[..., Preparation]


@pytest.fixture
def dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DryRun:
    """Checks settings as a dry run does: those given, and of those every train.toml has the ones they lack."""
    for name in ("agent.py", "my_rules.py"):
        (tmp_path / name).write_text(MODULE)
    program = tmp_path / "bin/pytest"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    for key in ("JUDGE_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(key, "a key")

    def run(settings: str) -> Preparation:
        given = tomllib.loads(settings)
        for table, lines in BASE.items():
            if table not in given:
                settings += f"\n[{table}]\n{lines}"
            else:
                lacking = [line for line in lines.splitlines() if line.split(" = ")[0] not in given[table]]
                settings = re.sub(rf"^\[{table}\]$", "\n".join([f"[{table}]", *lacking]), settings, flags=re.MULTILINE)
        path = tmp_path / "train.toml"
        path.write_text(settings)
        return prepare(path, [], load_plugins())

    return run


def blocks() -> list[tuple[str, str]]:
    found = []
    for path in sorted(DOCS.glob("*.md")):
        each = re.findall(r"```toml\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        if path.name == "policies.md":  # several policies, the routes and the judge on one of them belong together
            each = [each[0], "\n".join(each[1:])]
        found += [(f"{path.name}, block {number}", block) for number, block in enumerate(each, start=1)]
    return found


@pytest.mark.parametrize("block", [pytest.param(block, id=name) for name, block in blocks()])
def test_a_documented_block_is_valid_in_an_otherwise_ordinary_train_toml(dry_run: DryRun, block: str) -> None:
    assert dry_run(block).tasks


RECIPES = re.findall(
    r"^\| (\w[^|]*) \| (`.*) \|$", (DOCS / "losses.md").read_text().partition("## Recipes")[2], flags=re.MULTILINE
)


@pytest.mark.parametrize("settings", [pytest.param(row, id=name) for name, row in RECIPES if "=" in row])
def test_a_recipe_is_valid_as_it_stands(dry_run: DryRun, settings: str) -> None:
    lines = re.findall(r"`(\w+ = [^`]*)`", settings)
    several = "\n[training]\nupdates_per_step = 2\n" if "`updates_per_step` of 2 or more" in settings else ""
    dry_run("[algorithm]\n" + "\n".join(lines) + several)


def test_what_the_losses_page_says_is_refused_without_an_endpoint_is(dry_run: DryRun) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.max_staleness: .* it would do nothing"):
        dry_run("[algorithm]\nmax_staleness = 4\n")
