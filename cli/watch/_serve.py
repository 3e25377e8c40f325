"""Serving the page until Ctrl-C."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from rich.console import Console

from trajgym.cli.watch._app import WatchApp
from trajgym.server import serve
from trajgym.server._serve import run

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["watch_run"]

_SECRET = "TRAJGYM_SERVER_SECRET"  # noqa: S105 - the name of a variable


def watch_run(path: Path, *, host: str, port: int) -> None:
    """Serve the page of a run until Ctrl-C, and print its address.

    The address contains a token in its fragment, which browsers do not send. The token is that of
    ``TRAJGYM_SERVER_SECRET``, or else a new one.

    Args:
        path: of the run; it need not exist yet.
        host: to listen on.
        port: to listen on; a free one if 0.

    Raises:
        InvalidInput: the address can't be listened on, or it can be reached from other machines
            and there is no ``TRAJGYM_SERVER_SECRET``.
    """
    token = os.environ.get(_SECRET)
    app = WatchApp(path, token or secrets.token_urlsafe(16), own_token=token is not None)

    def ready(url: str) -> None:
        shown = f"Watching {path}: {url}/#{app.token}. Press Ctrl-C to stop."
        Console(stderr=True).print(shown, highlight=False, soft_wrap=True)

    run(serve(app, host=host, port=port, ready=ready))
