"""What a model's folder holds, read from the headers of its safetensors files (a header's length, the header, the data)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


def tensors(folder: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Name, file and description of each tensor."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as source:
            size = begins(source) - 8
            header = json.loads(source.read(size))
        yield from ((name, file, told) for name, told in header.items() if name != "__metadata__")


def begins(source: BinaryIO) -> int:
    """Where the data begins; leaves the file at the header."""
    source.seek(0)
    return 8 + int(struct.unpack("<Q", source.read(8))[0])
