"""Reads what transformers saved: without network, without progress bars, and with errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from spangrad.errors import ModelNotFoundError


def read_pretrained(folder: Path, kind: Any, **options: Any) -> Any:
    """`kind.from_pretrained` without network and progress bars, its errors made ours."""
    try:
        with quiet():
            return kind.from_pretrained(folder, local_files_only=True, **options)
    except MemoryError:
        raise
    # Damaged files make the loaders raise whatever they stumble over, down to a bare Exception of the tokenizers library.
    except Exception as error:
        raise ModelNotFoundError(
            f"{folder / options.get('gguf_file', '')} holds no model that can be loaded: {error}",
            cure="Copy or download the model again",
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Turns transformers' progress bars off: they would write over spangrad's own display."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
