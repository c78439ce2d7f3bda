"""Whether what a plug-in's distribution requires is there, read from metadata without importing anything."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from spangrad.plugins._report import PluginState


@dataclass(frozen=True, slots=True)
class Unmet:
    """The first requirement that is not met."""

    state: PluginState
    """NOT_INSTALLED or WRONG_VERSION."""
    reason: str
    requirement: str
    """As pip takes it, such as "openai<4,>=1.93"."""


def first_unmet(dist: Distribution) -> Unmet | None:
    """The first requirement of `dist` that this environment does not meet, missing ones before wrong versions."""
    found = [unmet for text in dist.requires or () if (unmet := _check(text)) is not None]
    found.sort(key=lambda unmet: unmet.state is not PluginState.NOT_INSTALLED)
    return found[0] if found else None


def _check(text: str) -> Unmet | None:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None  # metadata that pip itself could not have read; the import will tell
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    wanted = f"{requirement.name}{requirement.specifier}"
    installed = _installed_version(requirement.name)
    if installed is None:
        return Unmet(PluginState.NOT_INSTALLED, f"it needs {wanted}, which is not installed", wanted)
    try:
        version = Version(installed)
    except InvalidVersion:
        return None  # a version that cannot be compared is no proof against it
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return Unmet(PluginState.WRONG_VERSION, f"it needs {wanted}, but {installed} is installed", wanted)


def _installed_version(name: str) -> str | None:
    try:
        return metadata_field(distribution(name), "Version")
    except PackageNotFoundError:
        return None


def metadata_field(dist: Distribution, field: str) -> str | None:
    """A field of the distribution's metadata; None where damaged metadata lacks it."""
    values = dist.metadata.get_all(field)
    return str(values[0]) if values else None
