"""Which verl is installed, read from its metadata: importing verl takes many seconds."""

from __future__ import annotations

from importlib import util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from spangrad.errors import PluginError

SUPPORTED: Final = {
    "verl": SpecifierSet(">=0.9.1,<0.10"),
    "ray": SpecifierSet(">=2.50"),
    "tensordict": SpecifierSet(">=0.10"),
    "transferqueue": SpecifierSet(">=0.1.10,<0.2"),
    "transformers": SpecifierSet(">=5.10,<5.11"),
}
"""Distribution -> the versions that fit together; verl 0.9.1 with ray 2.60, tensordict 0.10 and transformers 5.10 has been run."""
_INSTALL: Final = 'pip install "spangrad[verl]"'


def require_installation() -> None:
    """Makes sure that verl and what it computes with are there, in versions that fit together.

    Raises:
        PluginError: one is missing or is another version; all of them are named.
    """
    wrong = []
    for name, supported in SUPPORTED.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            wrong.append(f"{name} is not installed")
            continue
        if not supported.contains(Version(found), prereleases=True):
            wrong.append(f"{name} {found} is not supported ({supported} is)")
    if wrong:
        raise PluginError(
            f"The verl backend cannot be used: {'; '.join(wrong)}", cure=f"Install its parts with {_INSTALL}"
        )


def config_folder() -> Path:
    """Where verl keeps its own configuration; verl is not imported.

    Raises:
        PluginError: it is not there.
    """
    spec = util.find_spec("verl")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(location) / "trainer" / "config"
        if (folder / "ppo_trainer.yaml").is_file():
            return folder
    raise PluginError(
        "verl's own configuration (trainer/config/ppo_trainer.yaml) is not where it belongs", cure=_INSTALL
    )
