"""The shipped code environment with faults, its tasks, and what is expected of each."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from trajgym.envs import ToolResult, tool
from trajgym.envs.code import CodeEnv
from trajgym.trajectory import Outcome, Task

if TYPE_CHECKING:
    from trajgym.envs import Observation

CELLS = ("a, b = map(int, open('numbers.txt').read().split())", "print(a * b)")
"""What the agent runs; its answer is what the last one printed."""
DOUBLED = "Answer with twice as much, which is wrong."


def drawn(seed: int, *names: object) -> float:
    """Return a number in [0, 1) that depends on the seed and the names only."""
    text = ":".join(map(str, (seed, *names)))
    return zlib.crc32(text.encode()) / 2**32


class FaultyCode(CodeEnv):
    """The code environment; some of its calls raise.

    Args:
        seed: the calls are drawn from it and from the session's id.
        raises: share of the calls that raise.
        **options: of :class:`CodeEnv`.
    """

    def __init__(self, *, seed: int, raises: float, **options: Any) -> None:
        super().__init__(**options)
        self._seed, self._raises = seed, raises

    def _chance(self, place: str) -> None:
        if drawn(self._seed, "env", self.labels.get("session"), place) < self._raises:
            raise RuntimeError(f"drawn in {place}")

    async def reset(self, task: Task, seed: int | None) -> Observation:
        """See :meth:`CodeEnv.reset`."""
        prompt = await super().reset(task, seed)
        self._chance("reset")
        return prompt

    @tool
    async def python(self, code: str) -> ToolResult:
        """Run Python code.

        Args:
            code: what to run.
        """
        self._chance(f"step {code}")
        content, signals = await self._cell(code)
        return ToolResult(content=content, signals=signals)

    async def verify(self) -> Outcome:
        """See :meth:`CodeEnv.verify`."""
        self._chance("verify")
        return await super().verify()


def make_tasks(seed: int, count: int) -> list[Task]:
    """Return tasks; a fifth is answered wrongly, a fifth verified in a sandbox of its own."""
    found = []
    for number in range(count):
        a, b = (1000 + int(9000 * drawn(seed, "task", number, which)) for which in "ab")
        question = "What is the product of the two numbers in numbers.txt?"
        data: dict[str, Any] = {"files": {"numbers.txt": f"{a} {b}"}}
        data["question"] = f"{question} {DOUBLED}" if number % 5 == 1 else question
        if number % 5 == 2:
            data["check"] = f"def check(answer):\n    return answer.strip() == '{a * b}'\n"
        else:
            data["answer"] = str(a * b)
        found.append(Task(id=f"t{number}", data=data))
    return found


def expected(task: Task) -> float:
    """Return the score of a session of a task in which nothing failed."""
    return 0.0 if DOUBLED in task.data["question"] else 1.0
