"""A data set class for verl's SFT trainer that reads token ids. Importing it imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TokenDataset"]


class TokenDataset(Dataset):  # type: ignore[misc]
    """Rows of :func:`trajgym.adapters.verl.write_sft_tokens`, for ``data.custom_cls``.

    A row longer than ``data.max_length`` is an error, or is truncated with
    ``data.truncation=right``; a truncated row without a trained id is left out.

    Args:
        parquet_files: one path or several.
        tokenizer: not used.
        config: verl's section ``data``; ``pad_mode`` must be ``no_padding``.
        processor: not used.
        max_samples: most rows; -1 takes all.

    Raises:
        InvalidInput: ``pad_mode`` has another value, or a row is too long.
    """

    def __init__(
        self,
        parquet_files: str | Sequence[str],
        tokenizer: Any = None,
        config: Any = None,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        import pyarrow.parquet as pq

        del tokenizer, processor
        config = config or {}
        if config.get("pad_mode", "no_padding") != "no_padding":
            raise InvalidInput(f"data.pad_mode is {config.get('pad_mode')!r}: set no_padding")
        longest = int(config.get("max_length", 1024))
        cut = config.get("truncation", "error")
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self._rows: list[tuple[list[int], list[int]]] = []
        self.left_out = 0
        """Number of truncated rows without a trained id."""
        for file in files:
            table = pq.read_table(file, columns=["input_ids", "loss_mask"])
            for row in table.to_pylist():
                self._add(row["input_ids"], row["loss_mask"], longest, cut, file)
        if max_samples > 0:
            del self._rows[max_samples:]

    def _add(self, ids: list[int], mask: list[int], longest: int, cut: str, file: str) -> None:
        if len(ids) > longest:
            if cut != "right":
                raise InvalidInput(
                    f"{file}: a row has {len(ids)} ids, but data.max_length is {longest}: raise "
                    "it, or set data.truncation=right",
                )
            ids, mask = ids[:longest], mask[:longest]
        if any(mask):
            self._rows.append((ids, mask))
        else:
            self.left_out += 1

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return int64 ``input_ids``, ``position_ids`` and ``loss_mask`` of one row."""
        ids, mask = self._rows[index]
        return {
            "input_ids": torch.tensor(ids, dtype=torch.int64),
            "position_ids": torch.arange(len(ids)),
            "loss_mask": torch.tensor(mask, dtype=torch.int64),
        }
