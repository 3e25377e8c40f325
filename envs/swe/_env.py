"""The SWE environment: an agent repairs a repository, hidden tests judge."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from trajgym.envs import Budgets, Env, ToolError, ToolResult, tool, tools_of
from trajgym.envs.sandbox import (
    ProviderName,
    Snapshot,
    hold_shared_providers,
    release_shared_providers,
    shared_provider,
)
from trajgym.envs.swe import _editing as editing
from trajgym.envs.swe._demo import demo_agent
from trajgym.envs.swe._extract import extract_change
from trajgym.envs.swe._grade import grade, ungraded
from trajgym.envs.swe._hunks import parse_patch
from trajgym.envs.swe._images import BASE_IMAGE, prepare
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
configuration and packaging files do not count. There is no network. {hint}When you are done, call \
submit."""


class SweEnvBase(Env):
    """What every tool set shares: the sandbox, commands, snapshots, grading.

    Args:
        sandbox: ``docker``, ``embedded``, or ``auto``: Docker if an engine answers.
        command_seconds: default and upper limit of one command.
        output_bytes: what a tool shows of an output; the middle of a longer one is left out.
        test_seconds: limit of the test run in grading.
        calls: most tool calls of an attempt; when they are used up it ends ``truncated:calls``.
        remind_at: how many calls before that each result begins to say what is left.
        base_image: for Docker: what task images are built on.
        cache_dir: where sources are kept, instead of the user's cache.
        warm: how many sandboxes of one task may be started ahead of their sessions.
    """

    budgets: ClassVar[Budgets] = Budgets(turns=60, seconds=1800.0, observation_bytes=32_000)
    hint: ClassVar[str] = ""

    def __init__(
        self,
        *,
        sandbox: ProviderName = "auto",
        command_seconds: float = 60.0,
        output_bytes: int = 16_000,
        test_seconds: float = 300.0,
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
        self._task: Task | None = None
        self._trace = Trace()

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return SWE tasks; see :func:`trajgym.envs.swe.load_tasks`."""
        return load_tasks(source)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return what the demonstration's agent says; see :func:`trajgym.envs.swe.demo_agent`."""
        return demo_agent(task, sample, editor="str_replace" in tools_of(cls))

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        """Remove the sandboxes that a killed run left, and build the images of known tasks."""
        env = cls(**config)
        provider = await env._open()
        await provider.reap()
        for task in tasks:
            with contextlib.suppress(TrajgymError):  # the task's own sessions say what is wrong
                await env._spec(task, provider)
        hold_shared_providers()

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        """Close the shared sandboxes once no run of this process needs them."""
        del config
        await release_shared_providers()

    @property
    def sandbox(self) -> Sandbox:
        """The agent's sandbox."""
        if self._running is None:
            raise RuntimeError("no sandbox: reset was not called, or the environment is closed")
        return self._running

    async def reset(self, task: Task, seed: int | None) -> str:
        """Start a sandbox with the repository and return the problem statement as a prompt."""
        del seed
        record = SweRecord.of(task)
        self._task = task
        gold = [change.path for change in parse_patch(record.patch)]
        self._trace = Trace(gold=gold, expert=_expert(record))
        provider = await self._open()
        self._running = await provider.start(await self._spec(task, provider))
        return _PROMPT.format(
            repo=REPO, name=record.repo, problem=record.problem_statement.strip(), hint=self.hint
        )

    async def snapshot(self) -> str:
        """Keep the files of the sandbox."""
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
        kept = Snapshot(state["provider"], state["id"])
        provider = await self._open()
        self._running = await provider.restore(kept, await self._spec(task, provider))

    def kept(self) -> dict[str, Any]:
        """Return what of a tool set's own state goes with a snapshot, as JSON values."""
        return {}

    def take(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`kept` gave."""

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
            spec=self.sandbox.spec,
            test_seconds=self.test_seconds,
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
        """Return a result that says, towards the end, how many calls are left."""
        if self.calls is None:
            return ToolResult(content=content, signals=signals)
        left = self.calls - self._trace.calls
        if left <= 0:
            said = f"{content}\n[all {self.calls} calls are used: the work is graded as it is]"
            return ToolResult(content=said, signals=signals, truncated="calls")
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
        # Equal work shall give equal observations: pytest's summary tells the time.
        stdout = _DURATION.sub(rb"\1", done.stdout)
        output = editing.shortened(stdout, self.output_bytes, done.dropped_stdout)
        if done.timed_out:
            ending = f"[killed: no end in {seconds:g} s]"
        elif done.oom_killed:
            ending = f"[exit status {done.exit_code}: out of memory]"
        else:
            ending = f"[exit status {done.exit_code}]"
        return f"{output.rstrip()}\n{ending}" if output.strip() else ending


class BashSweEnv(SweEnvBase):
    """A SWE task with a shell as the only tool besides ``submit``."""


def _expert(record: SweRecord) -> list[str]:
    found = (record.model_extra or {}).get("expert_actions") or []
    return [str(action) for action in found]
