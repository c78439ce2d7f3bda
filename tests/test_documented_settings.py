"""Every block of settings that the documents show passes `spangrad train --dry-run`, put into a train.toml as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.conftest import DryRun

from spangrad.errors import ConfigError

DOCS = Path(__file__).parents[1] / "docs"


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
