"""Notebooks: a cell that collects without await, and objects that show themselves."""

from __future__ import annotations

import html
import signal
import subprocess
import sys
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.worlds import Counter
from trajgym.envs import EnvSpec, Session
from trajgym.rollout import ScriptedPolicy, SealedGroup, TokenPolicy, call, collect_sync, say
from trajgym.trajectory import InvalidInput, Run, Task

assert Counter
SPEC = EnvSpec(id="test/counter")
SCRIPT = [say("<script>alert(1)</script> & so on", call("add", n=3)), call("finish")]
CELLS = [
    (
        "from tests.worlds import Counter\n"
        "from trajgym.envs import EnvSpec\n"
        "from trajgym.rollout import ScriptedPolicy, call, collect_sync\n"
        "from trajgym.trajectory import Run, Task"
    ),
    (
        "policy = ScriptedPolicy([call('add', n=3), call('finish')])\n"
        "spec = EnvSpec(id='test/counter')\n"
        "report = collect_sync(spec, [Task(id='t')], policy, OUT, samples=2)\n"
        "report.sessions"
    ),
    "run = Run(OUT)\nrun",
    "next(run.sessions())",
    "next(run.groups())",
]


class Balanced(HTMLParser):
    """Fails on tags that are not closed in order; keeps what a reader sees."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def shown(value: Any) -> Balanced:
    page = Balanced()
    page.feed(value._repr_html_())
    page.close()
    assert page.open == []
    return page


@pytest.fixture
def run(tmp_path: Path) -> Run:
    collect_sync(SPEC, [Task(id="t")], TokenPolicy.fake(SCRIPT), tmp_path, samples=2)
    return Run(tmp_path)


def test_a_notebook_runs(tmp_path: Path) -> None:
    """A real kernel: collecting in a cell, and the HTML of run, session and group."""
    cells = [f"OUT = {str(tmp_path / 'run')!r}", *CELLS]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(Path(__file__).parents[1])}}
    patience = {"timeout": 240, "startup_timeout": 240}
    NotebookClient(book, kernel_name="python3", resources=resources, **patience).execute()
    outputs = [cell.outputs[-1].data for cell in book.cells[2:] if cell.outputs]
    assert outputs[0]["text/plain"] == "2"
    assert "2 sessions, 2 of 2 scored ones passed" in outputs[1]["text/html"]
    assert "&#9654; add" in outputs[2]["text/html"]
    assert "of task t: sealed" in outputs[3]["text/html"]
    for data in outputs[1:]:
        assert len(data["text/plain"]) < 200


def test_pages_are_well_formed_and_show_what_was_said_as_text(run: Run) -> None:
    """Whatever a model wrote, it is text on the page; long texts are cut."""
    (tree, other), (group,) = run.sessions(), run.groups()
    page = shown(tree)
    assert "<script>alert(1)</script> & so on" in page.text
    assert "script" not in page.tags
    assert "completed with score" in page.text
    sealed = SealedGroup(group, [tree, other])
    assert shown(sealed).text.count("completed") == 2
    assert shown(run).text.count("completed") == 2
    assert html.escape(tree.record.id) in shown(group).text


async def test_reprs_are_short(run: Run) -> None:
    """One line with what one asks first, however long the session."""
    (tree, other), (group,) = run.sessions(), run.groups()
    assert repr(tree) == f"<SessionTree {tree.record.id}: task t, 2 turns, completed 1>"
    assert repr(run) == f"<Run {str(run.path)!r}>"
    assert repr(group) == f"<Group {group.id}: task t, sealed, 2 of 2 members count>"
    sealed = repr(SealedGroup(group, [tree, other]))
    assert sealed == f"<SealedGroup {group.id}: task t, 2 of 2 sessions, scores 1, 1>"
    async with Session(SPEC, Task(id="t"), session_id="s") as session:
        assert repr(session) == "<Session s: task t, 0 turns, running>"
        assert "at task t, running" in session._repr_html_()


async def test_collecting_without_await_inside_a_running_loop(tmp_path: Path) -> None:
    """In a loop, as in a notebook; a policy's connections go on from call to call."""
    policy = ScriptedPolicy(SCRIPT)
    for name in ("a", "b"):
        report = collect_sync(SPEC, [Task(id="t")], policy, tmp_path / name)
        assert report.sessions == 1


def test_errors_come_out_and_a_call_from_a_session_is_refused(tmp_path: Path) -> None:
    """What collect raises is raised here; waiting for one's own loop would never end."""
    with pytest.raises(InvalidInput):
        collect_sync(SPEC, [Task(id="t")], ScriptedPolicy(SCRIPT), tmp_path / "a", samples=0)
    refused: list[BaseException] = []

    def again(_: object) -> None:
        try:
            collect_sync(SPEC, [Task(id="t")], ScriptedPolicy(SCRIPT), tmp_path / "c")
        except InvalidInput as error:
            refused.append(error)

    collect_sync(SPEC, [Task(id="t")], ScriptedPolicy(SCRIPT), tmp_path / "b", on_progress=again)
    assert "await collect" in str(refused[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_closes_sessions_and_can_be_resumed(tmp_path: Path, number: int) -> None:
    """Ctrl-C while collecting, or a handler that exits: the session reads cancelled, none runs."""
    code = f"""
        import signal
        import sys
        from tests.worlds import Counter
        from trajgym.envs import EnvSpec
        from trajgym.rollout import ScriptedPolicy, call, collect_sync
        from trajgym.trajectory import Task

        def note(event):
            if event.kind == "began":
                print("began", flush=True)

        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
        policy = ScriptedPolicy([call("wait", seconds=1000)])
        collect_sync(EnvSpec(id="test/counter"), [Task(id="t")], policy, {str(tmp_path)!r},
                     on_progress=note)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "began\n"
    child.send_signal(number)
    assert child.wait(120) != 0
    child.stdout.close()
    with Run(tmp_path) as found:
        assert [str(s.attempts[0].status) for s in found.summaries()] == ["cancelled"]
