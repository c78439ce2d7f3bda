"""Options that commands which serve a model share: from a train.toml, or on the command line alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spangrad.errors import ConfigError

if TYPE_CHECKING:
    from spangrad.training import LoadedConfig

ModelOption = Annotated[str | None, typer.Option("--model", help="Model folder, .gguf file or name.")]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint", help="URL of an OpenAI-compatible server that answers instead.")
]
EndpointModelOption = Annotated[str | None, typer.Option("--endpoint-model", help="Its name of the model.")]
BackendOption = Annotated[str | None, typer.Option("--backend", help="Backend that samples; torch if left out.")]


def configured(config: Path, given: Mapping[str, object], overrides: list[str] | None) -> LoadedConfig:
    """The settings of a train.toml, beside which no option that it has a key for may be given.

    Args:
        config: the file.
        given: option -> its value; empty where it was left out.
        overrides: of --set.

    Raises:
        ConfigError: such an option was given, or the file is wrong.
    """
    from spangrad.training import load_config

    if any(given.values()):
        named = ", ".join(name for name, value in given.items() if value)
        raise ConfigError(
            f"{config} says it all; {named} cannot be given beside it",
            cure="Override a setting of the file with --set table.key=value, or leave the file out",
        )
    return load_config(config, overrides or [])


def policy_options(given: Mapping[str, str | None], overrides: list[str] | None, file: str) -> dict[str, str]:
    """The keys of the table [policy] that the options stand for, where there is no train.toml.

    Args:
        given: --model, --endpoint and --endpoint-model, and others that are passed over.
        overrides: of --set.
        file: how a train.toml is named to the command.

    Raises:
        ConfigError: options that would do nothing.
    """
    if overrides:
        raise ConfigError("--set overrides a train.toml, and there is none", cure=f"Name one with {file}")
    if given["--endpoint-model"] and not given["--endpoint"]:
        raise ConfigError("--endpoint-model without --endpoint would do nothing", cure="Give the endpoint's URL too")
    keys = {"model": "--model", "endpoint": "--endpoint", "endpoint_model": "--endpoint-model"}
    return {key: value for key, option in keys.items() if (value := given[option]) is not None}
