"""Rollout workers for other processes: what they are made by, and their environment."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.trl.tiny import tasks
from trajgym.adapters.trl import RolloutProcesses, RolloutWorker
from trajgym.envs import Budgets, Env, EnvSpec, ToolResult
from trajgym.rollout import Retry, VLLMEngine
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import InvalidInput, Message, Outcome, Task

if TYPE_CHECKING:
    from trajgym.adapters.trl import Shard, VersionClock


class Marks(Env):
    """Three exchanges; leaves a file in a folder while a session is open."""

    budgets: ClassVar[Budgets] = Budgets(turns=3, seconds=3600)

    def __init__(self, folder: str, fail: bool = False) -> None:
        self.folder, self.fail = folder, fail
        self.long = 0

    async def reset(self, task: Task, seed: int | None) -> list[Message]:
        self.mark = Path(self.folder) / f"{os.getpid()}-{id(self)}"
        self.mark.touch()
        return [{"role": "user", "content": task.prompt or "Well?"}]

    async def respond(self, message: Message) -> ToolResult:
        if self.fail:
            raise AttributeError("the pen is broken")
        self.long += len(message["content"] or "") > 1
        return ToolResult(content="And?")

    async def verify(self) -> Outcome:
        return Outcome(score=self.long / 3, passed=self.long > 1)

    async def close(self) -> None:
        self.mark.unlink(missing_ok=True)


def make(
    url: str,
    model: str,
    store: Path,
    marks: Path,
    *,
    versions: VersionClock,
    shard: Shard,
    many: int = 0,
    fail: bool = False,
    **options: Any,
) -> RolloutWorker:
    """Make a worker; with ``many``, so many tasks are played once."""
    from transformers import AutoTokenizer

    engine = VLLMEngine(url, "tiny", versions=versions, retry=Retry(tries=2, first_wait=0.01))
    return RolloutWorker(
        EnvSpec(id="tests.trl.elsewhere:Marks", config={"folder": str(marks), "fail": fail}),
        iter(shard.tasks(tasks(many))) if many else shard.tasks(tasks(4)),
        engine,
        TemplateRenderer(AutoTokenizer.from_pretrained(model)),
        shard.store(store),
        versions=versions,
        **{"samples": 2, "concurrency": 2, "max_tokens": 16, **options},
    )


def broken(*, versions: VersionClock, shard: Shard) -> RolloutWorker:
    """Make nothing, for a reason that could be taken for the end of a pipe."""
    raise EOFError("no tasks today")


def broken_there(*args: Any, versions: VersionClock, shard: Shard) -> RolloutWorker:
    """Make a worker here, and nothing in a rollout process."""
    if shard.count > 1:
        raise InvalidInput("no engine there")
    return make(*args, versions=versions, shard=shard)


def trainer(url: str, model: str, store: str, marks: str, then: str) -> None:
    """Play a trainer's process that takes a sample, says so, and then leaves, or only waits."""
    from functools import partial

    process = RolloutProcesses(partial(make, url, model, Path(store), Path(marks)), processes=2)
    process.versions.watched = True
    process.update_model_version(1)
    process.start()
    process.rollout_buffer.get(timeout=240)
    while len(process.pids) < 2:
        time.sleep(0.05)
    print(*process.pids, flush=True)
    while then == "wait":
        time.sleep(60)


if __name__ == "__main__":
    trainer(*sys.argv[1:])
