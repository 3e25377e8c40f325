"""What the sessions of one worker process share: renderers, stores, slots.

verl makes a loop object for each rollout, so nothing can be kept there.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from trajgym.rollout import renderer_for
from trajgym.trajectory import InvalidInput, Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from trajgym.rollout import Renderer

__all__ = ["renderer_of", "slots", "store_at"]

_renderers: dict[tuple[str, str, int, str], Renderer] = {}
_stores: dict[str, Store] = {}
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)
_opening = asyncio.Lock()


async def renderer_of(tokenizer: Any, options: Mapping[str, Any]) -> Renderer:
    """Return the renderer of a tokenizer, made once in a process.

    Args:
        tokenizer: verl's.
        options: ``data.apply_chat_template_kwargs``.
    """
    template = str(getattr(tokenizer, "chat_template", ""))
    name = str(getattr(tokenizer, "name_or_path", ""))
    key = (name, template, len(tokenizer), repr(sorted(options.items())))
    if key not in _renderers:
        given = {"template_options": dict(options)} if options else {}
        _renderers[key] = await asyncio.to_thread(renderer_for, tokenizer, **given)
    return _renderers[key]


async def store_at(folder: str | None) -> Store | None:
    """Return this process's store in a folder, opened with the first call; None for no folder.

    Raises:
        StoreError: it can't be opened.
    """
    if folder is None:
        return None
    async with _opening:
        if folder not in _stores:
            path = Path(folder) / f"worker-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            _stores[folder] = await asyncio.to_thread(Store, path)
            atexit.register(_stores[folder].close)
    return _stores[folder]


def slots(most: int | None) -> AbstractAsyncContextManager[object]:
    """Return what a session holds while it runs; waiting for it is off the agent's clock.

    Raises:
        InvalidInput: another bound than before in this process.
    """
    if most is None:
        return contextlib.nullcontext()
    known = _slots.setdefault(asyncio.get_running_loop(), {})
    if most not in known and known:
        raise InvalidInput(f"trajgym.concurrency is {most} here and {next(iter(known))} before")
    return known.setdefault(most, asyncio.Semaphore(most))
