"""Run the scripted agent on a browser task, and save its screenshots with numbered elements.

    python examples/browser.py pictures

Needs a Docker engine and the browser's image (scripts/gui-image.sh).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from trajgym.envs import EnvSpec, Session
from trajgym.envs.gui import BrowserEnv, load_browser_tasks
from trajgym.envs.sandbox import close_shared_providers
from trajgym.trajectory import blob_hashes

SPEC = EnvSpec(id="browser", config={"picture": "jpeg", "marks": True, "size": [1024, 640]})


async def play(name: str) -> tuple[float, list[bytes]]:
    task = next(task for task in load_browser_tasks("builtin") if task.id == name)
    async with Session(SPEC, task) as session:
        for message in BrowserEnv.script(task, sample=0):
            await session.step(message)
            distance = session.turns[-1].signals.get("goal_distance")
            print(session.turns[-1].signals["url"], "distance", distance)
        pictures = [session.images[blob] for blob in blob_hashes(session.messages)]
    await close_shared_providers()
    assert session.outcome is not None, session.attempt.cause
    return session.outcome.score, pictures


if __name__ == "__main__":
    score, pictures = asyncio.run(play("mail-delete"))
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pictures):
        (folder / f"{number:02}.jpg").write_bytes(picture)
    print("score", score)
