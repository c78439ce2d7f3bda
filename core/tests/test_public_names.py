"""What `import spangrad` offers is what it says it offers."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import spangrad

PACKAGES = ["spangrad", *(f"spangrad.{found.name}" for found in pkgutil.iter_modules(spangrad.__path__) if found.ispkg)]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_are_sorted_unique_and_there(name: str) -> None:
    package = importlib.import_module(name)
    names = package.__all__
    assert names == sorted(
        set(names), key=lambda n: (not n.isupper(), not n[0].isupper(), n)
    )  # constants, classes, functions
    assert [missing for missing in names if not hasattr(package, missing)] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_of_a_package_is_in_all(name: str) -> None:
    package = importlib.import_module(name)
    own = {key for key, value in vars(package).items() if getattr(value, "__module__", "").startswith("spangrad.")}
    assert {key for key in own if not key.startswith("_")} <= set(package.__all__)


def test_lazy_names_are_listed_before_they_are_used() -> None:
    assert set(spangrad.__all__) <= set(dir(spangrad))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'rolout'"):
        spangrad.rolout  # noqa: B018 - reading it is the point
