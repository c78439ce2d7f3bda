"""`[verl]` of runs on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spangrad_verl._checked import CheckedOptions, read_options

ON_CPU: Mapping[str, Any] = {
    "trainer": {"device": "cpu"},
    "actor_rollout_ref": {
        "model": {"use_remove_padding": False, "override_config": {"attn_implementation": "sdpa"}},
        "actor": {
            "fsdp_config": {
                "mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32"},
                "use_torch_compile": False,
            }
        },
    },
}
"""`[verl]` of a run on a CPU: full precision, and torch's own attention."""


def checked(folder: Path, options: Mapping[str, Any]) -> CheckedOptions:
    """`[verl]` with further options of verl's."""
    return read_options({"model": str(folder), "max_sequence": 256, **ON_CPU, **options})
