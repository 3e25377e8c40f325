"""The names of the tensors in a folder of weights."""

from __future__ import annotations

from pathlib import Path

from trajgym.trajectory import InvalidInput

__all__ = ["model_folder", "tensor_names"]


def tensor_names(folder: Path) -> frozenset[str]:
    """Return the names in all ``*.safetensors`` of a folder; only their headers are read.

    Raises:
        InvalidInput: there are no such files, or one of them is not in that format.
    """
    from safetensors import SafetensorError, safe_open

    names: set[str] = set()
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InvalidInput(f"{str(folder)!r} has no *.safetensors")
    for file in files:
        try:
            with safe_open(file, framework="numpy") as opened:
                names.update(opened.keys())
        except (OSError, SafetensorError) as error:
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

        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (ImportError, OSError, ValueError):  # the package, the model, or a name of that form
        return None
