"""The code-interpreter environment: state between cells, limits, answers, sessions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sandbox.outside import end_from_outside
from trajgym.envs import EnvironmentFault, EnvSpec, Session
from trajgym.envs.code import (
    BlockCodeEnv,
    CodeEnv,
    Interpreter,
    _compare,
    is_right,
    last_boxed,
    load_tasks,
)
from trajgym.envs.sandbox import (
    DockerProvider,
    EmbeddedProvider,
    SandboxProvider,
    SandboxSpec,
    close_shared_providers,
)
from trajgym.rollout import call
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(params=[pytest.param("docker", marks=pytest.mark.docker), "embedded"])
async def interpreter(request: pytest.FixtureRequest) -> AsyncIterator[Interpreter]:
    """An interpreter in each kind of sandbox."""
    made: SandboxProvider = DockerProvider() if request.param == "docker" else EmbeddedProvider()
    spec = SandboxSpec(image="trajgym/base:bookworm", workdir="/work")
    async with made, await made.start(spec) as sandbox:
        async with Interpreter(sandbox, output_bytes=1000) as opened:
            yield opened


@pytest.fixture(autouse=True)
async def no_provider_stays() -> AsyncIterator[None]:
    yield
    await close_shared_providers()


async def test_cells_share_a_namespace_and_survive_what_cells_do(interpreter: Interpreter) -> None:
    """State is kept; errors, endless loops and long output are reported; a crash restarts it."""

    async def run(code: str, seconds: float = 120.0) -> tuple[str, bool]:
        cell = await interpreter.run(code, seconds=seconds)
        return cell.output, cell.failed

    assert await run("import math\nradius = 2") == ("", False)
    assert await run("def area():\n    return math.pi * radius**2\nround(area(), 2)") == (
        "12.57\n",
        False,
    )
    assert await run("print('out')\nimport sys\nprint('err', file=sys.stderr)\n'é'") == (
        "out\nerr\n'é'\n",
        False,
    )
    output, failed = await run("radius.nothing")
    assert failed
    assert "radius.nothing" in output
    assert "AttributeError" in output
    assert "_inside" not in output
    assert (await run("1 +"))[0].endswith("SyntaxError: invalid syntax\n")
    assert await run("__import__('subprocess').call(['echo', 'child'])") == ("child\n0\n", False)
    assert (await run("input()"))[0].endswith("EOFError: EOF when reading a line\n")
    cell = await interpreter.run("print('x' * 5000, end='end')", seconds=120)
    assert cell.dropped > 3500
    assert cell.output.endswith("xxxend")
    assert len(cell.output) < 1100
    cell = await interpreter.run("seen = 1\nwhile True: pass", seconds=3)
    assert (cell.timed_out, cell.lost) == (True, False)
    assert await run("seen + radius") == ("3\n", False)
    cell = await interpreter.run(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n"
        "while True: pass",
        seconds=3,
    )
    assert (cell.timed_out, cell.lost) == (True, True)
    assert "NameError" in (await run("radius"))[0]
    assert (await interpreter.run("import os; os._exit(3)", seconds=120)).lost
    assert await run("open('kept', 'w').write('x')") == ("1\n", False)
    assert (await run("import sys; sys.exit(1)"))[0].endswith("SystemExit: 1\n")


@pytest.mark.parametrize(("env", "turns"), [(CodeEnv, 2), (BlockCodeEnv, 2)])
async def test_every_builtin_task_is_solved_by_its_script(env: Any, turns: int) -> None:
    """The scripted agent solves the tasks with an answer in one protocol as in the other."""
    spec = EnvSpec(id=f"trajgym.envs.code:{env.__name__}", config={"sandbox": "embedded"})
    for task in load_tasks("builtin"):
        async with Session(spec, task) as session:
            for message in env.script(task, 0):
                await session.step(message)
        solved = "check" not in task.data  # the script does not read the interpreter's output
        assert str(session.status) == "completed"
        assert session.outcome is not None
        assert session.outcome.passed is solved, task.id
        assert len(session.turns) == turns
        (first, *_) = session.turns
        assert "Traceback" not in json.dumps(first.observation)


async def test_a_check_runs_where_the_agent_never_was() -> None:
    """The task's function decides; what the agent left in its sandbox does not reach it."""
    (task, *_) = load_tasks("builtin")
    spec = EnvSpec(id="trajgym.envs.code:CodeEnv", config={"sandbox": "embedded"})
    scores = []
    for answer in ("0", None):
        async with Session(spec, task) as session:
            found = await session.step(CodeEnv.script(task, 0)[0])
            text = str(found.observation[0]["content"]).split("\n")[1]
            call = {"name": "answer", "arguments": json.dumps({"answer": answer or text})}
            tool = {"id": "a", "type": "function", "function": call}
            await session.step({"role": "assistant", "content": "", "tool_calls": [tool]})
        assert session.outcome is not None
        scores.append(session.outcome.score)
    assert scores == [0.0, 1.0]


async def test_runs_are_counted_and_a_fork_repeats_them() -> None:
    """Code beyond the limit is not run; a rival attempt has the variables of its turn."""
    task = Task(id="t", data={"question": "?", "answer": "3"})
    spec = EnvSpec(id="trajgym.envs.code:BlockCodeEnv", config={"sandbox": "embedded", "cells": 2})

    def block(code: str) -> str:
        return f"Think.\n```python\n{code}\n```"

    async with Session(spec, task) as session:
        await session.step(block("x = 1"))
        async with await session.fork(0) as rival:
            shown = await rival.step(block("x + 1"))
            assert "2" in str(shown.observation[0]["content"])
        await session.step(block("x + 2"))
        shown = await session.step(block("x + 3"))
        assert "not run" in str(shown.observation[0]["content"])
        await session.step("So \\boxed{\\frac{6}{2}}.")
    assert session.outcome is not None
    assert session.outcome.score == 1.0


@pytest.mark.parametrize(
    ("answer", "expected", "match", "right"),
    [
        ("5/54", "5/54", "exact", True),
        ("0.5", "\\frac{1}{2}", "number", True),
        ("50%", "1/2", "number", True),
        ("$1,000$", "1000", "number", True),
        ("\\text{Harbour}.", "harbour", "number", True),
        ("0.5", "1/2", "exact", False),
        ("1000.1", "1000", "number", False),
        ("nan", "nan1", "number", False),
        ("", "0", "number", False),
        ("1/0", "1", "number", False),
        ("\\sqrt{8}", "2\\sqrt{2}", "math", True),
        ("\\{2, 1\\}", "\\{1, 2\\}", "math", True),
        ("\\sqrt{8}", "2\\sqrt{3}", "math", False),
    ],
)
def test_answers(answer: str, expected: str, match: Any, right: bool) -> None:
    """Text up to case and blanks; numbers in the forms that models write."""
    assert is_right(answer, expected, match) is right


def test_numbers_of_any_size_are_compared_at_once() -> None:
    """The exact value of a number in scientific notation is never computed."""
    for answer in ("1e999999999", "-1e-999999999", "1/1e999999999", "nan", "inf", "9" * 10_000):
        assert not is_right(answer, "5", "number")
    assert is_right("1e3", "1000", "number")


def test_mathematics_that_never_ends_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that keeps the comparison busy is wrong; the next ones are compared again."""
    pytest.importorskip("math_verify", reason="needs trajgym[math]")
    monkeypatch.setattr(_compare, "_SECONDS", 0.5)
    monkeypatch.setattr(_compare, "_idle", [])
    assert not is_right("9^{9^{9^{9}}}", "5", "math")
    assert not is_right("100000000!", "5", "math")
    for answer, right in (
        (r"\frac{10}{2}", True),
        ("x + y", False),
        ("{1, 2", False),
        ("", False),
    ):
        assert is_right(answer, "5", "math") == right
    while _compare._idle:
        _compare._end(_compare._idle.pop())


def test_a_process_that_is_ended_from_outside_makes_no_answer_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one takes over from an idle one; without any, comparing fails instead of scoring."""
    pytest.importorskip("math_verify", reason="needs trajgym[math]")
    monkeypatch.setattr(_compare, "_idle", [])
    assert is_right("5", "5", "math")
    (worker,) = _compare._idle
    worker.kill()
    worker.wait(60)
    assert is_right("5", "5", "math")
    _compare._end(_compare._idle.pop())
    monkeypatch.setattr(_compare, "_INSIDE", "raise SystemExit(3)")
    with pytest.raises(EnvironmentFault, match="status 3"):
        is_right("5", "5", "math")
    assert _compare._idle == []


@given(st.text(alphabet="{}ab\\ ", max_size=30))
def test_the_last_box_is_balanced(inside: str) -> None:
    """Whatever stands in a box comes back if its braces are balanced."""
    balanced, depth = True, 0
    for character in inside:
        depth += {"{": 1, "}": -1}.get(character, 0)
        balanced = balanced and depth >= 0
    found = last_boxed("x \\boxed{1} \\boxed{" + inside + "} y")
    if balanced and depth == 0:
        assert found == inside.strip()


@pytest.mark.parametrize("kind", [pytest.param("docker", marks=pytest.mark.docker), "embedded"])
async def test_a_sandbox_that_is_ended_from_outside_gives_no_score(kind: str) -> None:
    """The session fails for the sandbox: its agent is not told that its code was at fault."""
    task = Task(id="t", data={"question": "?", "answer": "1"})
    session = Session(EnvSpec(id="code", config={"sandbox": kind}), task)
    async with session, asyncio.timeout(120):
        await session.step(call("python", code="x = 1"))
        box = cast("CodeEnv", session._instance.env)._sandbox
        assert box is not None
        end_from_outside(box)
        await session.step(call("python", code="print(x)"))
    assert str(session.status) == "failed:sandbox"
    assert session.outcome is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"question": "?"}, "give exactly one of"),
        ({"question": "?", "answer": " "}, "blank"),
        ({"answer": "1"}, "question"),
        ({"question": "?", "check": "def"}, "not Python"),
        ({"question": "?", "answer": "1", "match": "fuzzy"}, "match"),
        ({"question": "?", "answer": "1", "files": {"../x": ""}}, "working directory"),
    ],
)
def test_malformed_tasks_are_refused_on_load(
    tmp_path: Path, data: dict[str, Any], said: str
) -> None:
    """A task that can't be decided or started is refused before any session, by its id."""
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"id": "odd", "data": data}))
    with pytest.raises(InvalidInput, match=rf"odd.*{said}"):
        CodeEnv.load_tasks(str(file))
