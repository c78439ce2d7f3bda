"""The sampler's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from spangrad.plugins import load_plugins
from spangrad_vllm import VllmOptions
from spangrad_vllm.plugin import VllmFactory


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"urls": ["http://10.0.0.1:8000"]}, "a server to attach to is on this machine"),
        ({"urls": ["https://127.0.0.1:8000"]}, "a server to attach to is on this machine"),
        ({"urls": ["http://127.0.0.1"]}, "a server to attach to is on this machine"),
        ({"urls": ["http://127.0.0.1:8000/v1"]}, "without /v1"),
        ({"urls": ["http://127.0.0.1:1", "http://127.0.0.1:1/"]}, "urls names one twice"),
        ({"urls": ["http://127.0.0.1:1"], "servers": 2, "gpus": [0]}, "servers, gpus would do nothing"),
        ({"gpus": [0, 1, 2], "gpus_per_server": 2}, "3 gpus cannot be shared out 2 to a server"),
        ({"gpus": [0, 0]}, "gpus names one twice"),
        (
            {"flags": {"port": 1, "--no-enable_lora": True}},
            r"port: servers take free ports; --no-enable_lora: the backend",
        ),
        ({"gpu_memory": 1.0}, "less than 1"),
        ({"count": 2}, "Extra inputs"),
    ],
)
def test_what_cannot_be_is_refused(options: Mapping[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        VllmFactory().check(options)


@pytest.mark.parametrize("options", [{}, {"urls": ["http://127.0.0.1:8000"]}, {"servers": 2, "gpus": [0, 1]}])
def test_settings_with_defaults_filled_in_are_the_same_settings(options: Mapping[str, Any]) -> None:
    filled = VllmFactory().check(options)

    assert VllmFactory().check(filled) == filled
    assert VllmOptions.model_validate(filled).urls == tuple(options.get("urls", ()))


def test_the_plugin_brings_the_sampler() -> None:
    plugins = load_plugins(builtin=False)

    assert isinstance(plugins.samplers.get("vllm"), VllmFactory)
    assert next(row.brings for row in plugins.report if row.name == "vllm") == ("sampler vllm",)
