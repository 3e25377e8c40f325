"""`trajgym memory`: what agents learn from runs outside a model's weights."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trajgym.cli._options import AsJson, RunPath
from trajgym.cli._terminal import print_json, print_table, say

if TYPE_CHECKING:
    from trajgym.rollout.evaluation import Difference
    from trajgym.rollout.memory import Effect, Kind, MemoryRecord

__all__ = ["memory_app"]

memory_app = typer.Typer(
    no_args_is_help=True,
    help="Learn demonstrations and lessons from runs, and measure their effect.",
)

MemoryPath = Annotated[Path, typer.Argument(metavar="FILE", help="File of a memory.")]


class RecordKind(StrEnum):
    """Kinds of records."""

    demonstration = "demonstration"
    lesson = "lesson"
    case = "case"
    subtask = "subtask"
    tool = "tool"


@memory_app.command()
def build(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="File of the memory; an existing one is replaced.")],
    kind: Annotated[
        list[RecordKind] | None,
        typer.Option(help="Kind of records; repeated. Demonstrations and lessons by default."),
    ] = None,
    per_task: Annotated[int, typer.Option(help="Most demonstrations of one task.")] = 1,
    merge: Annotated[
        float, typer.Option(help="Least similarity of records that are merged; over 1 merges none.")
    ] = 0.8,
    as_json: AsJson = False,
) -> None:
    """Make a memory of a run; lessons that `annotate --with lessons` wrote are used."""
    from trajgym.rollout.memory import build_memory
    from trajgym.trajectory import Run

    chosen = kind or [RecordKind.demonstration, RecordKind.lesson]
    kinds: list[Kind] = [one.value for one in chosen]
    with Run(run) as source:
        bank = build_memory(
            source, kinds=kinds, per_task=per_task, merge=None if merge > 1 else merge
        )
    bank.save(out)
    counts = {name: sum(record.kind == name for record in bank) for name in kinds}
    structural = sum(record.source == "structural" for record in bank)
    if as_json:
        print_json({"out": str(out), "records": counts, "structural": structural})
        return
    made = ", ".join(f"{count} of kind {name}" for name, count in counts.items())
    say(f"{out}: {len(bank)} records ({made}); {structural} written without a model")


@memory_app.command()
def show(
    memory: MemoryPath,
    record: Annotated[
        str | None, typer.Argument(metavar="RECORD", help="Id of a record to print whole.")
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text of a task: what is found for it.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Most records that are found.")] = 3,
    as_json: AsJson = False,
) -> None:
    """List the records of a memory, those found for a task, or one record."""
    from trajgym.rollout.memory import MemoryBank

    bank = MemoryBank.load(memory)
    if record is not None:
        print_json(bank[record].model_dump(mode="json"))
        return
    found = list(bank) if query is None else [match.record for match in bank.search(query, k)]
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    rows = [_row(one) for one in found]
    print_table(
        ["record", "source", "evidence", "effect", "state", "task"],
        rows,
        right=["evidence"],
        whole=["record"],
    )


@memory_app.command()
def effect(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Runs of the same tasks, with and without memory."),
    ],
    memory: Annotated[
        Path | None,
        typer.Option(help="Record the effects in this memory, and retire records that do harm."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare sessions with and without memory at the same tasks, for each record."""
    from contextlib import ExitStack

    from trajgym.rollout.memory import MemoryBank, measure_effect
    from trajgym.trajectory import Run

    with ExitStack() as stack:
        found = measure_effect([stack.enter_context(Run(path)) for path in runs])
    retired: list[str] = []
    if memory is not None:
        bank = MemoryBank.load(memory)
        retired = bank.apply(found)
        bank.save(memory)
    if as_json:
        print_json(found.to_json() | {"retired": retired})
        return
    say(f"{found.treated} scored attempts with memory, {found.control} without")
    if found.overall is None:
        say("no task was attempted both with and without memory", style="yellow")
        return
    rows = [["all", str(found.overall.tasks), _effect(found.overall)]]
    rows += [[name, str(one.tasks), _effect(one)] for name, one in found.records.items()]
    print_table(["record", "tasks", "effect (95%)"], rows, right=["tasks"], whole=["record"])
    for name in retired:
        say(f"retired {name}")


def _row(record: MemoryRecord) -> list[str]:
    return [
        record.id,
        record.source,
        str(len(record.evidence)),
        "" if record.effect is None else _effect(record.effect),
        f"retired: {record.retired}" if record.retired else "active",
        record.query,
    ]


def _effect(found: Difference | Effect) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:+.2f}"
    return f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
