"""The fake engine as a process of its own, to be killed and started again: ``PORT AFTER``.

Its first answer stops after that many chunks, if that is not 0.
"""

from __future__ import annotations

import asyncio
import sys

from tests.server.fake import Engine, Trouble, serving

WORDS = " ".join(f"word{i}" for i in range(40))


class Steady(Engine):
    """Answers every request with the same words, also what an earlier process began."""

    def _rest(self, prompt: list[int]) -> list[int]:
        plan = self._plan(0, {"messages": []})[1]
        sampled = next(k for k in range(len(plan), -1, -1) if prompt[len(prompt) - k :] == plan[:k])
        return plan[sampled:]


async def main(port: int, after: int) -> None:
    troubles = [Trouble(0, "gate_after", after=after)] if after else []
    async with serving(Steady(lambda n, body: {"text": WORDS}, troubles), port):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
