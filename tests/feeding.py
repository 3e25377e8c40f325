"""A session server in a thread, with agents that finish groups: the feed of the trainers' tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.server.harness import ADD, World, result, world
from trajgym.adapters import RowBuilder
from trajgym.rollout import SealedGroup
from trajgym.server import ServerConfig
from trajgym.trajectory import TrainingRow

USER = {"role": "user", "content": "What is 1 + 2?"}
EXACT = {"logprob_mode": "processed"}


def script(number: int, body: dict[str, Any]) -> dict[str, Any]:
    """Call a tool, then answer."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return {"text": f"it is {number}"}
    return {"text": "so", "calls": [("add", {"a": 1, "b": 2})]}


class Farm:
    """Agents of a server that runs in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, w: World) -> None:
        self.url = w.url
        self._loop, self._world = loop, w

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(240)

    def group(self, name: str, *scores: float) -> None:
        """Finish a group, a session of two turns for each score; return once it is sealed."""
        self.run(self._group(name, scores))

    def rows(self, deriver: Any = "grpo") -> dict[bytes, TrainingRow]:
        """The rows of every sealed group, as one path makes them, by their ids."""
        build = RowBuilder(deriver, "a test", allow=["synthetic"])
        found = {}
        with self._world.app.settings.store.read() as run:
            for group in run.groups():
                if group.sealed:
                    trees = [run.session(member.session) for member in group.counted]
                    for row in build(SealedGroup(group, trees)).rows:
                        found[np.asarray(row.input_ids).tobytes()] = row
        return found

    @property
    def acknowledged(self) -> dict[str, int]:
        """Groups behind, by consumer."""
        return self._world.app.feed.behind()

    @property
    def version(self) -> int:
        return self._world.app.settings.control.version

    @property
    def paused(self) -> bool:
        return self._world.app.settings.control.paused

    async def _group(self, name: str, scores: tuple[float, ...]) -> None:
        w = self._world
        body = {"id": name, "task": "sums", "samples": len(scores)}
        await w.post("/api/groups", body, status=201)
        for i, score in enumerate(scores):
            session = f"{name}-{i}"
            await w.create(session, group=name)
            options = {"tools": [ADD], "temperature": 1.0}
            messages: list[Any] = [{"role": "user", "content": f"What is {name} + {i}?"}]
            said = await w.say(messages, session, **options)
            messages.append(result(said["tool_calls"][0], "3"))
            await w.say(messages, session, **options)
            await w.close(session, score=score)
        await w.sealed(name)


@contextmanager
def farm(path: Path, config: ServerConfig | None = None) -> Iterator[Farm]:
    """Run an engine and a server in a thread while the block runs."""
    ready = threading.Event()
    found: list[Farm] = []
    stop: list[asyncio.Event] = []

    async def main() -> None:
        async with world(path, script, config=config, upstream=EXACT) as w:
            stop.append(asyncio.Event())
            found.append(Farm(asyncio.get_running_loop(), w))
            ready.set()
            await stop[0].wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="farm", daemon=True)
    thread.start()
    assert ready.wait(240)
    try:
        yield found[0]
    finally:
        found[0]._loop.call_soon_threadsafe(stop[0].set)
        thread.join(240)
        assert not thread.is_alive()
