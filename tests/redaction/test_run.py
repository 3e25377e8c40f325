"""Redacting whole runs: every text, token ids, review, and exports."""

from __future__ import annotations

import json
import sqlite3
import stat
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from tests.datasets.runs import contents, grouped_run, tree, write_run
from trajgym.cli import app
from trajgym.trajectory import (
    CallResult,
    Group,
    Member,
    Run,
    Segment,
    SessionTree,
    Store,
    Task,
    Turn,
    TurnTokens,
    Wire,
)
from trajgym.trajectory.datasets import lineage, redact_run
from trajgym.trajectory.redaction import Redactor

MAIL = "jane@corp.com"
VALUES = {"kind": "rewards", "deriver": "outcome", "settings": {}, "values": [0, 0]}


def said(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def everything(path: Path) -> str:
    """All values of all tables of a run as text."""
    connection = sqlite3.connect(next(path.glob("*.sqlite")))
    tables = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    rows = [row for table in tables for row in connection.execute(f"SELECT * FROM {table}")]
    connection.close()
    return "\n".join(
        value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for row in rows
        for value in row
    )


def with_secrets(path: Path) -> Path:
    """A run that has the address in every place that holds text."""
    one = tree(f"s:{MAIL}", task=f"t:{MAIL}", group=f"g:{MAIL}", says=["hi", f"ask {MAIL}"])
    record, turn = one.record, one.turns[0]
    record.labels[MAIL] = MAIL
    record.tools = [{"type": "function", "function": {"name": "f", "description": MAIL}}]
    record.env["config"] = {"owner": MAIL}
    record.budgets = {"note": MAIL}
    turn.message["tool_calls"] = [
        {
            "id": "c",
            "type": "function",
            "function": {"name": "f", "arguments": json.dumps({"to": f"x\n{MAIL}"})},
        }
    ]
    turn.calls = [CallResult(call_id="c", name="f", status="ok")]
    turn.observation = [
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": MAIL}]}
    ]
    turn.signals = {"note": {MAIL: [MAIL]}}
    turn.role_reason = MAIL
    attempt = one.attempts[0]
    attempt.cause, attempt.error = MAIL, f"Traceback {MAIL}"
    assert attempt.outcome is not None
    attempt.outcome.details = {"by": MAIL}
    group = Group(
        id=f"g:{MAIL}",
        task=f"t:{MAIL}",
        planned=1,
        members=[Member(record.id, 0)],
        sealed=True,
    )
    with Store(path) as store:
        name, _ = store.put_blob(json.dumps([{"by": MAIL}]).encode(), "application/json")
        store.put_blob(b"\x89PNG", "image/png")
    turn.wire = Wire(call="c", dialect="chat", tools=name, hints={"user": MAIL})
    write_run(path, [one], [group], [Task(id=f"t:{MAIL}", prompt=MAIL, data={"x": [MAIL]})])
    with Store(path) as store:
        store.add_signals(record.id, 0, {"why": MAIL}, source=MAIL)
        store.put_derived(record.id, MAIL, json.dumps(VALUES | {"note": MAIL}).encode())
        store.set_meta("note", MAIL).wait()
    return path


def test_no_text_of_a_run_is_left_out(tmp_path: Path) -> None:
    """Ids, keys, signals, stored texts and metadata too; the new run is consistent."""
    path = with_secrets(tmp_path / "run")
    redactor = Redactor()
    made = redact_run(path, tmp_path / "out", redactor)
    assert MAIL in everything(path)
    assert MAIL not in everything(tmp_path / "out")
    shown = redactor.text(MAIL)
    with Run(tmp_path / "out") as run:
        assert run.check() == []
        (found,) = run.sessions()
        (group,) = run.groups()
        assert found.record.id == f"s:{shown}" == group.members[0].session
        assert found.record.group == group.id == f"g:{shown}"
        assert run.task(found.record.task) == Task(
            id=f"t:{shown}", prompt=shown, data={"x": [shown]}
        )
        wire = found.turns[0].wire
        assert wire is not None
        assert json.loads(run.blob(wire.tools).data) == [{"by": shown}]
        source = lineage(run)
        assert source is not None
        assert source.operation == "redact"
    assert (made.sessions, redactor.report.sessions) == (1, 1)
    assert redactor.report.unexamined == {"image/png": 1}
    assert len(redactor.report.findings) == 1
    assert MAIL not in json.dumps(str(redactor.report))


def test_a_clean_run_stays_the_same(tmp_path: Path) -> None:
    """Without findings, every record, signal, value and blob is equal."""
    grouped_run(tmp_path / "run")
    redactor = Redactor()
    redact_run(tmp_path / "run", tmp_path / "out", redactor)
    assert contents(tmp_path / "out") == contents(tmp_path / "run")
    assert redactor.report.replaced == redactor.report.turns_without_ids == 0


def exact(
    text: str,
    *,
    parent: int | None,
    index: int,
    says: str = "ok",
    edge: str = "continue",
    agent: str = "main",
    sees: str = "",
) -> Turn:
    return Turn(
        index=index,
        parent=parent,
        edge=edge,  # type: ignore[arg-type]
        agent=agent,
        context=[{"role": "user", "content": sees}] if sees else [],
        message={"role": "assistant", "content": says},
        observation=[{"role": "user", "content": text}],
        tokens=TurnTokens(
            prompt_kept=0,
            prompt_ids=np.ones(3, dtype=np.int32),
            response_ids=np.ones(2, dtype=np.int32),
            logprobs=-np.ones(2, dtype=np.float32),
            segments=(Segment(2, 1, 1),),
        ),
    )


def test_ids_that_spell_a_replaced_text_are_left_out(tmp_path: Path) -> None:
    """From the turn that shows it on, in its branch only; a sub-agent did not see it."""
    base = tree("s", says=["x"])
    turns = [
        exact("fine", parent=None, index=0, sees="go"),
        exact(f"from {MAIL}", parent=0, index=1),  # its own ids don't spell its observation
        exact("fine", parent=1, index=2),
        exact("fine", parent=0, index=3),
        exact("fine", parent=1, index=4, edge="spawn", agent="helper", sees="help"),
        exact("fine", parent=3, index=5, says=f"I am {MAIL}"),
        exact("fine", parent=5, index=6),
    ]
    base.attempts[0].leaf = 6
    write_run(tmp_path / "run", [SessionTree(base.record, turns, base.attempts)])
    redactor = Redactor()
    redact_run(tmp_path / "run", tmp_path / "out", redactor)
    with Run(tmp_path / "out") as run:
        kept = [turn.index for turn in run.session("s").turns if turn.exact]
    assert kept == [0, 1, 3, 4]
    assert (redactor.report.turns_without_ids, redactor.report.sessions_without_ids) == (3, 1)


def test_tools_that_change_cost_all_ids(tmp_path: Path) -> None:
    """The prompt of every turn spells the tool schemas."""
    base = tree("s", says=["x"])
    base.record.tools = [{"type": "function", "function": {"name": "f", "description": MAIL}}]
    write_run(
        tmp_path / "run",
        [SessionTree(base.record, [exact("x", parent=None, index=0, sees="go")], base.attempts)],
    )
    redactor = Redactor()
    redact_run(tmp_path / "run", tmp_path / "out", redactor)
    assert redactor.report.turns_without_ids == 1


def test_review_and_decisions(tmp_path: Path) -> None:
    """The file lists findings without values; a kept one stays, a later review keeps decisions."""
    trees = [tree("a", says=[f"mail {MAIL}", "call +49 30 901820"]), tree("b", says=[MAIL])]
    write_run(tmp_path / "run", trees)
    file = tmp_path / "decisions.json"
    output = said("dataset", "review", tmp_path / "run", "--decisions", file)
    assert MAIL not in output + file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = json.loads(file.read_text())
    mail = next(one for one in found["findings"] if one["rule"] == "email")
    assert mail["count"] == 2
    assert mail["places"] == [
        "session a turn 0.message.content",
        "session b turn 0.message.content",
    ]
    assert mail["context"] == f"mail {mail['placeholder']}"
    mail["decision"] = "keep"
    file.write_text(json.dumps(found))
    said("dataset", "review", tmp_path / "run", "--decisions", file)
    kept = json.loads(file.read_text())["findings"]
    assert {one["rule"]: one["decision"] for one in kept} == {"email": "keep", "phone": "redact"}
    out, report = tmp_path / "out", tmp_path / "report.json"
    said(
        "dataset", "redact", tmp_path / "run", "--out", out, "--decisions", file, "--report", report
    )
    assert MAIL in everything(out)
    assert "901820" not in everything(out) + report.read_text()
    counts = json.loads(report.read_text())
    assert (counts["replaced"], counts["kept"]) == ({"phone": 1}, {"email": 2})


def test_exports_redact(tmp_path: Path) -> None:
    """Every export and the data set; the redacted run that they were made from is removed."""
    path = with_secrets(tmp_path / "run")
    said("export", path, "--to", "sft", "--out", tmp_path / "sft", "--redact")
    line = (tmp_path / "sft" / "sft.jsonl").read_text()
    assert "[EMAIL-" in line
    assert MAIL not in line
    output = said("export", path, "--to", "sft", "--out", tmp_path / "b", "--redact", "--json")
    found = json.loads(output[output.index("{") :])
    assert found["redaction"]["values"] == 1
    said("dataset", "export", path, "--out", tmp_path / "data", "--redact")
    said("dataset", "import", tmp_path / "data", "--out", tmp_path / "back")
    assert MAIL not in everything(tmp_path / "back")
    assert not list(tmp_path.glob(".*"))
    refused = CliRunner().invoke(
        app, ["export", str(path), "--to", "sft", "--out", str(tmp_path / "x"), "--decisions", "d"]
    )
    assert refused.exit_code != 0
