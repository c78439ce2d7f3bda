"""Whether a vLLM can serve a model, before a server is started for it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Final

from spangrad.errors import BackendError
from spangrad_vllm._installation import Installation

_REGISTRY: Final = Path("model_executor", "models", "registry.py")
_ENTRY: Final = re.compile(r'^ +"(\w+)": \(', re.MULTILINE)
"""An architecture and its module; those that vLLM has given up stand there with a version instead."""
_SECONDS: Final = 300.0
_SCRIPT: Final = """
import json, sys
from vllm.config import ModelConfig
try:
    ModelConfig(model=sys.argv[1], tokenizer=sys.argv[1])
except ValueError as error:
    print(json.dumps(str(error)))
else:
    print(json.dumps(None))
"""
_MOST: Final = 400
"""Characters of what vLLM says."""


def require_architecture(installation: Installation, folder: Path) -> None:
    """Makes sure that vLLM can serve a model. Costs nothing where it has the model itself; else it is asked, for some seconds.

    Args:
        installation: the vLLM.
        folder: of the model.

    Raises:
        BackendError: it cannot.
    """
    wanted = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or []
    if installation.package is None or not (registry := installation.package / _REGISTRY).is_file():
        return  # the server will say
    if set(wanted) & set(_ENTRY.findall(registry.read_text(encoding="utf-8"))):
        return
    # It may still serve it by transformers' own code, and knows that best.
    refusal = _asked(installation, folder)
    if refusal is not None:
        raise BackendError(
            f"vLLM {installation.version} of {installation.python} cannot serve {', '.join(wanted) or 'this model'}: {refusal}",
            cure="Leave the setting sampler out, so that the torch backend draws, or install a vLLM that has this model",
        )


def _asked(installation: Installation, folder: Path) -> str | None:
    """Why vLLM refuses a model, in its own words; None where it does not.

    Raises:
        BackendError: vLLM cannot be imported.
    """
    words = [installation.python, "-c", _SCRIPT, str(folder)]
    try:
        done = subprocess.run(words, cwd="/", capture_output=True, text=True, check=True, timeout=_SECONDS)  # noqa: S603 - the user's own interpreter
        refusal = json.loads(done.stdout.splitlines()[-1])  # after what it logs
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", None) or str(error)).strip()
        raise BackendError(
            f"vLLM {installation.version} of {installation.python} does not work: {told[-_MOST:]}",
            cure="Install it again, and see whether `import vllm` works there",
        ) from error
    return None if refusal is None else " ".join(refusal.split()).partition(" Supported architectures:")[0][:_MOST]
