"""Agent programs in sandboxes, from collect() to the recorded run."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clock import Forward
from tests.server.fake import Trouble
from tests.server.harness import shape
from tests.server.programs.harness import LOOP, case, solving
from trajgym.adapters import Gate, export, read_rows
from trajgym.envs import Budgets, EnvSpec
from trajgym.envs.sandbox import close_shared_providers, shared_provider
from trajgym.envs.swe import load_tasks
from trajgym.rewards import GRPO, TurnTable
from trajgym.rollout import Progress, Runner
from trajgym.trajectory import Run, Sampling, Store, Task, build_rows

KINDS = [pytest.param("docker", marks=pytest.mark.docker), "embedded"]
PYTHON = {"agent": "script", "script": LOOP, "interpreter": "python3"}


@pytest.fixture(autouse=True)
async def no_provider_stays() -> AsyncIterator[None]:
    """Environments share one provider of each kind; it belongs to the test's event loop."""
    yield
    await close_shared_providers()


@pytest.fixture
def spans() -> Task:
    """A task that is shipped with the package."""
    return load_tasks(["trajgym__spans-1.0"])[0]


NOTES = "tests.server.programs.notes"
NOTE = EnvSpec(id=f"{NOTES}:EmbeddedNote")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_program_solves_a_swe_task(tmp_path: Path, spans: Task, kind: str) -> None:
    """The agent works in the sandbox, its calls are recorded exactly, and its work is graded."""
    spec = EnvSpec(id="swe", config={"sandbox": kind})
    async with case(tmp_path, solving(spans.data["patch"])) as c:
        report = await c.collect(spec, [spans], PYTHON)
        assert report.statuses == {"completed": 1}
        tree = c.tree()
        first = c.engine.requests[0]
        for turn in tree.turns:  # prompt and answer, id by id, as the engine had them
            assert turn.tokens is not None
            answer = turn.tokens.response_ids.tolist()
            prompt = tuple(tree.sequence(turn).tolist()[: -len(answer)])
            assert c.engine.plans[prompt] == answer
        assert len(c.engine.requests) == len(tree.turns) == 3
    (attempt,) = tree.attempts
    assert attempt.outcome is not None
    assert attempt.outcome.score == 1.0
    assert shape(tree) == [(i - 1 if i else None, "continue", "main") for i in range(3)]
    assert attempt.leaf == 2
    assert {turn.delivery for turn in tree.turns} == {"delivered"}
    (row,) = build_rows(tree).rows
    assert row.turns == (0, 1, 2)
    assert tree.record.env == spec.to_json()
    assert tree.record.tools == []
    asked = first["messages"][0]["content"]
    assert "Spans that touch are not joined" in asked
    assert "submit" not in asked
    assert "/testbed" in str(tree.context(tree.turns[1])[-1]["content"])
    details = attempt.outcome.details["agent"]
    assert details["stdout"] == "finished: Done.\n"
    assert (details["name"], details["exit"]) == ("script", 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_shell_command_with_curl(tmp_path: Path, kind: str) -> None:
    """A line of shell is an agent: it reaches its model, and no other address."""
    line = (
        'grep -q "word done" "$TRAJGYM_PROMPT_FILE" && '
        "! python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 80), 3)' && "
        'python3 - <<"END" > note.txt\n'
        "import json, os, urllib.request as u\n"
        'url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"\n'
        'body = {"model": "x", "messages": [{"role": "user", "content": "say done"}]}\n'
        'head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}\n'
        "answer = u.urlopen(u.Request(url, json.dumps(body).encode(), head))\n"
        'print(json.load(answer)["choices"][0]["message"]["content"])\n'
        "END"
    )
    spec = EnvSpec(id=f"{NOTES}:{kind.title()}Note")
    async with case(tmp_path, lambda n, body: {"text": "done"}) as c:
        report = await c.collect(spec, [Task(id="a"), Task(id="b")], {"command": line}, samples=2)
        assert report.statuses == {"completed": 4}
        assert report.solved == 4
        assert report.groups == 2
        assert {body["model"] for body in c.engine.requests} == {"x"}
        assert len({body["seed"] for body in c.engine.requests}) == 4
        again = await c.collect(spec, [Task(id="a"), Task(id="b")], {"command": line}, samples=2)
        assert again.sessions == 0


async def test_groups_give_advantages_and_exports(tmp_path: Path) -> None:
    """What programs leave is a run like any other: group-relative advantages, rows, and texts."""
    answers = ["done", "not yet"]
    agent = {**PYTHON, "sampling": Sampling(temperature=1.0)}

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if len(body["messages"]) > 1:
            return {"text": "Finished."}
        return {"calls": [("bash", {"command": f"echo {answers[n // 2]} > note.txt"})]}

    async with case(tmp_path, script) as c:
        await c.collect(NOTE, [Task(id="t")], agent, samples=2, concurrency=1)
    with Run(c.out) as run:
        groups, trees = list(run.groups()), list(run.sessions())
    values = GRPO().derive(TurnTable.build(groups, trees))
    rows = export("rows", trees, groups, tmp_path / "rows", values=values)
    texts = export("sft", trees, groups, tmp_path / "sft")
    assert (rows.written, rows.dropped) == (2, [])
    assert texts.written == 1
    signs = []
    for row in read_rows(tmp_path / "rows" / "rows.parquet"):
        assert row.advantage is not None
        signs.append(set(np.sign(row.advantage[row.loss_mask]).tolist()))
        assert Gate(temperature=1.0).refusal(trees[0]) is None
    assert sorted(map(max, signs)) == [-1.0, 1.0]
    assert all(len(found) == 1 for found in signs)


async def ends(tmp_path: Path, agent: dict[str, Any], *troubles: Trouble, **settings: Any) -> Any:
    """Run one attempt whose model writes the note, then stops; return the attempt."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if len(body["messages"]) > 6:
            return {"text": "Done."}
        return {"calls": [("bash", {"command": "echo done > note.txt"})]}

    async with case(tmp_path, script, *troubles) as c:
        await c.collect(NOTE, [Task(id="t")], agent, **settings)
        (attempt,) = c.tree().attempts
        return attempt


async def test_a_program_that_fails(tmp_path: Path) -> None:
    """Another exit status than 0 is a failure without a score, with the end of the output."""
    attempt = await ends(tmp_path, {"command": "echo working; echo broken >&2; exit 3"})
    assert str(attempt.status) == "failed:agent"
    assert attempt.outcome is None
    assert attempt.cause == "exit status 3: broken"
    assert "working" in attempt.error


async def test_a_program_that_makes_no_call(tmp_path: Path) -> None:
    """Without a call there is nothing to score."""
    attempt = await ends(tmp_path, {"command": "echo done > note.txt"})
    assert str(attempt.status) == "failed:agent"
    assert attempt.cause == "no call of the model was made (exit status 0)"


CALL = """python3 - <<'END'
import json, os, urllib.request as u
body = {"model": "x", "messages": [{"role": "user", "content": "go on"}]}
head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
u.urlopen(u.Request(url, json.dumps(body).encode(), head))
END
"""


async def hangs(tmp_path: Path, forward: Forward, spec: EnvSpec, line: str) -> Any:
    """Run a program that makes a call and hangs; return the attempt after its seconds are up."""
    agent = {"command": f"echo done > note.txt; echo waiting\n{CALL}{line}"}
    async with case(tmp_path, lambda n, body: {"text": "done"}) as c:
        async with Store(c.out) as store, c.policy(**agent) as policy:
            budgets = Budgets(seconds=300.0)
            async with Runner(spec, [Task(id="t")], policy, store=store, budgets=budgets) as runner:
                sealed = asyncio.ensure_future(anext(aiter(runner)))
                async with asyncio.timeout(120):
                    while not any(
                        one.turns and not one.clock.held for one in runner._running.attempts
                    ):
                        await asyncio.sleep(0.01)
                forward(300.0)
                await sealed
        (attempt,) = c.tree().attempts
        return attempt


async def test_a_program_that_hangs(tmp_path: Path, forward: Forward) -> None:
    """The agent's seconds end it; what it has done so far is verified."""
    attempt = await hangs(tmp_path, forward, NOTE, "sleep 3600")
    assert str(attempt.status) == "truncated:seconds"
    assert attempt.outcome.score == 1.0
    assert attempt.outcome.details["agent"]["stdout"] == "waiting\n"


async def test_the_deadline_of_the_session(tmp_path: Path) -> None:
    """The wall clock ends it as a failure."""
    attempt = await ends(tmp_path, {"command": "sleep 3600"}, deadline=3.0)
    assert str(attempt.status) == "failed:deadline"


async def test_the_turns_are_used_up(tmp_path: Path) -> None:
    """The call that the budget does not permit is refused, and ends the attempt as truncated."""
    attempt = await ends(tmp_path, PYTHON, budgets=Budgets(turns=2))
    assert str(attempt.status) == "truncated:turns"
    assert attempt.outcome.score == 1.0


async def test_the_model_is_gone(tmp_path: Path) -> None:
    """A program that ends because its model failed is no failure of the agent's."""
    attempt = await ends(tmp_path, PYTHON, Trouble(1, "status", 500))
    assert str(attempt.status) == "failed:policy"
    assert "status 500: injected (the program: exit status 1)" in attempt.cause


async def test_a_model_that_fails_once(tmp_path: Path) -> None:
    """A retry that succeeds leaves no trace in how the attempt ends; failed samples are retried."""
    async with case(tmp_path, lambda n, body: {"text": "done"}, Trouble(0, "status", 500)) as c:
        report = await c.collect(NOTE, [Task(id="t")], PYTHON, retries=1)
        assert report.statuses == {"failed:policy": 1, "completed": 1}
        names = sorted(tree.record.id for tree in c.trees())
    assert names[1] == f"{names[0]}.1"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_process_that_stays_behind_is_killed(
    tmp_path: Path, kind: str, forward: Forward
) -> None:
    """Nothing of a program that was stopped is running when its work is verified."""
    spec = EnvSpec(id=f"{NOTES}:{kind.title()}Note")
    attempt = await hangs(tmp_path, forward, spec, "setsid sleep 3601 & sleep 3602")
    assert str(attempt.status) == "truncated:seconds"
    assert attempt.outcome is not None
    assert attempt.outcome.details["running"] == 0
    assert attempt.outcome.score == 1.0


async def test_a_program_that_needs_too_much_memory(tmp_path: Path) -> None:
    """A limit of the sandbox that the agent reached is a limit, not a failure."""
    attempt = await ends(tmp_path, {"command": "exec python3 -c 'x = bytearray(1 << 30)'"})
    assert str(attempt.status) == "truncated:memory"
    assert attempt.outcome.score == 0.0


async def test_a_full_context(tmp_path: Path) -> None:
    """An engine that refuses because its context is full ends the attempt as truncated."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        return {"calls": [("bash", {"command": "echo done > note.txt"})]}

    trouble = Trouble(1, "status", 400, message="maximum context length is 8 tokens")
    async with case(tmp_path, script, trouble) as c:
        await c.collect(NOTE, [Task(id="t")], PYTHON)
        (attempt,) = c.tree().attempts
    assert str(attempt.status) == "truncated:context"
    assert attempt.outcome is not None
    assert attempt.outcome.score == 1.0


async def test_a_program_reaches_its_own_session_only(tmp_path: Path) -> None:
    """No other session, and none of the endpoints with which a trainer rewards and closes."""
    other = "python3 - <<'END'\n" + textwrap.dedent(
        """
        import json, os, urllib.error, urllib.request as u

        def status(path, key):
            request = u.Request("http://model.trajgym" + path, b"{}", {"authorization": key})
            try:
                return u.urlopen(request).status
            except urllib.error.HTTPError as error:
                return error.code

        key = "Bearer " + os.environ["OPENAI_API_KEY"]
        own = os.environ["OPENAI_BASE_URL"].split("/")[4]
        for path in ["/api/sessions", f"/api/sessions/{own}/close", "/metrics", "/envs"]:
            print(path.replace(own, "own"), status(path, key))
        print("other", status("/sessions/other/v1/chat/completions", key))
        print("no key", status(f"/sessions/{own}/v1/chat/completions", "none"))
        """
    )
    attempt = await ends(tmp_path, {"command": f"{other}\nEND\nexit 1"})
    said = attempt.error.splitlines()
    assert said == [
        "[stdout]",
        "/api/sessions 404",
        "/api/sessions/own/close 404",
        "/metrics 404",
        "/envs 404",
        "other 401",
        "no key 401",
    ]


async def test_output_is_bounded(tmp_path: Path) -> None:
    """A program that prints without end keeps the end of its output."""
    line = "head -c 3000000 /dev/zero | tr '\\0' x; printf END; exit 1"
    attempt = await ends(tmp_path, {"command": line})
    assert attempt.error.endswith("xxEND")
    assert len(attempt.error) < 10_000


async def test_our_sampling_replaces_the_programs(tmp_path: Path) -> None:
    """Temperature and the tokens that are left are set in each request, whatever the agent asks."""
    async with case(tmp_path, lambda n, body: {"text": "done"}) as c:
        budgets = Budgets(completion_tokens=50)
        agent = {**PYTHON, "sampling": Sampling(temperature=0.7, max_tokens=80)}
        await c.collect(NOTE, [Task(id="t")], agent, budgets=budgets)
        (body,) = c.engine.requests
        (turn,) = c.tree().turns
    assert (body["temperature"], body["max_tokens"]) == (0.7, 50)
    assert turn.sampling is not None
    assert turn.sampling.temperature == 0.7


async def test_a_paused_runner_delays_the_next_call(tmp_path: Path) -> None:
    """A program's call waits while the runner is paused; that is not the agent's time."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if n == 0:
            return {"calls": [("bash", {"command": "echo done > note.txt"})]}
        return {"text": "Done."}

    async with case(tmp_path, script, Trouble(0, "gate")) as c:
        async with Store(c.out) as store, c.policy(**PYTHON) as policy:
            async with Runner(NOTE, [Task(id="t")], policy, store=store) as runner:
                sealed = asyncio.ensure_future(anext(aiter(runner)))
                await c.engine.arrived.wait()
                runner.pause()
                c.engine.gate.set()
                (session,) = runner._running.attempts
                _, live = policy._running[session.id]
                async with asyncio.timeout(60):
                    while not (session.turns and live.running):  # its second call
                        await asyncio.sleep(0.01)
                assert session.clock.held
                assert len(c.engine.requests) == 1
                runner.resume()
                group = await sealed
                assert len(c.engine.requests) == 2
    (tree,) = group.sessions
    assert str(tree.attempts[0].status) == "completed"


async def test_a_run_that_is_cancelled(tmp_path: Path) -> None:
    """The program is killed, its session reads cancelled, and the next run repeats the sample."""
    async with case(tmp_path, lambda n, body: {"text": "done"}, Trouble(0, "gate")) as c:
        run = asyncio.ensure_future(c.collect(NOTE, [Task(id="t")], PYTHON))
        await c.engine.arrived.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        (attempt,) = c.tree().attempts
        assert str(attempt.status) == "cancelled"
        assert attempt.outcome is None
        c.engine.gate.set()
        report = await c.collect(NOTE, [Task(id="t")], PYTHON)
        assert report.statuses == {"completed": 1}


async def test_a_callback_that_fails(tmp_path: Path) -> None:
    """What a loop's callback raises ends the attempt as its failure, and the program with it."""

    def broken(event: Progress) -> None:
        if event.kind == "turn":
            raise ValueError("no such metric")

    async with case(tmp_path, lambda n, body: {"text": "done"}) as c:
        await c.collect(NOTE, [Task(id="t")], PYTHON, on_progress=broken)
        (attempt,) = c.tree().attempts
    assert str(attempt.status) == "failed:callback"
    assert "no such metric" in attempt.cause


async def test_a_kill_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """After SIGKILL the turns are there, and the same command runs the sample again."""
    out = tmp_path / "run"

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if n == 0:
            return {"calls": [("bash", {"command": "echo done > note.txt"})]}
        return {"text": "Done."}

    async with case(tmp_path, script, Trouble(1, "gate")) as c:
        words = ["collect", "--env", f"{NOTES}:EmbeddedNote", "--out", str(out), "--samples", "1"]
        tasks = tmp_path / "tasks.jsonl"
        tasks.write_text('{"id": "t"}\n')
        words += ["--tasks", str(tasks), "--base-url", c.engine.url, "--model", "fake"]
        words += ["--agent", "script", "--agent-set", f"script={LOOP}"]
        words += ["--agent-set", "interpreter=python3"]

        async def begin() -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "trajgym.cli", *words, stdout=asyncio.subprocess.PIPE
            )

        first = await begin()
        async with asyncio.timeout(120):
            while len(c.engine.requests) < 2:
                await asyncio.sleep(0.02)
        first.kill()
        await first.communicate()
        with Run(out) as run:
            (tree,) = run.sessions()
        assert len(tree.turns) == 1
        assert tree.turns[0].exact
        c.engine.gate.set()
        second = await begin()
        said, _ = await second.communicate()
    assert second.returncode == 0, said
    with Run(out) as run:
        killed, done = run.sessions()
        (group,) = run.groups()
    assert str(killed.attempts[0].status) == "interrupted"
    assert str(done.attempts[0].status) == "completed"
    assert group.sealed
    provider = await shared_provider("embedded")
    assert await provider.reap() == 0  # the second process has removed what the first one left
