"""The SWE environment: an agent repairs a repository and is graded by hidden tests."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from trajgym.envs import Budgets, ToolError, ToolResult, tool, tools_of
from trajgym.envs.sandbox import BASE_IMAGE, ProviderName, SandboxEnv, Snapshot, shared_provider
from trajgym.envs.swe import _editing as editing
from trajgym.envs.swe._demo import demo_agent
from trajgym.envs.swe._extract import extract_change
from trajgym.envs.swe._grade import grade, ungraded
from trajgym.envs.swe._hunks import parse_patch
from trajgym.envs.swe._images import prepare
from trajgym.envs.swe._layout import REPO
from trajgym.envs.swe._recipes import load_tasks
from trajgym.envs.swe._record import SweRecord
from trajgym.envs.swe._signals import Trace, localisation
from trajgym.trajectory import InvalidInput, Outcome, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.sandbox import CommandResult, Sandbox, SandboxProvider, SandboxSpec
    from trajgym.trajectory import Message, Task

__all__ = ["BashSweEnv", "SweEnvBase"]

_DURATION = re.compile(rb"(\d (?:passed|failed|errors?|skipped|warnings?|deselected)) in [\d.]+s\b")

_PROMPT = """\
The repository at {repo} ({name}) has this problem:

<problem>
{problem}
</problem>

Change the source so that the problem is solved. Hidden tests decide; changes to test files, test \
configuration and packaging files do not count. There is no network. {ending}"""
_SUBMIT = "When you are done, call submit."
_PROGRAM_ENDS = "The repository is graded as it is when you end your work."


class SweEnvBase(SandboxEnv):
    """The base of every tool set: the sandbox, commands, snapshots, grading.

    Args:
        sandbox: ``docker``, ``embedded``, or ``auto``: Docker if an engine answers.
        command_seconds: default and upper limit of one command.
        output_bytes: maximum bytes of output that a tool shows; the middle of longer output is left
            out.
        test_seconds: limit of a test run in grading.
        twins: run the tests of a solved task once more as twins that must fail; see
            :func:`trajgym.envs.swe.grade`.
        calls: maximum tool calls of an attempt, which then ends ``truncated:calls``.
        remind_at: number of remaining calls from which on each result shows it.
        base_image: for Docker: what task images are built on.
        cache_dir: of the sources, instead of the user's cache.
        warm: how many sandboxes of one task may be started ahead of their sessions.
    """

    task_data = SweRecord
    budgets: ClassVar[Budgets] = Budgets(turns=60, seconds=1800.0, observation_bytes=32_000)
    verify_seconds: ClassVar[float] = 3600.0
    """Time for retries, twins, and the gold patch on the same twins."""
    hint: ClassVar[str] = ""

    def __init__(
        self,
        *,
        sandbox: ProviderName = "auto",
        command_seconds: float = 60.0,
        output_bytes: int = 16_000,
        test_seconds: float = 300.0,
        twins: bool = True,
        calls: int | None = None,
        remind_at: int = 5,
        base_image: str = BASE_IMAGE,
        cache_dir: str | None = None,
        warm: int = 0,
    ) -> None:
        if command_seconds <= 0 or test_seconds <= 0 or output_bytes <= 0:
            raise InvalidInput("command_seconds, test_seconds and output_bytes must be positive")
        if sandbox not in get_args(ProviderName):
            raise InvalidInput(f"sandbox {sandbox!r}: use one of {get_args(ProviderName)}")
        self.command_seconds = command_seconds
        self.output_bytes = output_bytes
        self.test_seconds = test_seconds
        self.twins = twins
        if calls is not None and calls < 1:
            raise InvalidInput(f"calls must be at least 1, not {calls}")
        self.calls = calls
        self.remind_at = remind_at
        self.base_image = base_image
        self.cache_dir = Path(cache_dir) if cache_dir else None
        self._kind: ProviderName = sandbox
        self._warm = warm
        self._provider: SandboxProvider | None = None
        self._running: Sandbox | None = None
        self._clean: SandboxSpec | None = None
        self._task: Task | None = None
        self._trace = Trace()

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return SWE tasks; see :func:`trajgym.envs.swe.load_tasks`."""
        return load_tasks(source)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return the demonstration agent's messages; see :func:`trajgym.envs.swe.demo_agent`."""
        return demo_agent(task, sample, editor="str_replace" in tools_of(cls))

    @classmethod
    async def run_provider(cls, config: Mapping[str, Any]) -> SandboxProvider:
        """Return the provider that the setting ``sandbox`` names."""
        return await cls(**config)._open()

    @classmethod
    async def prepare_run(
        cls, provider: SandboxProvider, config: Mapping[str, Any], tasks: Sequence[Task]
    ) -> None:
        """Build the images of known tasks."""
        env = cls(**config)
        for task in tasks:
            with contextlib.suppress(TrajgymError):  # the task's own sessions report it
                await env._spec(task, provider)

    @classmethod
    async def discard_snapshots(cls, config: Mapping[str, Any], snapshots: Sequence[str]) -> None:
        """Delete the saved files of snapshots."""
        provider = await cls.run_provider(config)
        kept = [_saved(json.loads(snapshot)) for snapshot in snapshots]
        await asyncio.gather(*(provider.discard(files) for files in kept))

    @property
    def sandbox(self) -> Sandbox:
        """The agent's sandbox."""
        if self._running is None:
            raise RuntimeError("no sandbox: reset was not called, or the environment is closed")
        return self._running

    @property
    def agent_sandbox(self) -> Sandbox:
        """The sandbox with the repository."""
        return self.sandbox

    async def reset(self, task: Task, seed: int | None) -> str:
        """Start a sandbox with the repository and return the problem statement as a prompt."""
        del seed
        record = SweRecord.of(task)
        self._task = task
        gold = [change.path for change in parse_patch(record.patch)]
        self._trace = Trace(gold=gold, expert=_expert(record), test_cmd=record.install.test_cmd)
        provider = await self._open()
        self._clean = await self._spec(task, provider)
        self._running = await provider.start(self.with_additions(self._clean))
        problem = record.problem_statement.strip()
        ending = _PROGRAM_ENDS if self.additions is not None else self.hint + _SUBMIT
        return _PROMPT.format(repo=REPO, name=record.repo, problem=problem, ending=ending)

    async def snapshot(self) -> str:
        """Save the files of the sandbox."""
        kept = await self.sandbox.snapshot()
        state = {"provider": kept.provider, "id": kept.id, "trace": self._trace.to_json()}
        return json.dumps({**state, **self.kept()})

    async def restore(self, task: Task, seed: int | None, snapshot: str) -> None:
        """Start a sandbox with the files of a snapshot."""
        del seed
        state = json.loads(snapshot)
        self._task = task
        self._trace = Trace.of_json(state["trace"])
        self.take(state)
        provider = await self._open()
        self._clean = await self._spec(task, provider)
        self._running = await provider.restore(_saved(state), self._clean)

    def kept(self) -> dict[str, Any]:
        """Return the tool set's own state for a snapshot, as JSON values."""
        return {}

    def take(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`kept` returned."""

    async def verify(self) -> Outcome:
        """Grade the agent's change in a fresh sandbox; see :func:`trajgym.envs.swe.grade`."""
        assert self._task is not None
        assert self._provider is not None
        change = await extract_change(self.sandbox)
        if change.problem:
            return ungraded(self._task, change.problem)
        outcome = await grade(
            self._task,
            change.patch,
            self._provider,
            spec=self._clean,
            test_seconds=self.test_seconds,
            twins=self.twins,
        )
        record = SweRecord.of(self._task)
        where = localisation(change.patch.decode("utf-8", "replace"), record.patch)
        outcome.details["localisation"] = where
        if expert := _expert(record):
            outcome.details["expert_actions"] = expert
        return outcome

    async def close(self) -> None:
        """Remove the sandbox."""
        running, self._running = self._running, None
        if running is not None:
            await running.close()

    @tool
    async def bash(self, command: str, timeout: float | None = None) -> ToolResult:
        """Run a command in the repository with bash. Each call gets a new shell.

        Args:
            command: the command line; standard error is shown with standard output.
            timeout: seconds until it is killed; the default is also the most that is allowed.
        """
        if timeout is not None and timeout <= 0:
            raise ToolError("timeout must be a positive number of seconds")
        seconds = min(timeout or self.command_seconds, self.command_seconds)
        line = ["/bin/bash", "-c", 'exec 2>&1; eval "$1"', "bash", command]
        near = self._trace.call("bash", {"command": command, "timeout": timeout})
        done = await self.sandbox.run(line, timeout=seconds, cwd=REPO)
        signals: dict[str, Any] = {"exit_code": done.exit_code, "timed_out": done.timed_out}
        signals |= self._trace.command(command, done.stdout, done.ok) | near
        return self._result(self._shown(done, seconds), signals)

    @tool
    async def submit(self) -> ToolResult:
        """Hand in the work: the repository as it is now is graded."""
        signals = self._trace.call("submit", {}) | self._trace.submit()
        return ToolResult(content="submitted", done=True, signals=signals)

    def _result(self, content: str, signals: dict[str, Any]) -> ToolResult:
        """Return a result that shows how many calls are left, if they are few."""
        if self.calls is None:
            return ToolResult(content=content, signals=signals)
        left = self.calls - self._trace.calls
        if left <= 0:
            text = f"{content}\n[all {self.calls} calls are used: the work is graded as it is]"
            return ToolResult(content=text, signals=signals, truncated="calls")
        if left <= self.remind_at:
            content += f"\n[{left} of {self.calls} calls left; submit when the work is done]"
        return ToolResult(content=content, signals=signals)

    async def _open(self) -> SandboxProvider:
        self._provider = await shared_provider(self._kind, warm=self._warm)
        return self._provider

    async def _spec(self, task: Task, provider: SandboxProvider) -> SandboxSpec:
        spec = await prepare(task, provider, base_image=self.base_image, cache_dir=self.cache_dir)
        return dataclasses.replace(spec, labels={**spec.labels, **self.labels})

    def _shown(self, done: CommandResult, seconds: float) -> str:
        # Equal commands must give equal observations: pytest's summary contains the duration.
        stdout = _DURATION.sub(rb"\1", done.stdout)
        output = editing.shortened(stdout, self.output_bytes, done.dropped_stdout)
        if done.timed_out:
            ending = f"[killed: it was still running after {seconds:g} s]"
        elif done.oom_killed:
            ending = f"[exit status {done.exit_code}: out of memory]"
        else:
            ending = f"[exit status {done.exit_code}]"
        return f"{output.rstrip()}\n{ending}" if output.strip() else ending


class BashSweEnv(SweEnvBase):
    """A SWE task with a shell as the only tool besides ``submit``."""


def _saved(state: Mapping[str, Any]) -> Snapshot:
    return Snapshot(state["provider"], state["id"])


def _expert(record: SweRecord) -> list[str]:
    found = (record.model_extra or {}).get("expert_actions") or []
    return [str(action) for action in found]
