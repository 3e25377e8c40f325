"""Curators: they decide what a memory keeps, and later sessions say what that was worth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from trajgym.rollout.memory._build import learn
from trajgym.rollout.memory._effect import memory_use
from trajgym.rollout.memory._similarity import SimilarityIndex
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from trajgym.rollout.memory._bank import MemoryBank
    from trajgym.rollout.memory._records import MemoryRecord
    from trajgym.trajectory import SessionTree, Task

__all__ = [
    "Curator",
    "Decided",
    "Decision",
    "DecisionReward",
    "Operation",
    "StructuralCurator",
    "curate",
    "decision_rewards",
    "task_streams",
]

Operation: TypeAlias = Literal["insert", "update", "delete"]


class Decision(NamedTuple):
    """A change of a memory."""

    operation: Operation
    record: MemoryRecord
    """The record to insert, its new form, or the record to delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision and what became of it.

    Args:
        decision: what was decided.
        session: the session after which it was.
        at: Unix time (s) at which that session had ended.
        refused: why it could not be carried out; empty if it was.
        shown: whether it changes what agents are shown. An update that only adds evidence does not.
    """

    decision: Decision
    session: str
    at: float
    refused: str = ""
    shown: bool = True


class DecisionReward(NamedTuple):
    """What later sessions say about a decision."""

    decided: Decided
    value: float | None
    """Difference of two solved shares; None if there is no session for one of them."""
    later: int
    """Number of scored attempts that the decision had an effect on."""
    baseline: int
    """Number of scored attempts that they were compared with."""


class Curator(ABC):
    """Decides after each session what a memory should keep."""

    @abstractmethod
    async def decide(self, bank: MemoryBank, tree: SessionTree, query: str) -> Sequence[Decision]:
        """Return the changes, in the order in which they are made.

        Args:
            bank: the memory; not to be changed here.
            tree: a session that has ended.
            query: text of its task.
        """


class StructuralCurator(Curator):
    """Curates by structure alone, as a baseline for one that is a model.

    What a session shows is inserted if the memory has nothing similar of its kind. Otherwise it is
    evidence of the most similar record, which is updated. A record that was shown in several
    sessions, none of which solved its task, is deleted.

    Args:
        similar: similarity of tasks from which a record is updated.
        patience: number of unsolved sessions after which a record is deleted.

    Raises:
        InvalidInput: ``patience`` is less than 1.
    """

    def __init__(self, *, similar: float = 0.95, patience: int = 3) -> None:
        if patience < 1:
            raise InvalidInput(f"patience is {patience}; it must be at least 1")
        self._similar = similar
        self._patience = patience
        self._unsolved: dict[str, int] = defaultdict(int)
        self._solved: set[str] = set()

    async def decide(self, bank: MemoryBank, tree: SessionTree, query: str) -> list[Decision]:
        """See :meth:`Curator.decide`."""
        found = self._worn_out(bank, tree)
        gone = {decision.record.id for decision in found}
        for record in learn(tree, query):
            near = bank.search(query, 1, kinds=[record.kind], least=self._similar)
            if record.id in gone or (near and near[0].record.id in gone):
                continue
            known = bank.get(record.id) or (near[0].record if near else None)
            if known is None:
                found.append(Decision("insert", record))
            else:
                found.append(Decision("update", _with_evidence(known, record)))
        return found

    def _worn_out(self, bank: MemoryBank, tree: SessionTree) -> list[Decision]:
        use = memory_use(tree)
        outcomes = [attempt.outcome for attempt in tree.attempts if attempt.outcome is not None]
        if use is None or not outcomes:
            return []
        if any(outcome.passed for outcome in outcomes):
            self._solved.update(use.records)
            return []
        found = []
        for name in use.records:
            self._unsolved[name] += 1
            spent = self._unsolved[name] >= self._patience and name not in self._solved
            if spent and name in bank:
                found.append(Decision("delete", bank[name]))
        return found


def _with_evidence(known: MemoryRecord, record: MemoryRecord) -> MemoryRecord:
    return known.model_copy(
        update={
            "tasks": tuple(dict.fromkeys([*known.tasks, *record.tasks])),
            "evidence": tuple(dict.fromkeys([*known.evidence, *record.evidence])),
        }
    )


def task_streams(tasks: Iterable[Task], *, least: float = 0.3) -> list[list[Task]]:
    """Return streams of related tasks, in which what is learnt from one can help with the next.

    A task joins the stream whose first task is most similar to it, or starts a new one. Tasks keep
    their order (SkillOS's grouped task streams, arXiv 2605.06614).

    Args:
        tasks: the tasks, in the order in which they are attempted.
        least: least similarity of two tasks' prompts; a task without one is known by its id.
    """
    given = list(tasks)
    texts = [task.prompt or task.id for task in given]
    index = SimilarityIndex(texts)
    streams: dict[int, list[Task]] = {}
    for row, task in enumerate(given):
        near = index.search(texts[row], 1, least=least, wanted=streams.__contains__)
        streams.setdefault(near[0].row if near else row, []).append(task)
    return list(streams.values())


async def curate(
    bank: MemoryBank, sessions: Iterable[tuple[SessionTree, str]], curator: Curator
) -> list[Decided]:
    """Let a curator decide after each session, and change the memory accordingly.

    A decision that can't be carried out (the record is there already, or is not) is returned with
    the reason, and changes nothing.

    Args:
        bank: the memory, which is changed.
        sessions: sessions that have ended, in order, and the text of the task of each.
        curator: decides.
    """
    found = []
    for tree, query in sessions:
        ended = max((one.ended_at or 0.0 for one in tree.attempts), default=0.0)
        for decision in await curator.decide(bank, tree, query):
            name, refused = decision.record.id, ""
            before = bank.get(name)
            try:
                _apply(bank, decision)
            except InvalidInput as error:
                refused = str(error)
            found.append(
                Decided(
                    decision=decision,
                    session=tree.record.id,
                    at=ended,
                    refused=refused,
                    shown=not refused and _differs(before, decision),
                )
            )
    return found


def _differs(before: MemoryRecord | None, decision: Decision) -> bool:
    if before is None or decision.operation == "delete":
        return True
    after = decision.record
    parts = [(one.text, one.query, one.kind, bool(one.retired)) for one in (before, after)]
    return parts[0] != parts[1]


def _apply(bank: MemoryBank, decision: Decision) -> None:
    if decision.operation == "insert":
        bank.insert(decision.record)
    elif decision.operation == "update":
        bank.update(decision.record)
    elif decision.operation == "delete":
        bank.delete(decision.record.id)
    else:
        raise InvalidInput(
            f"no operation {decision.operation!r}; there are insert, update and delete"
        )


class _Attempts(NamedTuple):
    """The scored attempts of a session."""

    session: str
    opened: float
    shown: frozenset[str]
    passed: list[bool]


def decision_rewards(
    decided: Sequence[Decided], sessions: Iterable[SessionTree]
) -> list[DecisionReward]:
    """Return what sessions say about the decisions on the memory that they were shown.

    The value is a difference of solved shares, of sessions that opened after the decision and
    before the next one that changed the same record, and of a baseline:

    - ``insert``: those that were shown the record, minus all that were not, other than those it
      was learnt from;
    - ``update``: those that were shown the record, minus those that had been shown it before;
    - ``delete``: those that were not shown it, minus those that had been shown the record before.

    No model judges anything. A decision that no later session shows the effect of has the value
    None, which is not 0; so has one that was refused, or did not change what agents are shown.

    Args:
        decided: the decisions, in order, as :func:`curate` returned them.
        sessions: the sessions of one stream of tasks.
    """
    attempts = []
    for tree in sessions:
        use = memory_use(tree)
        passed = [one.outcome.passed for one in tree.attempts if one.outcome is not None]
        shown = frozenset(() if use is None else use.records)
        attempts.append(_Attempts(tree.record.id, tree.record.created_at, shown, passed))
    learnt: dict[str, set[str]] = defaultdict(set)
    for one in decided:
        record = one.decision.record
        learnt[record.id].update(evidence.session for evidence in record.evidence)
    return [
        _reward(one, decided[place + 1 :], attempts, learnt[one.decision.record.id])
        for place, one in enumerate(decided)
    ]


def _reward(
    one: Decided, rest: Sequence[Decided], attempts: Sequence[_Attempts], learnt: Collection[str]
) -> DecisionReward:
    if not one.shown:
        return DecisionReward(one, None, 0, 0)
    name, operation = one.decision.record.id, one.decision.operation
    changes = (later.at for later in rest if later.decision.record.id == name and later.shown)
    until = next(changes, inf)
    used = [found for found in attempts if name in found.shown]
    unused = [found for found in attempts if name not in found.shown]
    if operation == "insert":
        # A record is inserted for how its own sessions ended, so they are no fair baseline.
        baseline = _passed(found for found in unused if found.session not in learnt)
    else:
        baseline = _passed(found for found in used if found.opened < one.at)
    concerned = unused if operation == "delete" else used
    after = _passed(found for found in concerned if one.at <= found.opened < until)
    value = fmean(after) - fmean(baseline) if after and baseline else None
    return DecisionReward(one, value, len(after), len(baseline))


def _passed(attempts: Iterable[_Attempts]) -> list[bool]:
    return [passed for attempt in attempts for passed in attempt.passed]
