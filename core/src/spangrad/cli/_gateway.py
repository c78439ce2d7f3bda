"""spangrad gateway: a model served to programs of their own, whose rollouts are recorded."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spangrad.cli._json_output import print_json
from spangrad.cli._main import DEFAULT_RUNS, JsonOption, PortOption, RunsOption, SetOption, app
from spangrad.cli._options import (
    BackendOption,
    EndpointModelOption,
    EndpointOption,
    ModelOption,
    configured,
    policy_options,
)

if TYPE_CHECKING:
    from spangrad.training import LoadedConfig, Serving

NAME = "gateway"
"""Of the run's folder, where no train.toml names it."""


@app.command()
def gateway(
    config: Annotated[
        Path | None, typer.Argument(help="A train.toml to take the model from.", show_default=False)
    ] = None,
    model: ModelOption = None,
    endpoint: EndpointOption = None,
    endpoint_model: EndpointModelOption = None,
    backend: BackendOption = None,
    overrides: SetOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    host: Annotated[str, typer.Option("--host", help="Address of this machine to listen on.")] = "127.0.0.1",
    port: PortOption = 0,
    key: Annotated[
        str | None, typer.Option("--key", help="Key that opens and rewards rollouts; made up if left out.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a model to your own programs until Ctrl-C, and record the rollouts they open with spangrad.rollout()."""
    from spangrad.plugins import load_plugins
    from spangrad.training import checked_listening, new_run_folder, prepare_serving, serve

    given = {"--model": model, "--endpoint": endpoint, "--endpoint-model": endpoint_model, "--backend": backend}
    loaded = _unconfigured(given, overrides) if config is None else configured(config, given, overrides)
    name = NAME if config is None else f"{loaded.config.name}-{NAME}"
    listening = checked_listening(host, port, key)
    preparation = prepare_serving(loaded, load_plugins())

    def ready(serving: Serving) -> None:
        _report(serving, open_to_all=listening.allow_anonymous, as_json=as_json)

    folder, count = asyncio.run(serve(preparation, lambda: new_run_folder(runs, name), listening, on_ready=ready))
    typer.echo(f"Stopped; rollouts recorded in {folder.path}: {count}", err=True)


def _unconfigured(given: dict[str, str | None], overrides: list[str] | None) -> LoadedConfig:
    from spangrad.training import unconfigured

    policy = policy_options(given, overrides, "spangrad gateway train.toml")
    return unconfigured(NAME, Path.cwd(), backend=given["--backend"] or "torch", policy=policy)


def _report(serving: Serving, *, open_to_all: bool, as_json: bool) -> None:
    """What programs need to find the gateway: lines for a shell on standard output, the rest on standard error."""
    url, key = serving.gateway.base_url, serving.gateway.evaluator_key
    if as_json:
        print_json({"url": url, "key": key, "run": str(serving.folder.path)})
    else:
        typer.echo(f"export SPANGRAD_URL={shlex.quote(url)} SPANGRAD_KEY={shlex.quote(key)}")
        typer.echo(f"export OPENAI_BASE_URL={shlex.quote(f'{url}/v1')} OPENAI_API_KEY=no-key-needed")
    if open_to_all:
        typer.echo(
            "Calls outside of a rollout are answered too, from this machine; they belong to no rollout.", err=True
        )
    else:
        typer.echo(
            "Others can reach this address: every call needs the key of its rollout, and rollouts need the key above.",
            err=True,
        )
    run = serving.folder.path
    typer.echo(
        f"Recording in {run}; Ctrl-C stops. Look with: {shlex.join(['spangrad', 'rollouts', '--run', str(run)])}",
        err=True,
    )
