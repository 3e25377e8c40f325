"""What each trainer would refuse or not learn from in a run."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from trajgym.adapters._gate import Gate
from trajgym.adapters.exports._conversation import template_messages
from trajgym.adapters.exports._stream import Export, ExportReport, Membership, rows_of
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.trajectory import Run, SessionTree, TrainingRow

__all__ = ["Fitness", "Hindrance", "check_fitness"]


class Hindrance(NamedTuple):
    """Something that keeps sessions, rows or groups from being trained on."""

    code: str
    """``left-out``, ``too-long``, ``template``, ``uid``, ``empty-group``, ``small-group``,
    ``equal-scores``."""
    what: str
    number: int
    """Number of sessions (``left-out``, ``template``, ``uid``), rows or groups."""
    example: str
    """Id of the first one."""


@dataclass(slots=True)
class Fitness:
    """How a run fits a trainer.

    Args:
        trainer: ``trl``, ``verl`` or ``areal``.
        sessions: sessions of the run.
        usable: sessions that have training rows.
        rows: their rows.
        longest: ids of the longest row.
        hindrances: what was found, the most frequent first.
    """

    trainer: str
    sessions: int = 0
    usable: int = 0
    rows: int = 0
    longest: int = 0
    hindrances: list[Hindrance] = field(default_factory=list)


class _Counts:
    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[str | int]] = {}

    def add(self, code: str, what: str, example: str) -> None:
        one = self._found.setdefault((code, what), [0, example])
        one[0] = int(one[0]) + 1

    def all(self) -> list[Hindrance]:
        found = [
            Hindrance(code, what, int(count), str(example))
            for (code, what), (count, example) in self._found.items()
        ]
        return sorted(found, key=lambda one: -one.number)


def check_fitness(
    run: Run,
    trainer: str,
    *,
    max_tokens: int | None = None,
    max_prompt: int | None = None,
    max_response: int | None = None,
) -> Fitness:
    """Return what a trainer would refuse of a run, and what it would not learn from.

    Sessions pass the checks of the trainer's export: exact turns, log-probs that its loss expects,
    sealed groups, and images, which TRL's offline rows can't have. Beyond that, rows are compared
    with the trainer's limits, messages with what a chat template can render, and groups with what
    gives an advantage.

    Args:
        run: open.
        trainer: ``trl``, ``verl`` or ``areal``.
        max_tokens: ids per row that the trainer or its model takes; None does not check.
        max_prompt: ids before the first trained one (verl's ``max_prompt_length``).
        max_response: ids from there on (verl's ``max_response_length``).

    Raises:
        InvalidInput: there is no such trainer.
    """
    if trainer not in {"trl", "verl", "areal"}:
        raise InvalidInput(f"no checks for {trainer!r}; there are areal, trl, verl")
    limits = _Limits(max_tokens, max_prompt, max_response)
    found, counts = Fitness(trainer), _Counts()
    members: dict[str, list[float]] = defaultdict(list)

    def noted() -> Iterator[SessionTree]:
        for tree in run.sessions():
            found.sessions += 1
            if reason := _template(tree):
                counts.add("template", reason, tree.record.id)
            yield tree

    report = ExportReport(trainer)
    with tempfile.TemporaryDirectory() as folder:  # nothing is written: rows are only built
        export = Export(
            sessions=noted(),
            membership=Membership(run.groups()),
            out=Path(folder),
            values=(),
            report=report,
            blobs=run.blob,
        )
        images: Literal["none", "bytes"] = "none" if trainer == "trl" else "bytes"
        for tree, rows in rows_of(export, images=images, gate=Gate()):
            name, group = tree.record.id, tree.record.group
            found.usable += 1
            found.rows += len(rows)
            for row in rows:
                found.longest = max(found.longest, len(row))
                for what in limits.exceeded(row):
                    counts.add("too-long", what, name)
            if trainer == "verl" and "_" in (group or name):
                counts.add("uid", "verl splits keys at underscores: give it a group", name)
            if group is not None:
                scores = [one.outcome.score for one in tree.attempts if one.outcome is not None]
                members[group] += scores
    for dropped in report.dropped:
        counts.add("left-out", dropped.reason, dropped.session)
    for one in run.groups():
        if wrong := _group(members.get(one.id, []), sealed=one.sealed):
            counts.add(*wrong, one.id)
    found.hindrances = counts.all()
    return found


class _Limits(NamedTuple):
    tokens: int | None
    prompt: int | None
    response: int | None

    def exceeded(self, row: TrainingRow) -> Iterator[str]:
        """Yield which limits a row exceeds."""
        prompt = int(row.loss_mask.argmax())
        for name, size, limit in (
            ("row", len(row), self.tokens),
            ("prompt", prompt, self.prompt),
            ("response", len(row) - prompt, self.response),
        ):
            if limit is not None and size > limit:
                yield f"{name} of more than {limit:,} ids"


def _template(tree: SessionTree) -> str:
    """Return why a chat template can't render a session's messages, "" if it can."""
    for turn in tree.turns:
        try:
            template_messages([*turn.context, turn.message, *turn.observation], "messages")
        except InvalidInput:
            return "tool calls whose arguments are not a JSON object, which chat templates need"
    return ""


def _group(scores: list[float], *, sealed: bool) -> tuple[str, str] | None:
    """Return what is wrong with a group of these scores."""
    if not sealed:
        return "empty-group", "group is not sealed"
    if not scores:
        return "empty-group", "group has no usable member"
    if len(scores) == 1:
        return "small-group", "group has one usable score: its advantage is 0"
    if len(set(scores)) == 1:
        return "equal-scores", "group has equal scores: its advantages are 0"
    return None
