"""The environments: errands that agents are evaluated on, and the editing of an agent's code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.envs import Budgets, register, tool
from trajgym.envs.sandbox import SandboxEnv
from trajgym.trajectory import Outcome, Task

if TYPE_CHECKING:
    from typing import ClassVar

ERRANDS = [
    Task(id="plain", prompt="What is 2 + 3?", data={"expected": "5"}),
    Task(id="fenced", prompt="Write the code 7.", data={"expected": "7"}),
    Task(
        id="checked",
        prompt="Name a multiple of 3 above 7. check.sh checks it.",
        data={"expected": "9", "files": {"check.sh": "test $(( $(cat answer.txt) % 3 )) = 0"}},
    ),
    Task(
        id="named",
        prompt="Which file here is the key?",
        data={"expected": "lamp.key", "files": {"lamp.key": "", "door.txt": ""}},
    ),
]
"""Each needs something that the first agent lacks, but for the first."""


@register("archive/errand")
class Errand(SandboxEnv):
    """Solved when answer.txt holds the expected answer."""

    provider_name = "embedded"
    budgets: ClassVar[Budgets] = Budgets(turns=5, seconds=120.0)

    async def reset(self, task: Task, seed: int | None) -> str:
        del seed
        self.expected = task.data["expected"]
        self.sandbox = await self.start_sandbox()
        for name, text in task.data.get("files", {}).items():
            await self.sandbox.write_file(name, text.encode())
        return task.prompt or ""

    async def verify(self) -> bool:
        done = await self.sandbox.run(["cat", "answer.txt"])
        return done.stdout.decode(errors="replace").strip() == self.expected


@register("archive/edit")
class Edit(SandboxEnv):
    """Solved when the program still compiles and is another one than before."""

    provider_name = "embedded"
    budgets: ClassVar[Budgets] = Budgets(turns=8, seconds=120.0)

    async def reset(self, task: Task, seed: int | None) -> str:
        del seed
        self.before = task.data["code"]
        self.sandbox = await self.start_sandbox()
        await self.sandbox.write_file("agent.py", self.before.encode())
        return f"Improve agent.py. It did not solve: {', '.join(task.data['failed']) or 'nothing'}."

    @tool
    async def bash(self, command: str) -> str:
        """Run a command.

        Args:
            command: a shell line.
        """
        done = await self.sandbox.run(command, timeout=30.0)
        return done.text or f"[exit status {done.exit_code}]"

    async def verify(self) -> Outcome:
        compiles = await self.sandbox.run("python3 -m py_compile agent.py")
        code = (await self.sandbox.read_file("agent.py", limit=1 << 16)).decode(errors="replace")
        admitted = compiles.ok and code != self.before
        reason = "" if admitted else "unchanged" if compiles.ok else compiles.text[-300:]
        return Outcome(
            score=float(admitted), passed=admitted, details={"code": code, "reason": reason}
        )
