"""The terminal environment: a task's container, a shell in it, and the task's own test script."""

from __future__ import annotations

import atexit
import base64
import contextlib
import dataclasses
import json
import math
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import Budgets, EnvironmentFault, ToolError, ToolResult, tool
from trajgym.envs.sandbox import (
    DockerProvider,
    Limits,
    SandboxFileError,
    SandboxSpec,
    WarmPool,
    shared_provider,
)
from trajgym.envs.sandbox._env import SandboxEnv
from trajgym.envs.terminal._format import TerminalRecord, load_tasks
from trajgym.envs.terminal._image import account_of, built_image
from trajgym.trajectory import InvalidInput, Message, Outcome, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.sandbox import CommandResult, Sandbox, SandboxProvider, Shell
    from trajgym.trajectory import Task

__all__ = ["TerminalEnv"]

_TESTS = "/tests"
_LOGS = "/logs/verifier"
_MIB = 1 << 20
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID")
"""What root needs to install packages and to start services as other users."""
_SUMMARY = re.compile(r"^(PASSED|FAILED|ERROR|XPASS|XFAIL|SKIPPED) (\S+)", re.MULTILINE)
_PROMPT = """\
{instruction}

You work in a shell of a Linux container, in the directory {workdir}. {ending}"""
_SUBMIT = "When you are done, call submit."
_PROGRAM_ENDS = "The container is graded as it is when you end your work."


class TerminalEnv(SandboxEnv):
    """Terminal tasks in Harbor's and Terminal-Bench's formats: ``trajgym.envs`` id ``terminal``.

    The image is built from the task's Dockerfile. The task's tests are copied in after the agent
    has finished and run in the agent's own container, as the formats require: they check the state
    of the container, including running services.

    Args:
        bases: image to build on by the name after ``FROM`` (``*``: every other one), for engines
            that can't pull: ``{"*": "trajgym/base:bookworm"}``.
        network: give the network to tasks that ask for it, to their builds and their test scripts;
            public test scripts often install packages. Off by default.
        command_seconds: default and upper limit of one command.
        output_bytes: what is shown of an output; the middle of a longer one is left out.
    """

    task_data = TerminalRecord
    budgets: ClassVar[Budgets] = Budgets(turns=60, seconds=1800.0, observation_bytes=32_000)
    verify_seconds: ClassVar[float] = 3600.0

    def __init__(
        self,
        *,
        bases: dict[str, str] | None = None,
        network: bool = False,
        command_seconds: float = 120.0,
        output_bytes: int = 16_000,
    ) -> None:
        if command_seconds <= 0 or output_bytes < 1:
            raise InvalidInput("command_seconds and output_bytes must be positive")
        self.bases = dict(bases or {})
        self.network = network
        self.command_seconds = command_seconds
        self.output_bytes = output_bytes
        self._task: Task | None = None
        self._provider: SandboxProvider | None = None
        self._sandbox: Sandbox | None = None
        self._shell: Shell | None = None
        self._clean: SandboxSpec | None = None

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return the tasks of a folder; see :func:`trajgym.envs.terminal.load_tasks`."""
        return load_tasks(source)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return the task's own solution as one command; odd samples submit nothing."""
        record = TerminalRecord.of(task)
        if not record.solution:
            raise InvalidInput(f"task {task.id!r} has no solution for a scripted agent")
        text = base64.b64encode((Path(record.folder) / record.solution).read_bytes()).decode()
        line = f"echo {text} | base64 -d > /tmp/solve.sh && bash /tmp/solve.sh"
        calls = [("bash", {"command": line})] if sample % 2 == 0 else []
        return [_call(name, arguments, n) for n, (name, arguments) in enumerate(calls)] + [
            _call("submit", {}, len(calls))
        ]

    @classmethod
    async def prepare_run(
        cls, provider: SandboxProvider, config: Mapping[str, Any], tasks: Sequence[Task]
    ) -> None:
        """Build the images of known tasks."""
        env = cls(**config)
        env._provider = provider
        for task in tasks:
            with contextlib.suppress(TrajgymError):  # reported by the sessions of the task
                await env._spec(TerminalRecord.of(task))

    async def reset(self, task: Task, seed: int | None) -> str:
        """Build the image if needed, start the container and return the instruction."""
        del seed
        record = TerminalRecord.of(task)
        self._task = task
        self._provider = await shared_provider("docker")
        spec = dataclasses.replace(await self._spec(record), labels=dict(self.labels))
        self._clean = spec
        self._sandbox = await self._provider.start(self.with_additions(spec))
        ending = _PROGRAM_ENDS
        if self.additions is None:
            ending = _SUBMIT
            self._shell = await self._sandbox.shell("agent", program="/bin/bash")
        return _PROMPT.format(instruction=record.instruction, workdir=spec.workdir, ending=ending)

    @property
    def agent_sandbox(self) -> Sandbox:
        """The task's container."""
        if self._sandbox is None:
            raise RuntimeError("no container: reset was not called, or the environment is closed")
        return self._sandbox

    async def verify(self) -> Outcome:
        """Run the task's test script in the container, and read its reward.

        A script that produces no result is run again in a fresh container: if it works there, the
        agent broke it and scores 0; otherwise the task can't be graded on this machine.
        """
        assert self._task is not None
        assert self._sandbox is not None
        assert self._provider is not None
        record = TerminalRecord.of(self._task)
        # The shell stays open: closing it would end the services that were started in it.
        rewards, said = await self._tested(record, self._sandbox)
        if rewards is None:
            assert self._clean is not None
            async with await self._provider.start(self._clean) as fresh:
                untouched, why = await self._tested(record, fresh)
            if untouched is None:
                raise EnvironmentFault("verify", f"task {self._task.id!r}: its tests: {why}")
            return Outcome(score=0.0, passed=False, details={"problem": said})
        score = rewards.get("reward", sum(rewards.values()) / len(rewards))
        return Outcome(score=score, passed=score >= 1.0, details={"rewards": rewards})

    async def close(self) -> None:
        """Remove the container."""
        sandbox, self._sandbox = self._sandbox, None
        self._shell = None
        if sandbox is not None:
            await sandbox.close()

    @tool
    async def bash(self, command: str, timeout: float | None = None) -> ToolResult:
        """Run a command in the terminal. The directory and variables persist between calls.

        Args:
            command: the command line; standard error is shown with standard output.
            timeout: seconds until it is killed; the default is also the most that is allowed.
        """
        assert self._shell is not None
        if timeout is not None and timeout <= 0:
            raise ToolError("timeout must be a positive number of seconds")
        seconds = min(timeout or self.command_seconds, self.command_seconds)
        done = await self._shell.run(f"{{ {command}\n}} 2>&1", timeout=seconds)
        signals = {"exit_code": done.exit_code, "timed_out": done.timed_out}
        return ToolResult(content=self._shown(done, seconds), signals=signals)

    @tool
    async def submit(self) -> ToolResult:
        """Submit the work: the container is graded in its current state."""
        return ToolResult(content="submitted", done=True)

    def _shown(self, done: CommandResult, seconds: float) -> str:
        data, limit = done.stdout + done.stderr, self.output_bytes
        dropped = done.dropped_stdout + max(0, len(data) - limit)
        if len(data) > limit:
            data = data[: limit // 2] + b"\n[...]\n" + data[len(data) - limit // 2 :]
        text = data.decode("utf-8", "replace").rstrip()
        ending = f"[killed: no end in {seconds:g} s]" if done.timed_out else ""
        if dropped:
            ending += f"[{dropped} bytes of output left out]"
        return "\n".join(filter(None, [text, ending or f"[exit status {done.exit_code}]"]))

    async def _spec(self, record: TerminalRecord) -> SandboxSpec:
        provider = self._provider
        inner = provider.inner if isinstance(provider, WarmPool) else provider
        if not isinstance(inner, DockerProvider):
            raise InvalidInput("terminal tasks need a Docker engine")
        network = self.network and record.internet
        image = await built_image(record, inner, self.bases, network=self.network)
        config = await inner.engine.call(lambda api: api.inspect_image(image)["Config"])
        workdir = record.workdir or config.get("WorkingDir") or ""
        account = await account_of(inner, image, record.agent_user or config.get("User") or "root")
        limits = Limits()
        # Root creates these itself; agents see no folder of tests before the work is graded.
        own = {} if account.ids.startswith("0:") else {_TESTS: _empty(), _LOGS: _empty()}
        return SandboxSpec(
            image=image,
            trees=own,
            workdir=workdir if workdir not in {"", "/"} else "/app",
            user=account.ids,
            env={"HOME": account.home, **record.env},
            network=network,
            capabilities=_CAPABILITIES,
            limits=Limits(
                cpus=record.cpus or limits.cpus,
                memory=(record.memory_mb or 2048) * _MIB,
                disk=(record.storage_mb or 10240) * _MIB,
                pids=1024,
            ),
        )

    async def _tested(
        self, record: TerminalRecord, sandbox: Sandbox
    ) -> tuple[dict[str, float] | None, str]:
        """Run the test script; return its rewards, or None and the reason."""
        folder = Path(record.folder)
        harbor = record.format == "harbor"
        script = f"{_TESTS}/test.sh" if harbor else f"{_TESTS}/run-tests.sh"
        await sandbox.run(
            f"rm -rf {_TESTS} {_LOGS}/reward.txt {_LOGS}/reward.json; mkdir -p {_TESTS} {_LOGS}",
            timeout=60.0,
            cwd="/",
        )
        try:
            await sandbox.upload(folder / "tests", _TESTS)
            if not harbor:
                await sandbox.write_file(script, (folder / "run-tests.sh").read_bytes())
        except SandboxFileError as error:
            return None, f"the tests can't be copied into the container: {error}"
        done = await sandbox.run(
            f"chmod +x {script}; exec bash {script}",
            timeout=record.verifier_seconds,
            env={"TEST_DIR": _TESTS, **record.verifier_env},
        )
        if done.timed_out:
            return None, f"the test script did not end in {record.verifier_seconds:g} s"
        found = await _reward(sandbox) if record.parser == "reward" else _summary(done.stdout)
        if found is None:
            output = (done.stdout + done.stderr)[-500:].decode("utf-8", "replace").strip()
            return None, f"the test script gave no result (status {done.exit_code}): {output}"
        return found, ""


@cache
def _empty() -> Path:
    """Return an empty folder, which is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="trajgym-empty-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


async def _reward(sandbox: Sandbox) -> dict[str, float] | None:
    """Read Harbor's reward file; None if there is none with finite numbers."""
    for name in ("reward.json", "reward.txt"):
        try:
            text = (await sandbox.read_file(f"{_LOGS}/{name}", limit=_MIB)).decode()
            value = json.loads(text) if name.endswith("json") else float(text)
        except (SandboxFileError, ValueError):
            continue
        rewards = value if isinstance(value, dict) else {"reward": value}
        numbers = [n for n in rewards.values() if isinstance(n, (int, float)) and math.isfinite(n)]
        if rewards and len(numbers) == len(rewards):
            return {str(key): float(number) for key, number in rewards.items()}
    return None


def _summary(output: bytes) -> dict[str, float] | None:
    """Read pytest's short summary (``-rA``): 1 if all passed; None if there is none."""
    found = _SUMMARY.findall(output.decode("utf-8", "replace"))
    if not found:
        return None
    good = [status in {"PASSED", "XFAIL", "XPASS"} for status, _ in found]
    return {"reward": float(all(good))}


def _call(name: str, arguments: dict[str, Any], number: int) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
