"""`trajgym top`: a run's figures, live."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trajgym.cli._terminal import print_json, say
from trajgym.rollout.monitoring import STALENESS, LiveView, exposition
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trajgym.rollout.monitoring import LiveFigures

__all__ = ["run_top"]

_BAR = 24
_MOST_CAUSES = 8


def run_top(path: Path, *, interval: float, once: bool, as_json: bool, metrics: int | None) -> None:
    """Show the figures of a run until Ctrl-C.

    Args:
        path: of the run.
        interval: seconds between two looks.
        once: print the present figures and end; also done if the output is not a terminal.
        as_json: print the present figures as JSON and end.
        metrics: port of loopback at which ``/metrics`` is served meanwhile; a free one if 0.

    Raises:
        StoreError: there is no run.
        InvalidInput: the port is in use.
    """
    with LiveView(path) as view:
        if as_json:
            print_json(_document(view.update()))
            return
        console = Console(highlight=False)
        if metrics is None and (once or not sys.stdout.isatty()):
            _print(path, view.update(), console)
            return
        serving = nullcontext() if metrics is None else _serving(metrics, view)
        with serving as text, Live(console=console, auto_refresh=False) as live:
            while True:
                figures = view.update()
                if text is not None:
                    text.value = exposition(figures)
                live.update(_screen(path, figures), refresh=True)
                time.sleep(interval)


def _print(path: Path, figures: LiveFigures, console: Console) -> None:
    """Print a screen on a terminal, and one tab-separated line per figure in a pipe."""
    if console.is_terminal:
        console.print(_screen(path, figures))
        return
    for name, text in [("run", Text(f"{path} {_activity(figures)}")), *_lines(figures)]:
        print(f"{name}\t{text.plain}")


def _document(figures: LiveFigures) -> dict[str, Any]:
    more = {"mean_score": figures.mean_score, "policy_share": figures.policy_share}
    names = [*map(_at_most, STALENESS), "more"]
    plain = {each.name: getattr(figures, each.name) for each in fields(figures)}
    return plain | more | {"staleness": dict(zip(names, figures.staleness, strict=True))}


def _screen(path: Path, figures: LiveFigures) -> Group:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    last = ""
    for name, text in _lines(figures):
        table.add_row("" if name == last else name, text)
        last = name
    return Group(Text(f"{path}  {_activity(figures)}", style="bold cyan", overflow="fold"), table)


def _activity(figures: LiveFigures) -> str:
    if figures.running and figures.last_turn is not None:
        return f"in progress, last turn {max(0.0, time.time() - figures.last_turn):.0f} s ago"
    return "in progress" if figures.running else "not in progress"


def _lines(figures: LiveFigures) -> Iterator[tuple[str, Text]]:
    ended = [f"{count:,} {status}" for status, count in figures.statuses.most_common()]
    states = [f"{figures.sessions:,} begun", f"{figures.running:,} attempts in progress", *ended]
    if figures.interrupted:
        states.append(f"{figures.interrupted:,} interrupted")
    yield "sessions", Text(", ".join(states))
    if figures.mean_score is not None:
        passed = figures.passed / figures.scored
        shown = f"{figures.passed:,} of {figures.scored:,} passed ({passed:.1%})"
        yield "outcomes", Text(f"{shown}, mean score {figures.mean_score:.3f}")
    if figures.groups:
        yield "groups", Text(f"{figures.sealed:,} of {figures.groups:,} sealed")
    if figures.turns:
        exact = f"{figures.exact / figures.turns:.0%} with token ids"
        yield "turns", Text(f"{figures.turns:,} ({exact}), {figures.turns_per_second:.1f}/s now")
        tokens = f"{figures.prompt_tokens:,} prompt, {figures.completion_tokens:,} completion"
        yield "tokens", Text(f"{tokens}, {figures.tokens_per_second:,.0f} completion/s now")
    if (share := figures.policy_share) is not None:
        yield "time", Text(f"policy {share:.0%}, environment {1 - share:.0%}")
    if whole := sum(figures.waits.values()):
        waits = sorted(figures.waits.items(), key=lambda one: -one[1])
        yield "waits", Text(", ".join(f"{cause} {took / whole:.1%}" for cause, took in waits))
    if figures.idle:
        shares = [f"{part} {share:.1%}" for part, share in figures.idle.items()]
        yield "idle", Text(", ".join(shares))
    if figures.version >= 0:
        yield "version", Text(str(figures.version))
        yield from _staleness(figures.staleness)
    for cause, count in figures.causes.most_common(_MOST_CAUSES):
        yield "failures", Text(f"{count:,} x {cause}", style="red")


def _staleness(counts: list[int]) -> Iterator[tuple[str, Text]]:
    names = [*map(_at_most, STALENESS), f"over {STALENESS[-1]}"]
    for name, count in zip(names, counts, strict=True):
        bar = "█" * round(_BAR * count / max(counts)) if any(counts) else ""
        yield "staleness", Text(f"{name:<6} {bar} {count:,}")


def _at_most(bound: int) -> str:
    return str(bound) if bound < 2 else f"to {bound}"


class _Text:
    """The latest figures, as text; replaced as a whole, so that threads need no lock."""

    value = ""


@contextmanager
def _serving(port: int, view: LiveView) -> Iterator[_Text]:
    text = _Text()
    text.value = exposition(view.update())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            body = text.value.encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Requests are not logged: they would overwrite the screen."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InvalidInput(f"--metrics {port}: {error}; choose another port") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    say(f"Metrics at http://127.0.0.1:{server.server_port}/metrics", error=True)
    try:
        yield text
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
