"""`trajgym search`: indexes of passages, and a retrieval server."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["search_app"]

search_app = typer.Typer(
    help="Build indexes of passages, ask them, and serve them to trainers.", no_args_is_help=True
)

IndexPath = Annotated[str, typer.Argument(metavar="INDEX", help="Index directory, or `builtin`.")]


class Rank(StrEnum):
    """Kinds of ranking, for the command line."""

    sqlite = "sqlite"
    bm25 = "bm25"
    dense = "dense"
    hybrid = "hybrid"


class Extra(StrEnum):
    """What an index can hold besides SQLite's words."""

    bm25 = "bm25"
    dense = "dense"


RankOption = Annotated[Rank, typer.Option(help="How passages are ranked.")]


@search_app.command()
def index(
    out: Annotated[Path, typer.Option(help="Index directory; an unfinished one is resumed.")],
    sources: Annotated[
        Optional[list[Path]],  # noqa: UP045 - typer reads the annotation at run time
        typer.Argument(
            metavar="SOURCE...",
            help="jsonl, json or parquet files (or folders): passages, or questions with context. "
            "Without any, an index that is there is only checked or extended.",
        ),
    ] = None,
    more: Annotated[
        Optional[list[Extra]],  # noqa: UP045
        typer.Option("--with", help="Also build for bm25 or dense ranking; may be repeated."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare passages and hash.")] = False,
) -> None:
    """Build an index; memory does not grow with the corpus. The same command resumes."""
    from trajgym.envs.search import build_index, check_index, read_passages

    console = Console()
    if sources:
        with _Count(console, "passages") as count:
            report = build_index(read_passages(sources), out, on_progress=count)
        repeated = f", {report.repeated} repeated ones left out" if report.repeated else ""
        done = f"{report.added} passages added" if report.added else "nothing was left to do"
        _say(console, f"{report.passages} passages in {out} ({done}{repeated}).")
    for extra in more or []:
        with _Count(console, extra.value) as count:
            built = _build_extra(extra, out, count)
        _say(console, f"{extra.value}: {'built' if built else 'nothing was left to do'}.")
    if check or not (sources or more):
        report = check_index(out)
        _say(console, f"{report.passages} passages, sound. Hash {report.hash}.")


@search_app.command()
def serve(
    index: IndexPath,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    topk: Annotated[int, typer.Option(help="Passages where a request does not say.")] = 3,
    rank: RankOption = Rank.sqlite,
) -> None:
    """Serve an index: POST /retrieve (Search-R1), POST /access (ASearcher), GET /health."""
    from trajgym.envs.search import open_engine, serve

    engine = open_engine({"kind": "index", "path": index, "ranking": rank.value})
    _say(Console(stderr=True), f"Serving {engine.name} on http://{host}:{port}; Ctrl-C ends.")
    asyncio.run(serve(engine, host=host, port=port, topk=topk))


@search_app.command()
def query(
    index: IndexPath,
    text: Annotated[str, typer.Argument(metavar="QUERY")],
    k: Annotated[int, typer.Option("-k", help="Passages.")] = 3,
    rank: RankOption = Rank.sqlite,
) -> None:
    """Ask an index and print what it finds."""
    from trajgym.envs.search import Hit, open_engine

    async def ask() -> list[Hit]:
        async with open_engine({"kind": "index", "path": index, "ranking": rank.value}) as engine:
            return (await engine.search([text], k))[0]

    console = Console()
    for hit in asyncio.run(ask()):
        console.print(
            f"[bold]{escape(hit.passage.title)}[/] [dim]{escape(hit.passage.id)} "
            f"{hit.score:.2f}[/]\n{escape(hit.passage.text)}",
            highlight=False,
        )


def _build_extra(extra: Extra, out: Path, count: Callable[[int], None]) -> bool:
    if extra is Extra.bm25:
        from trajgym.envs.search import build_bm25

        return build_bm25(out, on_progress=count)
    from trajgym.envs.search import build_dense

    return build_dense(out, on_progress=count)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


class _Count:
    """A spinner with a number."""

    def __init__(self, console: Console, what: str) -> None:
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console
        )
        self._what = what
        self._task = self._progress.add_task(f"{what}: reading")

    def __enter__(self) -> Callable[[int], None]:
        self._progress.start()
        return self._note

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _note(self, count: int) -> None:
        self._progress.update(self._task, description=f"{self._what}: {count:,}")
