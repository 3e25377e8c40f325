"""`trajgym view`: runs in a browser, or one session as a file."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from rich.console import Console

from trajgym.cli._show import find_session
from trajgym.cli._terminal import say
from trajgym.server import serve
from trajgym.server._serve import run as run_server
from trajgym.server.viewer import Viewer, export_session
from trajgym.trajectory import InvalidInput, Run
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["ViewOptions", "run_view"]

_SECRET = "TRAJGYM_SERVER_SECRET"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """Options of the command; see its help."""

    run: Path
    session: str | None
    html: Path | None
    derivers: Sequence[str]
    tokenizer: str | None
    host: str
    port: int
    open_browser: bool


def run_view(options: ViewOptions) -> None:
    """Serve the page until Ctrl-C and print its address, or write a session to a file.

    The address contains a token in its fragment, which browsers do not send. The token is that of
    ``TRAJGYM_SERVER_SECRET``, or else a new one.

    Raises:
        InvalidInput: there is no such session, ``html`` is given without one, or the address can't
            be listened on or is not loopback and there is no ``TRAJGYM_SERVER_SECRET``.
        MissingExtra: Starlette, uvicorn or transformers is not installed.
    """
    decode = None if options.tokenizer is None else _decoder(options.tokenizer)
    if options.html is not None:
        _write(options, options.html, decode)
        return
    where = ""
    if options.session is not None:
        with Run(options.run) as opened:
            session = find_session(opened, options.session)
        name = options.run.resolve().name.removesuffix(".sqlite")
        where = f"/run/{quote(name, safe='')}/session/{quote(session, safe='')}"
    token = os.environ.get(_SECRET)
    app = Viewer(
        options.run,
        token or secrets.token_urlsafe(16),
        own_token=token is not None,
        decode=decode,
    )

    def ready(url: str) -> None:
        address = f"{url}/#{where}?token={quote(app.token, safe='')}"
        shown = f"Viewing {options.run}: {address} Press Ctrl-C to stop."
        Console(stderr=True).print(shown, highlight=False, soft_wrap=True)
        if options.open_browser:
            import webbrowser

            webbrowser.open(address)

    run_server(serve(app, host=options.host, port=options.port, ready=ready))


def _write(options: ViewOptions, file: Path, decode: Callable[[Sequence[int]], str] | None) -> None:
    if options.session is None:
        raise InvalidInput("--html writes one session: name it, as in trajgym view RUN SESSION")
    with Run(options.run) as run:
        session = find_session(run, options.session)
        text = export_session(run, session, derivers=options.derivers, decode=decode)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    say(f"{file}: session {session}, {len(text.encode()) / 1e6:.1f} MB, without external parts")


def _decoder(name: str) -> Callable[[Sequence[int]], str]:
    """Return what decodes ids with a tokenizer: a name or directory of Hugging Face."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtra("transformers", "local") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--tokenizer {name}: {error}") from error

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    return decode
