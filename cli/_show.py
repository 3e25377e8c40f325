"""`trajgym show`: the sessions of a run, or the turns of a session."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from trajgym.cli._terminal import print_json, print_table
from trajgym.trajectory import InvalidInput, Run, blob_hashes, text_of, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rich.console import RenderableType

    from trajgym.trajectory import (
        Attempt,
        ImageRef,
        Message,
        SessionSummary,
        SessionTree,
        Status,
        Turn,
    )

__all__ = ["find_session", "print_run", "show_run", "show_session", "status_text"]

_SHORT = 1200
"""Longest text (characters) that is shown whole without ``--full``."""

_STYLES = {
    "completed": "green",
    "truncated": "yellow",
    "failed": "red",
    "interrupted": "magenta",
    "cancelled": "magenta",
    "running": "cyan",
}


def status_text(attempt: Attempt) -> Text:
    """Return the status of an attempt as coloured text, ``solved`` if it passed."""
    return _status(attempt.status, attempt.outcome is not None and attempt.outcome.passed)


@lru_cache(maxsize=256)
def _status(status: Status, passed: bool) -> Text:
    if passed:
        return Text("solved", style="bold green")
    return Text(str(status), style=_STYLES[status.kind])


def show_run(path: Path, *, as_json: bool = False) -> None:
    """Print one line per attempt of a run."""
    with Run(path) as run:
        if as_json:
            print_json([_summary(summary) for summary in run.summaries()])
        else:
            print_run(run)


def _summary(summary: SessionSummary) -> dict[str, Any]:
    attempts = [asdict(attempt) | {"status": str(attempt.status)} for attempt in summary.attempts]
    return {**asdict(summary.record), "turns": summary.turns, "attempts": attempts}


def print_run(run: Run) -> None:
    """Print the table of a run."""

    def rows() -> Iterator[list[str | Text]]:
        for line in run.attempt_summaries():
            yield [
                f"{line.session} /{line.attempt}" if line.attempt else line.session,
                line.task,
                str(line.sample),
                _status(line.status, line.passed),
                "" if line.score is None else f"{line.score:g}",
                str(line.turns),
                line.cause.partition("\n")[0],
            ]

    print_table(
        ["session", "task", "sample", "status", "score", "turns", "cause"],
        rows(),
        right=("sample", "score", "turns"),
        whole=("session", "sample", "status", "score", "turns"),
    )


def show_session(path: Path, session: str, *, full: bool, as_json: bool = False) -> None:
    """Print the turns of a session, attempt by attempt.

    Raises:
        InvalidInput: no session, or several, start with ``session``.
    """
    console = Console()
    plain = not console.is_terminal
    with Run(path) as run:
        tree = run.session(find_session(run, session))
        if as_json:
            kept = {name: json.loads(body) for name, body in run.derived(tree.record.id).items()}
            print_json(tree.to_json() | {"derived": kept})
            return
        derived = _values(run.derived(tree.record.id))
        pictures = _pictures(run, tree)
    for line in _head(tree, plain=plain):
        console.print(line, soft_wrap=plain)
    shown: set[int] = set()
    for attempt in tree.attempts:
        if len(tree.attempts) > 1:
            console.rule(f"attempt {attempt.index}")
        users = [t for t in tree.turns if t.simulated and t.attempt == attempt.index]
        for turn in sorted([*tree.trajectory(attempt), *users], key=lambda turn: turn.index):
            if turn.index not in shown:
                shown.add(turn.index)
                console.print(_turn(turn, derived, full=full, plain=plain), soft_wrap=plain)
        console.print(_ending(attempt), soft_wrap=plain)
        if full and attempt.error:
            error = Text(attempt.error.rstrip())
            console.print(_framed(error, "error", plain=plain), soft_wrap=plain)
        elif attempt.error:
            console.print(Text("--full shows the traceback", style="dim"), soft_wrap=plain)
    for turn in tree.turns:
        if turn.index not in shown:
            console.print(_turn(turn, derived, full=full, plain=plain), soft_wrap=plain)
    console.print(_tokens(tree), highlight=False, soft_wrap=True)
    for text in pictures:
        console.print(text, highlight=False, soft_wrap=True)


def find_session(run: Run, start: str) -> str:
    """Return the id of the session with this id, or with this unique prefix of its id.

    Raises:
        InvalidInput: no session does, or several do.
    """
    ids = [line.session for line in run.attempt_summaries() if not line.attempt]
    if start in ids:
        return start
    found = [name for name in ids if name.startswith(start)]
    if len(found) != 1:
        what = "no session starts" if not found else f"{len(found)} sessions start"
        raise InvalidInput(f"{run.path}: {what} with {start!r}")
    return found[0]


def _head(tree: SessionTree, *, plain: bool) -> Iterator[RenderableType]:
    record = tree.record
    yield Text.assemble(("session ", "dim"), (record.id, "bold"), ("   task ", "dim"), record.task)
    labels = "  ".join(f"{key}={value}" for key, value in record.labels.items())
    yield Text(f"{record.env_id}  seed {record.seed}  {labels}", style="dim")
    first = next((turn for turn in tree.turns if not turn.simulated), None)
    if first is not None:
        for message in first.context:
            yield _framed(Text(text_of(message)), message["role"], plain=plain)


def _framed(
    content: RenderableType, title: str, *, plain: bool, style: str = "none"
) -> RenderableType:
    """Return content in a frame, or below its title if the output is plain, as in a pipe."""
    if plain:
        return Group(Text(f"[{title}]"), content)
    return Panel(content, title=Text(title), title_align="left", border_style=style)


def _turn(
    turn: Turn, derived: dict[str, dict[int, str]], *, full: bool, plain: bool
) -> RenderableType:
    parts: list[RenderableType] = []
    if turn.edge in {"rewrite", "spawn", "return"} and turn.parent is not None:
        parts += [_message(message, full=full, style="dim") for message in turn.context]
    reasoning = turn.message.get("reasoning_content")
    if reasoning:
        parts.append(Text(_shorten(reasoning, full=full), style="italic dim"))
    if text := text_of(turn.message):
        parts.append(Text(_shorten(text, full=full)))
    results = {result.call_id: result for result in turn.calls}
    answers = {m.get("tool_call_id"): m for m in turn.observation if m["role"] == "tool"}
    for call in tool_calls_of(turn.message):
        result = results.get(call["id"])
        status = "" if result is None or result.status == "ok" else f"  [{result.status}]"
        line = Text("▶ ", style="cyan")
        line.append(call["function"]["name"], style="bold cyan")
        line.append(f" {_shorten(call['function']['arguments'], full=full)}", style="cyan")
        line.append(status, style="red")
        if result is not None and result.reward is not None:
            line.append(f"  reward {result.reward:+g}", style="green")
        parts.append(line)
        if call["id"] in answers:
            parts.append(Text(_shorten(text_of(answers[call["id"]]), full=full), style="dim"))
    parts += [_message(m, full=full) for m in turn.observation if m["role"] != "tool"]
    return _framed(Group(*parts), _title(turn, derived), plain=plain, style="blue")


def _pictures(run: Run, tree: SessionTree) -> list[Text]:
    """Return a line for each image: where it was shown, its type, and its token ids.

    Ids are positions in the whole prompt of the first turn that saw the image.
    """
    lines: list[Text] = []
    for turn in tree.turns:
        base = tree.base(turn)
        new = turn.context if base is None else [*base.observation, *turn.context]
        held = {image.blob: image for image in tree.images(turn)} if turn.exact else {}
        lines += [
            _picture(run, blob, f"shown to turn {turn.index}", held) for blob in blob_hashes(new)
        ]
    for attempt in tree.attempts:
        last = None if attempt.leaf is None else tree.turns[attempt.leaf]
        for blob in blob_hashes(last.observation if last else ()):
            lines.append(_picture(run, blob, "after the last turn", {}))
    if lines:
        lines.append(
            Text(
                f"to write them: trajgym frames {run.path} {tree.record.id} --out DIR", style="dim"
            )
        )
    return lines


def _picture(run: Run, name: str, where: str, held: Mapping[str, ImageRef]) -> Text:
    text = Text.assemble(("▣ ", "cyan"), f"image {name[:12]}  {where}")
    try:
        data, media_type = run.blob(name)
        text.append(f"  {media_type}, {len(data)} bytes", style="dim")
    except InvalidInput:
        text.append("  its bytes are not in this run", style="red")
    if name in held:
        ref = held[name]
        text.append(f"  ids {ref.start} to {ref.end - 1} by {ref.processor}", style="dim")
    return text


def _message(message: Message, *, full: bool, style: str = "") -> Text:
    text = Text(f"{message['role']}: ", style="bold")
    return text.append(_shorten(text_of(message), full=full), style=style)


def _values(derived: dict[str, bytes]) -> dict[str, dict[int, str]]:
    """Return the values that `trajgym reward` stored for a session, as text by deriver and turn."""
    found: dict[str, dict[int, str]] = {}
    for name, body in derived.items():
        kept = json.loads(body)
        texts = {turn: f"{value:+.3g}" for turn, value in enumerate(kept["values"])}
        for turn, span, value in kept.get("spans", ()):
            texts[turn] += f", {span} {value:+.3g}"
        found[name] = texts
    return found


def _title(turn: Turn, derived: dict[str, dict[int, str]]) -> str:
    words = [f"turn {turn.index}"]
    if turn.edge != "continue":
        words.append(f"{turn.edge} of {turn.parent}")
    if turn.agent != "main":
        words.append(turn.agent)
    words.append(turn.policy or "unknown policy")
    if turn.tokens is not None:
        low = min((s.version_low for s in turn.tokens.segments if s.sampled), default=-1)
        high = max((s.version_high for s in turn.tokens.segments if s.sampled), default=-1)
        version = f"v{low}" if low == high else f"v{low}-{high}"
        words.append(f"{turn.tokens.response_ids.size} tokens {version}")
    if turn.synthetic:
        words.append("synthetic")
    if turn.reward is not None:
        words.append(f"reward {turn.reward:+g}")
    for name, texts in derived.items():
        if turn.index in texts:
            words.append(f"{name} {texts[turn.index]}")
    return " · ".join(words)


def _ending(attempt: Attempt) -> Text:
    line = Text.assemble(("→ ", "bold"), status_text(attempt))
    if attempt.outcome is not None:
        line.append(f"  score {attempt.outcome.score:g}")
        details = "  ".join(
            f"{k}={_shorten(str(v), full=False, limit=80)}"
            for k, v in attempt.outcome.details.items()
        )
        line.append(f"  {details}", style="dim")
    if attempt.cause:
        line.append(f"  {attempt.cause}", style="dim")
    return line


def _tokens(tree: SessionTree) -> Text:
    from trajgym.rollout.evaluation import Spent  # a list of sessions needs no rollout

    spent = Spent()
    spent.add_session(tree, None)
    return Text(
        f"{len(tree.turns)} turns, {spent.prompt_tokens:,} prompt and "
        f"{spent.completion_tokens:,} completion tokens",
        style="dim",
    )


def _shorten(text: str, *, full: bool, limit: int = _SHORT) -> str:
    if full or len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit} characters …\n{text[-half:]}"
