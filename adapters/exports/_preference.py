"""Pairs of answers for preference training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.adapters.exports._conversation import same_messages, template_messages, tools_json
from trajgym.adapters.exports._files import JsonLines
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.adapters.exports._stream import Export
    from trajgym.trajectory import Attempt, Message, SessionTree, Turn

__all__ = ["export_preference"]


class _Candidate(NamedTuple):
    tree: SessionTree
    attempt: Attempt
    score: float

    @property
    def key(self) -> tuple[int, str, int]:
        """Sort key for equal scores: sample, id, attempt."""
        record = self.tree.record
        return record.sample, record.id, self.attempt.index


class _Extremes:
    """The best and the worst attempt of a group so far."""

    def __init__(self) -> None:
        self.best: _Candidate | None = None
        self.worst: _Candidate | None = None
        self.seen = 0

    def add(self, found: _Candidate) -> None:
        best, worst = self.best, self.worst
        if best is None or (-found.score, found.key) < (-best.score, best.key):
            self.best = found
        if worst is None or (found.score, found.key) < (worst.score, worst.key):
            self.worst = found


def export_preference(export: Export, *, margin: float = 0.0) -> None:
    """Write ``preference.jsonl``: for each group, a pair from its best and its worst attempt.

    ``prompt`` is the history that both attempts share; ``chosen`` and ``rejected`` hold the first
    assistant message in which they differ. So both messages answer the same prompt, and no
    observation is trained. Ids of tool calls are not compared. Groups without such a pair are
    listed in the report.

    A group is written and freed when its last member was read, so memory use stays constant if
    sessions come in the order of their groups.

    Args:
        export: what to write.
        margin: least difference between the scores; a difference of 0 never makes a pair.

    Raises:
        InvalidInput: ``margin`` is below 0, or values were given, which this export can't use.
    """
    if not margin >= 0:
        raise InvalidInput(f"export preference: margin is {margin}; it must be 0 or more")
    if export.values:
        raise InvalidInput("export preference takes no values: it compares outcomes")
    pending: dict[str, _Extremes] = {}
    with JsonLines(export.file("preference.jsonl")) as sink:
        for tree in export.sessions:
            group = tree.record.group
            if group is None:
                export.report.drop(tree.record.id, None, "belongs to no group")
                continue
            extremes = pending.setdefault(group, _Extremes())
            _collect(export, tree, extremes)
            extremes.seen += 1
            if extremes.seen == export.membership.sizes.get(group):
                _finish(export, sink, group, pending.pop(group), margin)
        for group, extremes in pending.items():
            _finish(export, sink, group, extremes, margin)


def _collect(export: Export, tree: SessionTree, extremes: _Extremes) -> None:
    if reason := export.membership.refusal(tree):
        export.report.drop(tree.record.id, None, reason)
        return
    for attempt in tree.attempts:
        if attempt.outcome is None or attempt.leaf is None:
            reason = f"not scored ({attempt.status})" if attempt.leaf is not None else "no turns"
            export.report.drop(tree.record.id, attempt.index, reason)
        else:
            extremes.add(_Candidate(tree, attempt, attempt.outcome.score))


def _finish(
    export: Export, sink: JsonLines, group: str, extremes: _Extremes, margin: float
) -> None:
    best, worst = extremes.best, extremes.worst
    if best is None or worst is None:
        return
    try:
        line = _pair(best, worst, group, margin)
        sink.write(line)
    except InvalidInput as error:
        export.report.drop(best.tree.record.id, best.attempt.index, str(error))
        return
    export.report.count(synthetic=line["synthetic"])


def _pair(best: _Candidate, worst: _Candidate, group: str, margin: float) -> dict[str, Any]:
    gap = best.score - worst.score
    if gap <= 0:
        raise InvalidInput("all scored attempts of its group have the same score")
    if gap < margin:
        raise InvalidInput(f"best and worst attempt of its group differ by less than {margin:g}")
    prompt, chosen, rejected = _first_difference(best, worst)
    where = f"{best.tree.record.id} against {worst.tree.record.id}"
    return {
        "prompt": template_messages(prompt, where),
        "chosen": template_messages([chosen.message], where),
        "rejected": template_messages([rejected.message], where),
        "tools": tools_json(best.tree),
        "chosen_score": best.score,
        "rejected_score": worst.score,
        "group": group,
        "task": best.tree.record.task,
        "session": best.tree.record.id,
        "rejected_session": worst.tree.record.id,
        "turn": chosen.index,
        "rejected_turn": rejected.index,
        "synthetic": chosen.synthetic or rejected.synthetic,
    }


def _first_difference(best: _Candidate, worst: _Candidate) -> tuple[list[Message], Turn, Turn]:
    """Return the shared prompt and the turns that first answered it differently.

    Raises:
        InvalidInput: there is no such turn.
    """
    paths = [
        [turn for turn in c.tree.trajectory(c.attempt) if turn.agent == "main"]
        for c in (best, worst)
    ]
    for chosen, rejected in zip(*paths, strict=False):
        prompt = best.tree.context(chosen)
        if not same_messages(prompt, worst.tree.context(rejected)):
            raise InvalidInput(
                f"the prompts of turns {chosen.index} and {rejected.index} differ although all "
                "answers before them are equal",
            )
        if not same_messages([chosen.message], [rejected.message]):
            return prompt, chosen, rejected
    raise InvalidInput(
        "best and worst attempt have the same answers up to the end of the shorter one"
    )
