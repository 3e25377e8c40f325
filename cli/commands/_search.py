"""`trajgym search`: passage indexes and a retrieval server."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    _Model = TypeVar("_Model", bound=BaseModel)

__all__ = ["search_app"]

search_app = typer.Typer(help="Build, query and serve passage indexes.", no_args_is_help=True)

IndexPath = Annotated[str, typer.Argument(metavar="INDEX", help="Index directory, or `builtin`.")]


class Rank(StrEnum):
    """Kinds of ranking."""

    sqlite = "sqlite"
    bm25 = "bm25"
    dense = "dense"
    hybrid = "hybrid"


class Extra(StrEnum):
    """Optional parts of an index besides SQLite's full-text index."""

    bm25 = "bm25"
    dense = "dense"
    ann = "ann"


RankOption = Annotated[Rank, typer.Option(help="How passages are ranked.")]


@search_app.command()
def index(
    out: Annotated[Path, typer.Option(help="Index directory. An unfinished index is resumed.")],
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="jsonl, json or parquet files (or folders): passages, or questions with context. "
            "Without any, an existing index is checked or extended.",
        ),
    ] = None,
    more: Annotated[
        list[Extra] | None,
        typer.Option(
            "--with",
            help="Also build the index for bm25 or dense ranking, or the graph for "
            "approximate dense search (ann); may be repeated.",
        ),
    ] = None,
    k1: Annotated[float | None, typer.Option(help="bm25: term frequency saturation.")] = None,
    b: Annotated[float | None, typer.Option(help="bm25: length normalization.")] = None,
    stemmer: Annotated[
        str | None,
        typer.Option(help="bm25: Snowball language, or `none`."),
    ] = None,
    stop_words: Annotated[
        bool | None,
        typer.Option("--drop-stop-words/--keep-stop-words", help="bm25: leave out common words."),
    ] = None,
    token_pattern: Annotated[
        str | None,
        typer.Option(help="bm25: regular expression of a word."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="dense: a sentence-transformers model; by default all-MiniLM-L6-v2."),
    ] = None,
    query_prefix: Annotated[
        str | None,
        typer.Option(help="dense: prefix of queries; by default that of the model's family."),
    ] = None,
    passage_prefix: Annotated[
        str | None,
        typer.Option(help="dense: prefix of passages."),
    ] = None,
    connectivity: Annotated[
        int | None, typer.Option(help="ann: neighbours of each passage in the graph.")
    ] = None,
    expansion_add: Annotated[
        int | None, typer.Option(help="ann: candidates while a passage is added.")
    ] = None,
    expansion_search: Annotated[
        int | None, typer.Option(help="ann: candidates of a search.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Verify the index against its hash.")
    ] = False,
) -> None:
    """Build an index, in memory that does not grow with the corpus. Can be resumed."""
    from trajgym.envs.search import build_index, check_index, read_passages

    console = Console()
    if sources:
        with _Count(console, "passages") as count:
            report = build_index(read_passages(sources), out, on_progress=count)
        repeated = f", {report.repeated} repeated ones left out" if report.repeated else ""
        done = f"{report.added} passages added" if report.added else "up to date"
        _say(console, f"{report.passages} passages in {out} ({done}{repeated}).")
    bm25 = _given(k1=k1, b=b, stemmer=stemmer, stop_words=stop_words, token_pattern=token_pattern)
    if bm25.get("stemmer") == "none":
        bm25["stemmer"] = None
    dense = _given(model=encoder, query_prefix=query_prefix, passage_prefix=passage_prefix)
    graph = _given(
        connectivity=connectivity, expansion_add=expansion_add, expansion_search=expansion_search
    )
    for extra in more or []:
        with _Count(console, extra.value) as count:
            built = _build_extra(extra, out, bm25, dense, graph, count)
        _say(console, f"{extra.value}: {'built' if built else 'up to date'}.")
    if check or not (sources or more):
        report = check_index(out)
        _say(console, f"{report.passages} passages, sound. Hash {report.hash}.")


EngineSetting = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Further settings of the engine as JSON, such as '{\"approximate\": true}'.",
    ),
]


def _settings(index: str, rank: Rank, more: str | None) -> dict[str, Any]:
    try:
        added = json.loads(more or "{}")
    except ValueError as error:
        raise typer.BadParameter(f"--engine: not JSON: {error}") from error
    if not isinstance(added, dict):
        raise typer.BadParameter("--engine: expected a JSON object")
    return {"kind": "index", "path": index, "ranking": rank.value, **added}


@search_app.command()
def serve(
    index: IndexPath,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    topk: Annotated[int, typer.Option(help="Passages per query, unless a request sets it.")] = 3,
    rank: RankOption = Rank.sqlite,
    engine: EngineSetting = None,
) -> None:
    """Serve an index: POST /retrieve (Search-R1), POST /access (ASearcher), GET /health."""
    from trajgym.envs.search import open_engine, serve

    opened = open_engine(_settings(index, rank, engine))
    _say(
        Console(stderr=True),
        f"Serving {opened.name} on http://{host}:{port}; press Ctrl-C to stop.",
    )
    asyncio.run(serve(opened, host=host, port=port, topk=topk))


@search_app.command()
def query(
    index: IndexPath,
    text: Annotated[str, typer.Argument(metavar="QUERY")],
    k: Annotated[int, typer.Option("-k", help="Number of passages.")] = 3,
    rank: RankOption = Rank.sqlite,
    engine: EngineSetting = None,
) -> None:
    """Query an index and print the passages found."""
    from trajgym.envs.search import Hit, open_engine

    async def ask() -> list[Hit]:
        async with open_engine(_settings(index, rank, engine)) as opened:
            return (await opened.search([text], k))[0]

    console = Console()
    for hit in asyncio.run(ask()):
        console.print(
            f"[bold]{escape(hit.passage.title)}[/] [dim]{escape(hit.passage.id)} "
            f"{hit.score:.2f}[/]\n{escape(hit.passage.text)}",
            highlight=False,
        )


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _build_extra(
    extra: Extra,
    out: Path,
    bm25: dict[str, Any],
    dense: dict[str, Any],
    graph: dict[str, Any],
    count: Callable[[int], None],
) -> bool:
    from trajgym.envs.search import (
        BM25Settings,
        HNSWSettings,
        SentenceEncoder,
        build_bm25,
        build_dense,
    )

    if extra is Extra.bm25:
        return build_bm25(out, _checked(BM25Settings, bm25), on_progress=count)
    if dense and "model" not in dense:
        raise typer.BadParameter("--query-prefix and --passage-prefix need --encoder")
    encoder = SentenceEncoder(**dense) if dense else None
    approximate = extra is Extra.ann and (_checked(HNSWSettings, graph) or True)
    return build_dense(out, encoder=encoder, approximate=approximate, on_progress=count)


def _checked(kind: type[_Model], values: dict[str, Any]) -> _Model | None:
    """Return the settings, or None if none is given."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(values) if values else None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise typer.BadParameter(f"{first['loc'][0]}: {first['msg']}") from error


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


class _Count:
    """A spinner with a count."""

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
