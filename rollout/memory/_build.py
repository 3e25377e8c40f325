"""Building a memory from a recorded run."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, get_args

from trajgym.rollout.memory._bank import MemoryBank
from trajgym.rollout.memory._lessons import LESSON
from trajgym.rollout.memory._records import (
    Case,
    Demonstration,
    Evidence,
    Kind,
    Lesson,
    Subtask,
    ToolNote,
    record_id,
)
from trajgym.rollout.memory._structure import (
    action_of,
    call_error,
    failure_of,
    failure_text,
    main_turns,
    result_of,
    short,
    steps_in,
    steps_of,
    steps_text,
    task_text,
    without_memory,
)
from trajgym.trajectory import InvalidInput, attempt_turns, text_of, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from trajgym.rollout.memory._records import MemoryRecord
    from trajgym.trajectory import Attempt, Run, SessionTree

__all__ = ["build_memory", "cases_of", "learn", "subtasks_of", "tool_notes"]

_STATE = 1000
_EXAMPLE = 300
_QUERIES = 20
"""Most tasks whose text a note on a tool is found by."""


def build_memory(
    run: Run,
    *,
    kinds: Collection[Kind] = ("demonstration", "lesson"),
    per_task: int = 1,
    merge: float | None = 0.8,
) -> MemoryBank:
    """Return a memory of a run's scored attempts, reading one session at a time.

    Attempts that solved their task give demonstrations; the shortest ones of each task are kept.
    The others give lessons: the text that a :class:`LessonWriter` wrote, or else a structural
    summary of what failed where. Attempts that failed outside the agent's control give nothing.

    Args:
        run: the recorded run.
        kinds: kinds of records to make.
        per_task: most demonstrations of one task.
        merge: least similarity of records that are merged; None merges none.

    Raises:
        InvalidInput: a kind is unknown, or ``per_task`` is less than 1.
    """
    if unknown := sorted(set(kinds) - set(get_args(Kind))):
        raise InvalidInput(f"no records of kind {unknown[0]!r}; there are {get_args(Kind)}")
    if per_task < 1:
        raise InvalidInput(f"per_task is {per_task}; it must be at least 1")
    bank = MemoryBank()
    shortest: dict[str, list[Demonstration]] = defaultdict(list)
    tools = _Tools()
    for tree in run.sessions():
        task = run.task(tree.record.task)
        query = task_text(tree, None if task is None else task.prompt)
        for record in learn(tree, query):
            if isinstance(record, Demonstration):
                kept = shortest[tree.record.task]
                kept.append(record)
                kept.sort(key=lambda one: (len(one.steps), one.id))
                del kept[per_task:]
            elif "lesson" in kinds:
                _add(bank, record)
        if "case" in kinds:
            for case in cases_of(tree, query):
                _add(bank, case)
        if "subtask" in kinds:
            for subtask in subtasks_of(tree):
                _add(bank, subtask)
        if "tool" in kinds:
            tools.add(tree, query)
    if "demonstration" in kinds:
        for found in shortest.values():
            for record in found:
                _add(bank, record)
    for note in tools.notes():
        _add(bank, note)
    if merge is not None:
        bank.merge(merge)
    return bank


def learn(tree: SessionTree, query: str) -> Iterator[Demonstration | Lesson]:
    """Yield a demonstration or a lesson for each scored attempt of a session.

    Args:
        tree: the session.
        query: text of its task.
    """
    for attempt in _scored(tree):
        assert attempt.outcome is not None
        yield (
            _demonstration(tree, attempt, query)
            if attempt.outcome.passed
            else _lesson(tree, attempt, query)
        )


def cases_of(tree: SessionTree, query: str) -> Iterator[Case]:
    """Yield a case for each turn of a session's scored attempts.

    Args:
        tree: the session.
        query: text of its task; a case is found by it and by its state.
    """
    for attempt in _scored(tree):
        outcome = attempt.outcome
        assert outcome is not None
        for turn in main_turns(tree, attempt):
            context = tree.context(turn)
            seen = short(text_of(context[-1]), _STATE) if len(turn.context) < len(context) else ""
            action, result = action_of(turn), result_of(turn)
            verdict = "solved the task" if outcome.passed else "did not solve the task"
            lines = [f"Seen: {seen}"] if seen else []
            lines += [f"Done: {action}"] + ([f"Result: {result}"] if result else [])
            lines.append(f"The attempt {verdict} (score {outcome.score:g}).")
            yield Case(
                id=record_id("case", query, seen, action, result, outcome.score, outcome.passed),
                tasks=(tree.record.task,),
                query=f"{query}\n{seen}" if seen else query,
                text="\n".join(lines),
                evidence=(_evidence(tree, attempt, turn.index),),
                state=seen,
                action=action,
                result=result,
                score=outcome.score,
                positive=outcome.passed,
            )


def subtasks_of(tree: SessionTree) -> Iterator[Subtask]:
    """Yield what each sub-agent of a session's scored attempts was asked to do, and did."""
    for attempt in _scored(tree):
        assert attempt.outcome is not None
        turns = [tree.turns[index] for index in attempt_turns(tree, attempt)]
        for first in turns:
            asked = [text_of(one) for one in first.context if one["role"] == "user"]
            if first.edge != "spawn" or first.simulated or not asked:
                continue
            steps = steps_in([turn for turn in turns if turn.agent == first.agent])
            passed = attempt.outcome.passed
            verdict = "solved the task" if passed else "did not solve the task"
            text = f"{steps_text(steps)}\nThe attempt that this was part of {verdict}."
            yield Subtask(
                id=record_id("subtask", asked[0], text),
                tasks=(tree.record.task,),
                query=without_memory(asked[0]),
                text=text,
                evidence=(_evidence(tree, attempt, *(step.turn for step in steps)),),
                agent=first.agent,
                steps=steps,
                positive=passed,
            )


def tool_notes(sessions: Iterable[tuple[SessionTree, str]]) -> list[ToolNote]:
    """Return a note on each tool that was called.

    Args:
        sessions: sessions, and the text of the task of each.
    """
    tools = _Tools()
    for tree, query in sessions:
        tools.add(tree, query)
    return tools.notes()


class _Tools:
    """Counts the calls of tools."""

    def __init__(self) -> None:
        self._calls: dict[str, Counter[str]] = defaultdict(Counter)
        self._errors: dict[str, Counter[str]] = defaultdict(Counter)
        self._example: dict[str, str] = {}
        self._queries: dict[str, list[str]] = defaultdict(list)
        self._tasks: dict[str, dict[str, None]] = defaultdict(dict)
        self._evidence: dict[str, dict[Evidence, None]] = defaultdict(dict)

    def add(self, tree: SessionTree, query: str) -> None:
        for attempt in _scored(tree):
            turns: dict[str, list[int]] = defaultdict(list)
            for turn in main_turns(tree, attempt):
                given = {c["id"]: c["function"]["arguments"] for c in tool_calls_of(turn.message)}
                for call in turn.calls:
                    if call.status == "not_executed":
                        continue
                    turns[call.name].append(turn.index)
                    self._calls[call.name][call.status] += 1
                    if call.status == "ok":
                        text = short(given.get(call.call_id, ""), _EXAMPLE)
                        self._example.setdefault(call.name, text)
                    else:
                        self._errors[call.name][call_error(turn, call) or call.status] += 1
            for name, used in turns.items():
                self._tasks[name][tree.record.task] = None
                self._evidence[name][_evidence(tree, attempt, *used)] = None
                if query not in self._queries[name] and len(self._queries[name]) < _QUERIES:
                    self._queries[name].append(query)

    def notes(self) -> list[ToolNote]:
        found = []
        for name in sorted(self._calls):
            note = ToolNote(
                id=record_id("tool", name),
                tasks=tuple(self._tasks[name]),
                query="\n".join([name, *self._queries[name]]),
                text="",
                evidence=tuple(self._evidence[name]),
                tool=name,
                calls=dict(self._calls[name]),
                errors=dict(self._errors[name]),
                example=self._example.get(name, ""),
            )
            found.append(note.model_copy(update={"text": note.written}))
        return found


def _scored(tree: SessionTree) -> list[Attempt]:
    return [one for one in tree.attempts if one.outcome is not None and one.leaf is not None]


def _evidence(tree: SessionTree, attempt: Attempt, *turns: int) -> Evidence:
    return Evidence(session=tree.record.id, attempt=attempt.index, turns=tuple(sorted(set(turns))))


def _demonstration(tree: SessionTree, attempt: Attempt, query: str) -> Demonstration:
    steps = steps_of(tree, attempt)
    text = steps_text(steps)
    return Demonstration(
        id=record_id("demonstration", query, text),
        tasks=(tree.record.task,),
        query=query,
        text=text,
        evidence=(_evidence(tree, attempt, *(step.turn for step in steps)),),
        steps=steps,
    )


def _lesson(tree: SessionTree, attempt: Attempt, query: str) -> Lesson:
    failure = failure_of(tree, attempt)
    assert attempt.leaf is not None
    signals = tree.turns[attempt.leaf].signals
    written = signals.get(LESSON)
    text = failure_text(failure) if written is None else str(written)
    call = failure.first_failed_call
    shown = [] if call is None else [call.turn]
    for repeat in failure.repeats:
        shown += repeat.turns
    return Lesson(
        id=record_id("lesson", query, text),
        tasks=(tree.record.task,),
        query=query,
        text=text,
        source="structural" if written is None else str(signals.get("memory_writer", "model")),
        evidence=(_evidence(tree, attempt, *(shown or [attempt.leaf])),),
        failure=failure,
    )


def _add(bank: MemoryBank, record: MemoryRecord) -> None:
    """Insert a record; one with equal contents only gets the new evidence."""
    if record.id not in bank:
        bank.insert(record)
        return
    known = bank[record.id]
    tasks = dict.fromkeys([*known.tasks, *record.tasks])
    evidence = dict.fromkeys([*known.evidence, *record.evidence])
    bank.update(known.model_copy(update={"tasks": tuple(tasks), "evidence": tuple(evidence)}))
