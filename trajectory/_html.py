"""Runs, sessions and groups as HTML, for notebooks: no scripts, and every text is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trajgym.trajectory._messages import text_of, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trajgym.trajectory._messages import Message
    from trajgym.trajectory._records import Attempt, Group, Turn
    from trajgym.trajectory._run import SessionSummary
    from trajgym.trajectory._tree import SessionTree

__all__ = ["group_html", "run_html", "tree_html"]

_ROWS = 50
_TEXT = 2000
_STYLE = (
    "<style>"
    ".trajgym{font-size:13px;line-height:1.45;max-width:72em}"
    ".trajgym table{border-collapse:collapse;margin:.4em 0;font-size:inherit}"
    ".trajgym th,.trajgym td{text-align:left;padding:.15em .9em .15em 0;vertical-align:top}"
    ".trajgym .n{text-align:right;font-variant-numeric:tabular-nums}"
    ".trajgym th{border-bottom:1px solid;font-weight:600}"
    ".trajgym details{border-left:2px solid #8886;margin:.35em 0;padding:.1em .7em}"
    ".trajgym summary{cursor:pointer}"
    ".trajgym pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.2em 0;"
    "background:none;font-size:12px}"
    ".trajgym .d{opacity:.65}"
    "</style>"
)


def run_html(path: str, summaries: Iterable[SessionSummary], groups: Iterable[Group]) -> str:
    """Return a run as a table of its first sessions, with the totals above it."""
    rows: list[Sequence[str]] = []
    sessions = scored = passed = 0
    for one in summaries:
        sessions += 1
        first = one.attempts[0]
        scored += first.outcome is not None
        passed += first.outcome is not None and first.outcome.passed
        if len(rows) < _ROWS:
            record = one.record
            rows.append((record.id, record.task, str(first.status), _score(first), str(one.turns)))
    sealed = [group.sealed for group in groups]
    head = (
        f"<b>run {escape(path)}</b>: {sessions} sessions, {passed} of {scored} scored ones passed, "
        f"{sum(sealed)} of {len(sealed)} groups sealed"
    )
    return _page(head, _table(("session", "task", "status", "score", "turns"), rows, sessions))


def tree_html(tree: SessionTree) -> str:
    """Return a session turn by turn, with the opening and how its attempts ended."""
    record = tree.record
    head = f"<b>session {escape(record.id)}</b> at task {escape(record.task)}, {_ends(tree)}"
    first = next((turn for turn in tree.turns if not turn.simulated), None)
    opening = "".join(_message(m) for m in first.context) if first is not None else ""
    return _page(head, _folded("opening", opening, is_open=False), *map(_turn, tree.turns))


def group_html(group: Group, trees: Iterable[SessionTree] = ()) -> str:
    """Return a group's members with their scores, and who left it."""
    known = {tree.record.id: tree for tree in trees}
    header: tuple[str, ...]
    rows: list[tuple[str, ...]] = []
    for member in group.members:
        tree = known.get(member.session)
        first = tree.attempts[0] if tree is not None else None
        rows.append(
            (
                member.session,
                str(member.sample),
                member.left or (str(first.status) if first else ""),
                _score(first) if first else "",
                str(len(tree.turns)) if tree is not None else "",
            )
        )
    state = "sealed" if group.sealed else "open"
    head = (
        f"<b>group {escape(group.id)}</b> of task {escape(group.task)}: {state}, "
        f"{len(group.counted)} of {group.planned} planned samples count"
    )
    header = ("session", "sample", "status", "score", "turns")
    if not known:  # a stored group knows who left it, not how its sessions ended
        header, rows = ("session", "sample", "left"), [row[:3] for row in rows]
    return _page(head, _table(header, rows, len(rows)))


def _page(head: str, *parts: str) -> str:
    return f'{_STYLE}<div class="trajgym"><div>{head}</div>{"".join(parts)}</div>'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    if not rows:
        return ""
    numbers = {"score", "turns", "sample"}
    kinds = [" class=n" if name in numbers else "" for name in header]

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    more = f'<div class="d">and {total - len(rows)} more</div>' if total > len(rows) else ""
    return f"<table><tr>{line('th', header)}</tr>{body}</table>{more}"


def _turn(turn: Turn) -> str:
    facts = [f"turn {turn.index}"]
    if turn.agent != "main":
        facts.append(turn.agent)
    if turn.edge != "continue":
        facts.append(f"{turn.edge} of {turn.parent}")
    if turn.reward is not None:
        facts.append(f"reward {turn.reward:+g}")
    facts.append(turn.policy)
    parts = [_message(turn.message), *map(_message, turn.observation)]
    return _folded(", ".join(filter(None, facts)), "".join(parts), is_open=True)


def _message(message: Message) -> str:
    text = text_of(message)
    if len(text) > _TEXT:
        text = f"{text[:_TEXT]}\n[... {len(text) - _TEXT} characters more ...]"
    calls = "".join(
        f"<pre>&#9654; {escape(call['function']['name'])} "
        f"{escape(call['function']['arguments'][:_TEXT])}</pre>"
        for call in tool_calls_of(message)
    )
    said = f"<pre>{escape(text)}</pre>" if text else ""
    return f'<div><span class="d">{escape(str(message["role"]))}</span>{said}{calls}</div>'


def _folded(title: str, body: str, *, is_open: bool) -> str:
    if not body:
        return ""
    state = " open" if is_open else ""
    return f"<details{state}><summary>{escape(title)}</summary>{body}</details>"


def _ends(tree: SessionTree) -> str:
    ends = [f"{attempt.status}{_scored(attempt)}" for attempt in tree.attempts]
    return escape("; ".join(ends))


def _scored(attempt: Attempt) -> str:
    return f" with score {_score(attempt)}" if attempt.outcome is not None else ""


def _score(attempt: Attempt) -> str:
    return "" if attempt.outcome is None else f"{attempt.outcome.score:g}"
