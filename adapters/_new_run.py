"""Directories of new runs that appear only once they are complete."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trajgym.trajectory import InvalidInput, Store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["new_run"]


@contextmanager
def new_run(out: str | os.PathLike[str]) -> Iterator[Store]:
    """Open the store of a new run; its directory appears if the ``with`` block succeeds.

    Raises:
        InvalidInput: the directory is not empty.
    """
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise InvalidInput(f"{out}: not empty; choose another directory")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with Store(part) as store:
            yield store
        (part / "store.sqlite.lock").unlink(missing_ok=True)
        if out.exists():
            out.rmdir()
        part.replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
