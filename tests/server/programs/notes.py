"""An environment with a sandbox for agent programs; importable from other processes."""

from __future__ import annotations

from trajgym.envs import Budgets
from trajgym.envs.sandbox import Limits, SandboxEnv, SandboxSpec
from trajgym.trajectory import Outcome, Task


class Note(SandboxEnv):
    """Solved when the file note.txt says done."""

    budgets = Budgets(turns=4, seconds=120.0)

    async def reset(self, task: Task, seed: int | None) -> str:
        limits = Limits(memory=256 << 20)
        self.sandbox = await self.start_sandbox(SandboxSpec(limits=limits))
        return "Write the word done into note.txt."

    async def verify(self) -> Outcome:
        done = await self.sandbox.run(["cat", "note.txt"])
        running = await self.sandbox.run("grep -al 'slee[p].360' /proc/[0-9]*/cmdline | wc -l")
        passed = done.stdout.strip() == b"done"
        return Outcome(score=float(passed), passed=passed, details={"running": int(running.stdout)})


class DockerNote(Note):
    """The same in Docker."""

    provider_name = "docker"


class EmbeddedNote(Note):
    """The same in embedded sandboxes."""

    provider_name = "embedded"
