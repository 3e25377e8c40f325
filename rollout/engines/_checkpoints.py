"""The names of the tensors in a folder of weights."""

from __future__ import annotations

import json
from pathlib import Path

from trajgym.trajectory import InvalidInput

__all__ = ["model_folder", "tensor_names"]

_LENGTH = 8
"""Bytes of a safetensors file that say how long its header is, a little-endian integer."""
_LARGEST = 100_000_000
"""Bytes of the longest header that the format permits."""


def tensor_names(folder: Path) -> frozenset[str]:
    """Return the names in all ``*.safetensors`` of a folder; only their headers are read.

    Raises:
        InvalidInput: there are no such files, or one of them is not in that format.
    """
    names: set[str] = set()
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InvalidInput(f"{str(folder)!r} has no *.safetensors")
    for file in files:
        try:
            with file.open("rb") as opened:
                size = int.from_bytes(opened.read(_LENGTH), "little")
                if size > _LARGEST:
                    raise ValueError(f"a header of {size} bytes")
                header = json.loads(opened.read(size))
            if not isinstance(header, dict):
                raise TypeError("its header is not an object")
            names.update(name for name in header if name != "__metadata__")
        except (OSError, ValueError, TypeError) as error:
            raise InvalidInput(f"{str(file)!r} is not a safetensors file: {error}") from error
    return frozenset(names)


def model_folder(model: str, revision: str | None = None) -> Path | None:
    """Return the local folder of a model, also one that was downloaded; None if there is none.

    Args:
        model: a folder, or the name of a model of a hub.
        revision: the model's revision.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (ImportError, OSError, ValueError, HfHubHTTPError, LocalEntryNotFoundError):
        return None
