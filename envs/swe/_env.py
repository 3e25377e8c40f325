"""The SWE environment: an agent repairs a repository, hidden tests judge."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from trajgym.envs import Budgets, Env, ToolError, ToolResult, tool, tools_of
from trajgym.envs.sandbox import (
    ProviderName,
    SandboxFileError,
    Snapshot,
    close_shared_providers,
    shared_provider,
)
from trajgym.envs.swe import _editing as editing
from trajgym.envs.swe._demo import demo_agent
from trajgym.envs.swe._extract import extract_change
from trajgym.envs.swe._grade import grade, ungraded
from trajgym.envs.swe._images import BASE_IMAGE, prepare
from trajgym.envs.swe._layout import REPO
from trajgym.envs.swe._recipes import load_tasks
from trajgym.envs.swe._record import SweRecord
from trajgym.trajectory import InvalidInput, Outcome, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.sandbox import CommandResult, Sandbox, SandboxProvider, SandboxSpec
    from trajgym.trajectory import Message, Task

__all__ = ["BashSweEnv", "SweEnv", "SweEnvBase"]

_TESTS = re.compile(r"\b(pytest|unittest|tox|nox)\b")
_COUNTS = re.compile(rb"(\d+) (passed|failed|error)")

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
        base_image: for Docker: what task images are built on.
        cache_dir: where sources are kept, instead of the user's cache.
        warm: how many sandboxes of one task may be started ahead of their sessions.
    """

    budgets: ClassVar[Budgets] = Budgets(turns=60, seconds=1800.0, observation_bytes=32_000)
    hint: ClassVar[str] = ""
    _runs: ClassVar[int] = 0

    def __init__(
        self,
        *,
        sandbox: ProviderName = "auto",
        command_seconds: float = 60.0,
        output_bytes: int = 16_000,
        test_seconds: float = 300.0,
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
        self.base_image = base_image
        self.cache_dir = Path(cache_dir) if cache_dir else None
        self._kind: ProviderName = sandbox
        self._warm = warm
        self._provider: SandboxProvider | None = None
        self._running: Sandbox | None = None
        self._task: Task | None = None
        self._edited: list[str] = []

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
        SweEnvBase._runs += 1

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        """Close the shared sandboxes once no run of this process needs them."""
        del config
        SweEnvBase._runs = max(0, SweEnvBase._runs - 1)
        if not SweEnvBase._runs:
            await close_shared_providers()

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
        provider = await self._open()
        self._running = await provider.start(await self._spec(task, provider))
        return _PROMPT.format(
            repo=REPO, name=record.repo, problem=record.problem_statement.strip(), hint=self.hint
        )

    async def snapshot(self) -> str:
        """Keep the files of the sandbox."""
        kept = await self.sandbox.snapshot()
        return json.dumps({"provider": kept.provider, "id": kept.id, "edited": self._edited})

    async def restore(self, task: Task, seed: int | None, snapshot: str) -> None:
        """Start a sandbox with the files of a snapshot."""
        del seed
        state = json.loads(snapshot)
        self._task = task
        self._edited = list(state["edited"])
        kept = Snapshot(state["provider"], state["id"])
        provider = await self._open()
        self._running = await provider.restore(kept, await self._spec(task, provider))

    async def verify(self) -> Outcome:
        """Grade the agent's change in a fresh sandbox; see :func:`trajgym.envs.swe.grade`."""
        assert self._task is not None
        assert self._provider is not None
        change = await extract_change(self.sandbox)
        if change.problem:
            return ungraded(self._task, change.problem)
        return await grade(
            self._task,
            change.patch,
            self._provider,
            spec=self.sandbox.spec,
            test_seconds=self.test_seconds,
        )

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
        done = await self.sandbox.run(line, timeout=seconds, cwd=REPO)
        signals: dict[str, Any] = {"exit_code": done.exit_code, "timed_out": done.timed_out}
        if _TESTS.search(command):
            signals |= _test_signals(done)
        return ToolResult(content=self._shown(done, seconds), signals=signals)

    @tool
    async def submit(self) -> ToolResult:
        """Hand in the work: the repository as it is now is graded."""
        return ToolResult(content="submitted", done=True, signals={"submitted": True})

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


class SweEnv(SweEnvBase):
    """A SWE task with a shell, a file viewer and an editor: ``trajgym.envs`` id ``swe``."""

    hint: ClassVar[str] = "Look at files with view, change them with str_replace, insert, create. "

    @tool
    async def view(self, path: str, start: int = 1, end: int | None = None) -> ToolResult:
        """Show lines of a file with their numbers, or list a folder.

        Args:
            path: relative to the repository, or absolute.
            start: first line, from 1.
            end: last line, included; by default the end of the file.
        """
        try:
            content = await self._read(path)
        except ToolError:
            listing = await self.sandbox.run(["ls", "-1Ap", f"{_absolute(path)}/"], timeout=30.0)
            if not listing.ok:
                raise
            text = editing.shortened(listing.stdout, self.output_bytes, listing.dropped_stdout)
            return ToolResult(content=text or "the folder is empty")
        text = editing.numbered(content, start, end, path)
        shown = editing.shortened(editing.encode(text), self.output_bytes)
        return ToolResult(content=shown, signals={"viewed": path})

    @tool
    async def str_replace(self, path: str, old: str, new: str) -> ToolResult:
        """Replace text that occurs exactly once in a file.

        Args:
            path: relative to the repository, or absolute.
            old: the text as it stands in the file, blanks and line ends included.
            new: the text to put in its place.
        """
        text, line = editing.replaced(await self._read(path), old, new, path)
        return await self._write(path, text, f"replaced at line {line} of {path}")

    @tool
    async def insert(self, path: str, line: int, text: str) -> ToolResult:
        """Insert whole lines into a file.

        Args:
            path: relative to the repository, or absolute.
            line: the number of the line after which they are inserted; 0 is the top.
            text: the lines.
        """
        changed = editing.inserted(await self._read(path), line, text, path)
        return await self._write(path, changed, f"inserted after line {line} of {path}")

    @tool
    async def create(self, path: str, content: str) -> ToolResult:
        """Create a file; an existing file is an error.

        Args:
            path: relative to the repository, or absolute; folders are created.
            content: the whole content.
        """
        there = await self.sandbox.run(["test", "-e", _absolute(path)], timeout=30.0)
        if there.ok:
            raise ToolError(f"{path} exists already; change it with str_replace or insert")
        return await self._write(path, content, f"created {path}", mode=0o644)

    async def _read(self, path: str) -> str:
        try:
            return editing.decode(await self.sandbox.read_file(_absolute(path)))
        except SandboxFileError as error:
            raise ToolError(f"{path} can't be read: {error}") from error

    async def _write(
        self, path: str, text: str, said: str, *, mode: int | None = None
    ) -> ToolResult:
        where = _absolute(path)
        if mode is None:
            stat = await self.sandbox.run(["stat", "-L", "-c", "%a", where], timeout=30.0)
            mode = int(stat.stdout, 8) if stat.ok else 0o644
        try:
            await self.sandbox.write_file(where, editing.encode(text), mode=mode)
        except SandboxFileError as error:
            raise ToolError(f"{path} can't be written: {error}") from error
        relative = where.removeprefix(f"{REPO}/")
        if relative not in self._edited:
            self._edited.append(relative)
        return ToolResult(content=said, signals={"files_edited_so_far": list(self._edited)})


def _absolute(path: str) -> str:
    if not path or "\0" in path:
        raise ToolError("path is empty or holds a NUL character")
    return posixpath.normpath(posixpath.join(REPO, path))


def _test_signals(done: CommandResult) -> dict[str, Any]:
    signals: dict[str, Any] = {"tests_run": True, "tests_ok": done.ok}
    for count, kind in _COUNTS.findall(done.stdout[-2000:]):
        signals[f"tests_{kind.decode()}"] = int(count)
    return signals
