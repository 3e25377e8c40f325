"""The names of a folder's tensors, against the package that writes them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from trajgym.rollout.engines._checkpoints import model_folder, tensor_names
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path


def test_names_of_all_files(tmp_path: Path) -> None:
    """Every file of a folder counts, and what is no tensor does not."""
    one, two = np.zeros(3, np.float32), np.zeros((0, 2), np.int8)
    save_file({"a": one, "b.weight": two}, tmp_path / "model-1.safetensors", {"format": "pt"})
    save_file({"ä": one}, tmp_path / "model-2.safetensors")
    assert tensor_names(tmp_path) == {"a", "b.weight", "ä"}


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]", b"\x09" * 9]
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    """What is cut off or something else is refused with the file's name."""
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"model\.safetensors' is not a safetensors file"):
        tensor_names(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    """The folder is named."""
    with pytest.raises(InvalidInput, match=r"no \*\.safetensors"):
        tensor_names(tmp_path)


def test_where_a_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is itself; a model that was not downloaded is nowhere."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert model_folder(str(tmp_path)) == tmp_path
    assert model_folder("nobody/no-such-model-here") is None
    assert model_folder("not a name: ../..") is None
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert model_folder("nobody/no-such-model-here") is None
