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

import pyarrow.parquet as pq
import pytest

from tests.test_cli import run
from tests.worlds import Counter
from trajgym.adapters import ExportReport
from trajgym.cli import main
from trajgym.envs import EnvSpec
from trajgym.rewards import MissingSignals
from trajgym.rollout import TokenPolicy, TreeExpansion, call, collect
from trajgym.rollout.engines import FakeCall
from trajgym.trajectory import (
    Attempt,
    Dropped,
    InvalidInput,
    Outcome,
    Run,
    SessionRecord,
    Status,
    Store,
    Task,
)

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
    assert head.split() == [
        "turn",
        "attempt",
        "after",
        "what",
        "it",
        "did",
        "intra",
        "inter",
        "advantage",
    ]
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
    assert "Stored in" in said


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
    with pytest.raises(InvalidInput, match="2 sealed groups, and --plot draws one"):
        run("reward", tmp_path / "two", "--with", "grpo", "--plot", tmp_path / "x.svg")


def test_derivers_that_read_texts_work_on_the_command_line(trees: Path) -> None:
    """The table has what the deriver needs: texts and states too."""
    assert "Stored in" in run("reward", trees, "--with", "gigpo")
    said = run("reward", trees, "--with", "srl", "--missing-signals", "zero")
    assert "warning: srl: of 2 sessions, 2 have no signal 'expert_action'" in said
    assert "Stored in" in said


@pytest.mark.parametrize(
    ("name", "signal", "source"),
    [
        ("igpo", "gold_logprob", "subclass trajgym.rollout.annotators.Annotator"),
        ("next_state_votes", "vote", "trajgym annotate RUN --with votes"),
        ("directive_hints", "hint_gaps", "trajgym.rollout.annotators.HintJudge"),
        ("certificate", "certificate_score", "trajgym.rollout.annotators.CertificateJudge"),
        ("srl", "expert_action", "outcome detail in verify()"),
    ],
)
def test_missing_signals_stop_the_command(
    trees: Path, tmp_path: Path, name: str, signal: str, source: str
) -> None:
    """Nothing is stored or written; the error names the signal and what records it."""
    for command in (("reward", trees), ("export", trees, "--to", "rows", "--out", tmp_path / "x")):
        with pytest.raises(MissingSignals) as error:
            run(*command, "--with", name)
        assert f"of 2 sessions, 2 have no signal '{signal}'" in str(error.value)
        assert source in str(error.value)
    with Run(trees) as found:
        assert not any(found.derived(one.record.id) for one in found.summaries())
    assert not list(tmp_path.glob("x/*"))


def test_official_tree_grpo_reaches_the_export(trees: Path, tmp_path: Path) -> None:
    """An export uses the variant that `reward` stored, names it, and writes its values."""
    run("reward", trees, "--with", "tree_grpo", "--set", "variant=official")
    out = tmp_path / "rows"
    said = run("export", trees, "--to", "rows", "--out", out, "--set", "allow=synthetic")
    assert 'tree_grpo (variant="official")' in said
    with Run(trees) as found:
        kept = [
            value
            for one in found.summaries()
            for value in json.loads(found.derived(one.record.id)["tree_grpo"])["values"]
        ]
    (file,) = out.glob("*.parquet")
    rows = pq.read_table(file).to_pylist()
    written = {round(v, 5) for row in rows for v in row["advantage"] if v}
    assert written
    assert written <= {round(value, 5) for value in kept}


def test_an_export_prints_at_most_ten_reasons(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many different reasons are counted, most frequent first; JSON has them all."""
    reasons = [f"reason {n}" for n in range(200) for _ in range(1 + (n == 7))]
    dropped = [Dropped(str(at), None, reason) for at, reason in enumerate(reasons)]
    report = ExportReport("sft", written=3, dropped=dropped)
    monkeypatch.setattr("trajgym.cli._reward.export", lambda *_, **__: report)
    command = ("export", trees, "--to", "sft", "--out", tmp_path / "x")
    lines = [line.strip() for line in run(*command).splitlines() if "left out" in line]
    assert len(lines) == 10
    assert lines[0] == "left out 2: reason 7"
    assert lines[-1] == "left out 191: 191 other reasons (--json prints all)"
    assert len(json.loads(run(*command, "--json"))["left_out"]) == 200


def test_sessions_outside_of_groups_have_no_values(tmp_path: Path) -> None:
    """Sessions that were recorded one by one: `reward` says why there is nothing."""
    with Store(tmp_path / "run") as store:
        store.begin_session(SessionRecord(id="a", task="t", env={"id": "none", "config": {}}))
        outcome = Outcome(score=1.0, passed=True)
        store.put_attempt("a", Attempt(status=Status("completed"), outcome=outcome)).wait()
    said = run("reward", tmp_path / "run", "--with", "outcome")
    assert "no counted session is in a sealed group" in said


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
        assert f"votes of m: {turns} turns annotated, 0 annotated before, 0 failed" in said
        assert "trajgym reward" in said
        assert f"0 turns annotated, {turns} annotated before" in run("annotate", trees, *options)
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
