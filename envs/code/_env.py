"""The code-interpreter environment: questions that Python code helps to answer."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from trajgym.envs import Budgets, EnvironmentFault, ToolResult, tool
from trajgym.envs.code._answers import Match, is_right, last_boxed
from trajgym.envs.code._interpreter import Interpreter
from trajgym.envs.code._tasks import CodeRecord, load_tasks
from trajgym.envs.sandbox import ProviderName, SandboxSpec, shared_provider
from trajgym.envs.sandbox._env import SandboxEnv
from trajgym.trajectory import InvalidInput, Message, Outcome, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.code._interpreter import Cell
    from trajgym.envs.sandbox import Sandbox, SandboxProvider
    from trajgym.trajectory import Task

__all__ = ["BlockCodeEnv", "CodeEnv", "CodeEnvBase"]

BASE_IMAGE = "trajgym/base:bookworm"
_WORK = "/work"
_PYTHON = "/opt/trajgym/python"
_BLOCK = re.compile(r"```(?:python|py)\s*\n(.*?)(?:```|\Z)", re.DOTALL)

_TOOL_PROMPT = """\
Answer the question. Call python to run code; variables, imports and files stay between calls. You \
have {cells} calls. When you know the answer, call answer with nothing but the answer itself.

Question: {question}"""

_BLOCK_PROMPT = """\
Answer the question step by step. Whenever code helps, write it in a block that begins with \
```python and ends with ```, and stop: what it prints comes back in an output block. Variables, \
imports and files stay between blocks. You have {cells} blocks. Put the final answer in \\boxed{{}}.

Question: {question}"""


class CodeEnvBase(SandboxEnv):
    """What both protocols share: the interpreter, the number of runs, verification.

    Args:
        sandbox: ``docker``, ``embedded``, or ``auto``: Docker if an engine answers.
        cell_seconds: time limit of one run of code.
        cells: maximum number of runs of code; further runs are refused with a message.
        output_bytes: maximum number of bytes of the output of one run that are shown.
        match: how answers are compared if the task does not specify it; see :func:`is_right`.
        base_image: the Docker image; it must contain python3.
    """

    task_data = CodeRecord
    agent_programs: ClassVar[bool] = False
    budgets: ClassVar[Budgets] = Budgets(turns=24, seconds=900.0, observation_bytes=32_000)
    prompt: ClassVar[str] = ""

    def __init__(
        self,
        *,
        sandbox: ProviderName = "auto",
        cell_seconds: float = 20.0,
        cells: int = 8,
        output_bytes: int = 8_000,
        match: Match = "number",
        base_image: str = BASE_IMAGE,
    ) -> None:
        if cell_seconds <= 0 or cells < 1 or output_bytes < 1:
            raise InvalidInput("cell_seconds, cells and output_bytes must be positive")
        if sandbox not in get_args(ProviderName):
            raise InvalidInput(f"sandbox {sandbox!r}: use one of {get_args(ProviderName)}")
        if match not in get_args(Match):
            raise InvalidInput(f"match {match!r}: use one of {get_args(Match)}")
        self.cell_seconds = cell_seconds
        self.cells = cells
        self.output_bytes = output_bytes
        self.match: Match = match
        self.base_image = base_image
        self._kind: ProviderName = sandbox
        self._provider: SandboxProvider | None = None
        self._sandbox: Sandbox | None = None
        self._interpreter: Interpreter | None = None
        self._record: CodeRecord | None = None
        self._used = 0
        self._answer: str | None = None

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return tasks; see :func:`trajgym.envs.code.load_tasks`."""
        return load_tasks(source)

    @classmethod
    async def run_provider(cls, config: Mapping[str, Any]) -> SandboxProvider:
        """Return the provider that the setting ``sandbox`` names."""
        return await shared_provider(cls(**config)._kind)

    async def reset(self, task: Task, seed: int | None) -> str:
        """Start a sandbox with the task's files and return the question as a prompt."""
        del seed
        self._record = record = CodeRecord.of(task)
        self._provider = await shared_provider(self._kind)
        self._sandbox = await self._provider.start(self._spec())
        for path, text in record.files.items():
            await self._sandbox.write_file(f"{_WORK}/{path}", text.encode())
        self._interpreter = Interpreter(self._sandbox, cwd=_WORK, output_bytes=self.output_bytes)
        return self.prompt.format(cells=self.cells, question=record.question)

    async def verify(self) -> Outcome:
        """Compare the last answer with the task's, or run the task's check on it."""
        assert self._record is not None
        answer = self._answer
        details: dict[str, Any] = {"answer": answer, "cells": self._used}
        if answer is None:
            return Outcome(score=0.0, passed=False, details=details)
        if self._record.check:
            score = await self._checked(answer)
        else:
            match = self._record.match or self.match
            score = 0.0
            for right in self._record.answer:
                if await asyncio.to_thread(is_right, answer, right, match):
                    score = 1.0
                    break
        return Outcome(score=score, passed=score >= 1.0, details=details)

    async def close(self) -> None:
        """Remove the sandbox."""
        sandbox, self._sandbox = self._sandbox, None
        self._interpreter = None
        if sandbox is not None:
            await sandbox.close()

    async def _cell(self, code: str) -> tuple[str, dict[str, Any]]:
        """Run code if any runs are left; return what the agent reads, and signals."""
        assert self._interpreter is not None
        if self._used >= self.cells:
            return f"[not run: all {self.cells} runs are used; give the answer]", {"cells_left": 0}
        self._used += 1
        cell = await self._interpreter.run(code, seconds=self.cell_seconds)
        left = self.cells - self._used
        output = cell.output.rstrip() or "[no output]"
        return f"{output}\n[{left} runs left]" if left < 3 else output, _signals(cell, left)

    def _spec(self) -> SandboxSpec:
        own = {} if Path("/usr/bin/python3").exists() else {_PYTHON: Path(sys.base_prefix)}
        path = f"{_PYTHON}/bin:/usr/local/bin:/usr/bin:/bin"
        embedded = self._provider is not None and self._provider.name == "embedded"
        return SandboxSpec(
            image=self.base_image,
            workdir=_WORK,
            readonly=own if embedded else {},
            env={"PATH": path, "PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
            labels=dict(self.labels),
        )

    async def _checked(self, answer: str) -> float:
        """Run the task's check in a fresh sandbox."""
        assert self._record is not None
        assert self._provider is not None
        mark = secrets.token_hex(8)
        script = (
            f"import json, sys\n{self._record.check}\n"
            f"print('\\n{mark}', json.dumps(float(check(sys.stdin.read()))))\n"
        )
        async with await self._provider.start(self._spec()) as sandbox:
            done = await sandbox.run(
                ["python3", "-B", "-c", script], timeout=60.0, stdin=answer.encode()
            )
        output = done.stdout.decode("utf-8", "replace")
        found = re.search(rf"^{mark} (\S+)$", output, re.MULTILINE)
        if not done.ok or found is None or not 0.0 <= (score := json.loads(found[1])) <= 1.0:
            said = done.stderr[-500:].decode("utf-8", "replace") or "it gave no score from 0 to 1"
            raise EnvironmentFault("verify", f"the task's check failed: {said}")
        return float(score)


class CodeEnv(CodeEnvBase):
    """Code is run by a tool call: ``trajgym.envs`` id ``code``."""

    prompt: ClassVar[str] = _TOOL_PROMPT

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return a demonstration: the task's ``solution`` is run; odd samples answer wrongly."""
        solution = str(task.data.get("solution", ""))
        if not solution:
            raise InvalidInput(f"task {task.id!r} has no solution for a scripted agent")
        name = "python" if sample % 2 == 0 else "answer"
        code = f"print(__import__('os').getcwd())\n{solution}"
        last = {"code": code} if name == "python" else {"answer": "42"}
        return [_call(name, last, 0), _call("answer", {"answer": _expected(task)}, 1)]

    @tool
    async def python(self, code: str) -> ToolResult:
        """Run Python code. Variables, imports and files stay from call to call.

        Args:
            code: what to run; the value of a last expression is printed.
        """
        content, signals = await self._cell(code)
        return ToolResult(content=content, signals=signals)

    @tool
    async def answer(self, answer: str) -> ToolResult:
        """Give the final answer. This ends the task.

        Args:
            answer: nothing but the answer itself.
        """
        self._answer = answer
        return ToolResult(content="taken", done=True)

    async def respond(self, message: Message) -> ToolResult:
        r"""Take a plain message as the last one; its ``\boxed{}`` is the answer."""
        self._answer = last_boxed(text_of(message))
        return ToolResult(done=True)


class BlockCodeEnv(CodeEnvBase):
    r"""Code is in blocks of plain messages, the answer in ``\boxed{}``: id ``code-blocks``.

    As in ToRL (arXiv:2503.23383): the model stops after a block, and its output is returned as
    text.
    """

    prompt: ClassVar[str] = _BLOCK_PROMPT

    async def respond(self, message: Message) -> ToolResult:
        """Run the last block of a message; without a block, the message is the last one."""
        text = text_of(message)
        blocks = _BLOCK.findall(text)
        if not blocks:
            self._answer = last_boxed(text)
            return ToolResult(done=True)
        content, signals = await self._cell(blocks[-1])
        return ToolResult(content=f"```output\n{content}\n```", signals=signals)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return a demonstration: the task's ``solution``, then an answer."""
        solution = str(task.data.get("solution", ""))
        if not solution:
            raise InvalidInput(f"task {task.id!r} has no solution for a scripted agent")
        answer = _expected(task) if sample % 2 == 0 else "42"
        return [
            {"role": "assistant", "content": f"Let me compute.\n```python\n{solution}\n```"},
            {"role": "assistant", "content": f"The answer is \\boxed{{{answer}}}."},
        ]


def _signals(cell: Cell, left: int) -> dict[str, Any]:
    return {
        "cell_failed": cell.failed,
        "timed_out": cell.timed_out,
        "interpreter_lost": cell.lost,
        "cells_left": left,
    }


def _expected(task: Task) -> str:
    answers = CodeRecord.of(task).answer
    return answers[0] if answers else "0"


def _call(name: str, arguments: dict[str, Any], number: int) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
