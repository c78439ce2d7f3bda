"""The plug-ins of spangrad that are installed apart, and what loading costs."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import metadata

from spangrad.plugins._own import OWN


def test_our_own_plugins_that_are_not_installed_are_answered_with_the_pip_line() -> None:
    script = """
import importlib.metadata
from spangrad.plugins import _discovery
from spangrad.errors import PluginError
from spangrad.plugins import load_plugins
_discovery.find = lambda: []
plugins = load_plugins({})
for kind, name in ((plugins.backends, "torch"), (plugins.integrations, "openai"), (plugins.backends, "openai")):
    try:
        kind.get(name)
    except PluginError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.splitlines() == [
        "The backend 'torch' is not installed. pip install \"spangrad[torch]\"",
        "The integration 'openai' is not installed. pip install \"spangrad[openai]\"",
        "Unknown backend 'openai' (known: none). `spangrad plugins` lists what is installed",
    ]


def test_every_extra_of_spangrad_but_all_is_a_plugin_it_knows() -> None:
    extras = set(metadata("spangrad").get_all("Provides-Extra") or ()) - {"all"}

    assert {extra for _, extra in OWN.values()} == extras


def test_loading_imports_no_framework() -> None:
    script = """
import sys
from spangrad.plugins import load_plugins
load_plugins({})
print(sorted({module.split(".")[0] for module in sys.modules} & {"torch", "transformers", "openai", "sqlalchemy", "starlette"}))
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout == "[]\n"
