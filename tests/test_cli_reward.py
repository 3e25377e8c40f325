"""`trajgym reward --explain --plot`, `trajgym annotate`, and values over spans in `show`."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.test_cli import run
from tests.worlds import Counter
from trajgym.cli import main
from trajgym.envs import EnvSpec
from trajgym.rollout import FakeCall, TokenPolicy, TreeExpansion, call, collect
from trajgym.trajectory import InvalidInput, Run, Task

assert Counter


def count(asked: FakeCall) -> Any:
    """Adds one or two, or is refused, as the seed says; ends in the third turn."""
    if asked.turn == 2:
        return call("finish")
    return (call("add"), call("add", n=2), call("refuse"))[((asked.seed or 0) >> 9) % 3]


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """A run of one task with two forked sessions of exact turns."""
    out = tmp_path / "run"
    asyncio.run(
        collect(
            EnvSpec(id="test/counter"),
            [Task(id="t")],
            TokenPolicy.fake(count),
            out,
            samples=2,
            seed=3,
            expansion=TreeExpansion(nodes=2, rounds=2),
        )
    )
    return out


def first(out: Path) -> str:
    with Run(out) as found:
        return next(found.summaries()).record.id


def rows_of(said: str) -> list[list[str]]:
    """The lines of a table whose first cell is a number, split at double spaces."""
    lines = [line.strip() for line in said.splitlines()]
    cells = [[c.strip() for c in line.split("  ") if c.strip()] for line in lines]
    return [row for row in cells if row and row[0].split()[0].isdigit()]


def test_explain_prints_terms_that_add_up(trees: Path) -> None:
    """Every turn of the session has its terms by name, and their sum as its value."""
    name = first(trees)
    said = run("reward", trees, "--with", "tree_grpo", "--explain", name)
    head = next(line for line in said.splitlines() if "intra" in line)
    assert head.split()[-6:] == ["intra", "inter", "advantage", "spans,", "on", "top"]
    rows = rows_of(said)
    with Run(trees) as found:
        tree = found.session(name)
        kept = json.loads(found.derived(name)["tree_grpo"])
    assert len(rows) == len(tree.turns)
    assert any(kept["values"])
    for turn, row in zip(tree.turns, rows, strict=True):
        assert row[0].split()[0] == str(turn.index)
        intra, inter, value = (float(cell) for cell in row[-3:])
        assert intra + inter == pytest.approx(value, abs=2e-3)
        assert value == pytest.approx(kept["values"][turn.index], rel=1e-3, abs=1e-4)
    assert "Kept in" in said


def test_spans_are_kept_explained_and_shown(trees: Path) -> None:
    """Advantages over tool calls stand in the store and beside their turn in `show`."""
    name = first(trees)
    said = run("reward", trees, "--with", "toolpo", "--explain", name)
    with Run(trees) as found:
        tree = found.session(name)
        kept = json.loads(found.derived(name)["toolpo"])
    assert kept["spans"]
    shown = " ".join(run("show", trees, name).split())
    for turn, span, value in kept["spans"]:
        tokens = tree.turns[turn].tokens
        assert tokens is not None
        spans = [f"{s.kind}[{s.start}:{s.end}]" for s in tokens.spans]
        assert span in spans
        assert f"{span} {value:+.4g}" in said
        assert f"{span} {value:+.3g}" in shown


def test_plots_of_tree_and_group(trees: Path, tmp_path: Path) -> None:
    """With a session its tree is drawn, without one the run's only group; both formats work."""
    tree, group = tmp_path / "tree.svg", tmp_path / "group.png"
    said = run("reward", trees, "--with", "tree_grpo", "--explain", first(trees), "--plot", tree)
    assert f"tree of session {first(trees)}: {tree}" in said
    drawn = tree.read_text()
    assert "<svg" in drawn
    run("reward", trees, "--with", "tree_grpo", "--plot", group)
    assert group.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_or_explained_is_said(trees: Path, tmp_path: Path) -> None:
    """No such session, an unknown format, and a run of several groups are clear errors."""
    with pytest.raises(InvalidInput, match="no session starts with 'zzz'"):
        run("reward", trees, "--with", "grpo", "--explain", "zzz")
    with pytest.raises(InvalidInput, match=r"\.svg or \.png"):
        run("reward", trees, "--with", "grpo", "--plot", tmp_path / "x.txt")
    spec, tasks = EnvSpec(id="test/counter"), [Task(id="a"), Task(id="b")]
    asyncio.run(collect(spec, tasks, TokenPolicy.fake(count), tmp_path / "two"))
    with pytest.raises(InvalidInput, match="2 sealed groups: name a session with --explain"):
        run("reward", tmp_path / "two", "--with", "grpo", "--plot", tmp_path / "x.svg")


def test_derivers_that_read_texts_work_on_the_command_line(trees: Path) -> None:
    """The table has what the deriver needs: texts and states too."""
    for name in ("srl", "gigpo", "next_state_votes"):
        assert "Kept in" in run("reward", trees, "--with", name)


@contextmanager
def judge(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A chat endpoint in a thread that always votes 1."""
    asked: list[dict[str, Any]] = []
    message = {"role": "assistant", "content": "<hint>Add only one.</hint> \\boxed{1}"}
    body = json.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
    ).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_annotate_then_reward(trees: Path) -> None:
    """Votes come from the endpoint, are not asked for twice, and become advantages."""
    with judge() as (url, asked):
        options = ("--with", "votes", "--base-url", url, "--model", "m", "--votes", 1)
        said = run("annotate", trees, *options)
        turns = len(asked)
        assert f"votes of m: {turns} turns annotated, 0 were already, 0 failed" in said
        assert "trajgym reward" in said
        assert f"0 turns annotated, {turns} were already" in run("annotate", trees, *options)
        assert len(asked) == turns
        hints = run("annotate", trees, "--with", "hints", *options[2:])
        assert f"hints of m: {turns} turns annotated" in hints
    said = run("reward", trees, "--with", "next_state_votes")
    assert f"{turns} not zero, sum {turns}." in said
    with Run(trees) as found:
        signals = [turn.signals for tree in found.sessions() for turn in tree.turns]
    assert {one["hint"] for one in signals if "hint" in one} == {"Add only one."}


def test_a_judge_that_refuses_is_one_clear_line(
    trees: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong key ends the command with status 2 and the server's answer; so does a wrong name."""
    with judge(401) as (url, _):
        for judge_name, message in (("votes", "401"), ("guess", "there are votes, hints")):
            arguments = ["annotate", str(trees), "--with", judge_name, "--model", "m"]
            monkeypatch.setattr(sys, "argv", ["trajgym", *arguments, "--base-url", url])
            monkeypatch.setattr(sys, "path", list(sys.path))
            if judge_name == "guess":
                with pytest.raises(SystemExit) as ended:
                    main()
                assert ended.value.code == 2
                said = " ".join(capsys.readouterr().err.split())
            else:
                said = run(*arguments, "--base-url", url)
            assert message in said
            assert "Traceback" not in said
