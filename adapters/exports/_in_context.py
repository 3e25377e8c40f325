"""Contexts of several whole trajectories, for supervised fine-tuning of in-context learning."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from trajgym.adapters.exports._contexts import Candidate, Composer
from trajgym.adapters.exports._conversation import base_chain, template_messages, tools_json
from trajgym.adapters.exports._files import JsonLines
from trajgym.adapters.exports._sft import refusal
from trajgym.trajectory import InvalidInput, blob_hashes, tool_calls_of
from trajgym.trajectory._internal import digest

if TYPE_CHECKING:
    from trajgym.adapters.exports._contexts import Context
    from trajgym.adapters.exports._stream import Export
    from trajgym.trajectory import Attempt, Message, SessionTree

__all__ = ["export_in_context"]

_PER_MESSAGE = 16
"""Tokens that a chat template may add to a message, where they are not counted by an engine."""


class _Place(NamedTuple):
    """A trajectory in the temporary file."""

    session: str
    attempt: int
    level: str
    offset: int


@dataclass(slots=True)
class _Spool:
    """The trajectories, on disk: a context is made once all of them are known."""

    file: IO[bytes]
    places: list[_Place] = field(default_factory=list)
    buckets: dict[str, dict[str, list[Candidate]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """Candidates by what they have to share (tools and system message), then by level."""

    def add(self, place: _Place, bucket: str, tokens: int, line: dict[str, Any]) -> None:
        self.buckets[bucket][place.level].append(Candidate(tokens, len(self.places)))
        self.places.append(place._replace(offset=self.file.tell()))
        self.file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def read(self, row: int) -> dict[str, Any]:
        self.file.seek(self.places[row].offset)
        found: dict[str, Any] = json.loads(self.file.readline())
        return found


def export_in_context(
    export: Export,
    *,
    burstiness: float = 0.5,
    length: int = 4,
    repeats: int = 2,
    tokens: int = 32768,
    by: str = "task",
    include: Literal["passed", "all"] = "passed",
    seed: int = 0,
) -> None:
    """Write ``in_context.jsonl``: conversations of several whole trajectories each.

    A context is bursty if at least two of its trajectories are of one level (arXiv 2312.03801).
    ``messages`` has the trajectories one after the other, the query last; a system message that
    they share stands first. No trajectory is used twice, and of trajectories with equal messages
    only one is used. ``in_context.json`` has the measured share of bursty contexts and the sizes;
    contexts are written while the chosen share can be kept, and the report lists what is left over.

    The tokens of a trajectory are those of the engine, or those that its endpoint reported; without
    either they are bounded by the bytes of its messages.

    Args:
        export: what to write.
        burstiness: share of bursty contexts, 0.0 to 1.0.
        length: most trajectories of a context, at least 2.
        repeats: most trajectories of the query's level in a bursty context, at least 2.
        tokens: most tokens of a context.
        by: ``task``, or the key of the tasks' data that is the level.
        include: ``passed`` takes the attempts that solved the task; ``all`` every scored attempt.
        seed: of the choices.

    Raises:
        InvalidInput: a setting is out of range, or values were given, which this export can't use.
    """
    _check(export, burstiness, length, repeats, tokens, include)
    with tempfile.TemporaryFile(dir=export.out) as file:
        spool = _Spool(file)
        counted: Counter[str] = Counter()
        seen: set[str] = set()
        for tree in export.sessions:
            for attempt in tree.attempts:
                try:
                    counted[_collect(export, spool, seen, tree, attempt, by, include, tokens)] += 1
                except InvalidInput as error:
                    export.report.drop(tree.record.id, attempt.index, str(error))
        facts: dict[str, Any] = {"burstiness": burstiness, "budget": tokens, "by": by}
        used: set[int] = set()
        bursty = largest = 0
        with JsonLines(export.file("in_context.jsonl")) as sink:
            for _, levels in sorted(spool.buckets.items()):
                for context in Composer(
                    levels,
                    burstiness=burstiness,
                    length=length,
                    repeats=repeats,
                    budget=tokens,
                    seed=seed,
                ):
                    line = _line(spool, context)
                    sink.write(line)
                    export.report.count(synthetic=line["synthetic"])
                    used.update(context.rows)
                    bursty += context.bursty
                    largest = max(largest, context.tokens)
        for row, place in enumerate(spool.places):
            if row not in used:
                export.report.drop(place.session, place.attempt, "left over: no context takes it")
        written = export.report.written
        facts |= {
            "contexts": written,
            "bursty": bursty,
            "measured_burstiness": bursty / written if written else None,
            "trajectories": len(used),
            "left_over": len(spool.places) - len(used),
            "largest": largest,
            "tokens_counted_by": dict(counted),
        }
    export.file("in_context.json").write_text(json.dumps(facts, indent=2) + "\n")


def _check(
    export: Export, burstiness: float, length: int, repeats: int, tokens: int, include: str
) -> None:
    if export.values:
        raise InvalidInput("export in-context takes no values: it selects attempts by outcome")
    if include not in {"passed", "all"}:
        raise InvalidInput(f"export in-context: include is {include!r}; use 'passed' or 'all'")
    if not 0 <= burstiness <= 1:
        raise InvalidInput(f"export in-context: burstiness is {burstiness}; it is from 0 to 1")
    for name, value, least in (
        ("length", length, 2),
        ("repeats", repeats, 2),
        ("tokens", tokens, 1),
    ):
        if value < least:
            raise InvalidInput(f"export in-context: {name} is {value}; it is at least {least}")


def _collect(
    export: Export,
    spool: _Spool,
    seen: set[str],
    tree: SessionTree,
    attempt: Attempt,
    by: str,
    include: str,
    budget: int,
) -> str:
    """Add an attempt's trajectory, and return how its tokens were counted.

    Raises:
        InvalidInput: it can't be used; the message is the reason.
    """
    if reason := refusal(attempt, include):
        raise InvalidInput(reason)
    if attempt.leaf is None:
        raise InvalidInput("it has no turn")
    leaf = tree.turns[attempt.leaf]
    chain = base_chain(tree, leaf)
    if any(turn.kept is not None for turn in chain):
        raise InvalidInput("its context was rewritten: no conversation has the whole trajectory")
    messages = template_messages(tree.conversation(leaf), f"turn {leaf.index}")
    if next(blob_hashes(messages), None) is not None:
        raise InvalidInput("it has images")
    same = digest(list(map(_Renamed(""), messages)))
    if same in seen:
        raise InvalidInput("its messages equal those of another session")
    level = _level(export, tree, by)
    tokens, counted = _tokens(tree, attempt, messages)
    if tokens > budget:
        raise InvalidInput(f"it takes {tokens} tokens ({counted}), more than a context has")
    seen.add(same)
    answered = len(messages) - len(leaf.observation)
    heads = next((i for i, m in enumerate(messages) if m["role"] not in {"system", "developer"}), 0)
    tools = tools_json(tree)
    assert attempt.outcome is not None
    line = {
        "head": messages[:heads],
        "messages": messages[heads:],
        "answered": answered - heads,
        "tools": tools,
        "synthetic": any(turn.synthetic for turn in chain),
        "about": {
            "session": tree.record.id,
            "attempt": attempt.index,
            "task": tree.record.task,
            "level": level,
            "turns": [turn.index for turn in chain],
            "score": attempt.outcome.score,
            "passed": attempt.outcome.passed,
            "tokens": tokens,
        },
    }
    bucket = digest([{"tools": tools, "head": messages[:heads]}])
    spool.add(_Place(tree.record.id, attempt.index, level, 0), bucket, tokens, line)
    return counted


def _level(export: Export, tree: SessionTree, by: str) -> str:
    if by == "task":
        return tree.record.task
    task = export.task(tree.record.task)
    if task is None or by not in task.data:
        raise InvalidInput(f"its task has no {by!r} in its data, which is the level")
    return str(task.data[by])


def _tokens(tree: SessionTree, attempt: Attempt, messages: list[Message]) -> tuple[int, str]:
    """Return the tokens of a trajectory, or an upper bound, and how they were counted.

    No byte-level vocabulary has tokens of less than one byte.
    """
    assert attempt.leaf is not None
    leaf = tree.turns[attempt.leaf]
    after = _bytes(messages[len(messages) - len(leaf.observation) :])
    if all(turn.exact for turn in base_chain(tree, leaf)):
        return int(tree.sequence(leaf).size) + after, "ids"
    if leaf.usage is not None and leaf.usage.prompt_tokens and leaf.usage.completion_tokens:
        return leaf.usage.prompt_tokens + leaf.usage.completion_tokens + after, "usage"
    return _bytes(messages) + len(tools_json(tree).encode()), "bytes"


def _bytes(messages: list[Message]) -> int:
    return sum(
        len(json.dumps(message, ensure_ascii=False).encode()) + _PER_MESSAGE for message in messages
    )


def _line(spool: _Spool, context: Context) -> dict[str, Any]:
    parts = [spool.read(row) for row in context.rows]
    messages: list[Message] = list(parts[0]["head"])
    trajectories = []
    for number, part in enumerate(parts):
        found = part["messages"]
        if number == len(parts) - 1:
            found = found[: part["answered"]]
        start = len(messages)
        messages += map(_Renamed(f"{number}-"), found)
        trajectories.append(part["about"] | {"messages": [start, len(messages)]})
    query = trajectories[-1]
    return {
        "messages": messages,
        "tools": parts[0]["tools"],
        "session": query["session"],
        "task": query["task"],
        "level": query["level"],
        "bursty": context.bursty,
        "tokens": context.tokens,
        "trajectories": trajectories,
        "synthetic": any(part["synthetic"] for part in parts),
    }


class _Renamed:
    """Renames the calls of one trajectory by their order.

    Args:
        prefix: of the new ids, so that those of several trajectories differ.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._count = 0
        self._ids: dict[str, str] = {}

    def __call__(self, message: Message) -> Message:
        made = dict(message)
        if calls := tool_calls_of(message):
            made["tool_calls"] = [call | {"id": self._new(call["id"])} for call in calls]
        if "tool_call_id" in message:
            made["tool_call_id"] = self._ids.get(message["tool_call_id"], message["tool_call_id"])
        return made

    def _new(self, name: str) -> str:
        self._ids[name] = f"{self._prefix}{self._count}"
        self._count += 1
        return self._ids[name]
