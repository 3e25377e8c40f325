"""The page's server: sessions and pictures of a run, read again for each request."""

from __future__ import annotations

import asyncio
import hashlib
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from trajgym.cli._frames import draw_frame, frames_of
from trajgym.server import Limits
from trajgym.server._auth import Auth, bearer_of
from trajgym.server._errors import Refused
from trajgym.server.viewer._marks import marks_of
from trajgym.trajectory import InvalidInput, Run, StoreError, text_of
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trajgym.cli._frames import Frame
    from trajgym.trajectory import SessionTree, Turn

__all__ = ["WatchApp"]

_MOST_SESSIONS = 500
_MOST_CHARS = 2_000
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src "
    "'sha256-{script}'; img-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class WatchApp:
    """An ASGI application with one page that follows a run.

    The page has no external parts. What it shows is read from the run's files, so that any process
    may record them; a picture appears with the turn that it was shown after.

    Args:
        path: of the run; it need not exist yet.
        token: that a client needs to read sessions.
        own_token: whether the user chose the token; without it the server binds to loopback
            addresses only.

    Raises:
        MissingExtra: Starlette is not installed.
    """

    def __init__(self, path: Path, token: str, *, own_token: bool = False) -> None:
        try:
            from starlette.applications import Starlette
            from starlette.routing import Route
        except ImportError as error:
            raise MissingExtra("starlette", "server") from error
        self.token = token
        self.limits = Limits()
        self.auth = Auth(token if own_token else None)
        """What the server checks before it binds to an address."""
        self._tokens = Auth(token)
        self._path = path
        self._page, self._headers = _page()
        self._app = Starlette(
            routes=[
                Route("/", self._show),
                Route("/api/sessions", self._answer(self._sessions)),
                Route("/api/sessions/{session}", self._answer(self._session)),
                Route("/api/sessions/{session}/frames/{frame:int}", self._answer(self._frame)),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request, or the server's life cycle."""
        await self._app(scope, receive, send)

    async def _show(self, request: Any) -> Any:
        from starlette.responses import HTMLResponse

        del request
        return HTMLResponse(self._page, headers=self._headers)

    def _answer(self, read: Callable[..., tuple[bytes, str]]) -> Callable[[Any], Any]:
        """Return an endpoint that checks the token and reads the run in a thread."""

        async def endpoint(request: Any) -> Any:
            from starlette.responses import Response

            try:
                self._tokens.check(bearer_of(request.scope["headers"]))
                data, kind = await asyncio.to_thread(read, **request.path_params)
            except Refused as error:
                return Response(str(error), error.status, self._headers)
            except InvalidInput as error:
                return Response(str(error), 404, self._headers)
            return Response(data, headers=self._headers, media_type=kind)

        return endpoint

    def _sessions(self) -> tuple[bytes, str]:
        try:
            with Run(self._path) as run:
                found = [
                    {
                        "id": one.record.id,
                        "task": one.record.task,
                        "turns": one.turns,
                        "status": ", ".join(str(attempt.status) for attempt in one.attempts),
                    }
                    for one in run.summaries()
                ]
        except StoreError:
            found = []  # nothing has been recorded yet
        return _json({"run": str(self._path), "sessions": found[-_MOST_SESSIONS:]})

    def _session(self, session: str) -> tuple[bytes, str]:
        with Run(self._path) as run:
            tree = run.session(session)
            shown = [_described(frame) for frame in frames_of(tree)]
        attempts = [
            {
                "status": str(attempt.status),
                "cause": attempt.cause[:_MOST_CHARS],
                "score": None if attempt.outcome is None else attempt.outcome.score,
            }
            for attempt in tree.attempts
        ]
        found = {"id": tree.record.id, "task": tree.record.task, "attempts": attempts}
        return _json({**found, "asked": _asked(tree), "frames": shown})

    def _frame(self, session: str, frame: int) -> tuple[bytes, str]:
        with Run(self._path) as run:
            shown = list(frames_of(run.session(session)))
            if not 0 <= frame < len(shown):
                raise InvalidInput(f"session {session!r} has no frame {frame}")
            return draw_frame(run, shown[frame])


def _page() -> tuple[str, dict[str, str]]:
    """Return the page and its headers, which permit its script only."""
    import base64

    text = (files("trajgym.cli.watch") / "page.html").read_text("utf-8")
    script = text.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return text, {name: value.format(script=digest) for name, value in _HEADERS.items()}


def _json(value: Any) -> tuple[bytes, str]:
    return json.dumps(value).encode(), "application/json"


def _asked(tree: SessionTree) -> str:
    for turn in tree.turns:
        users = [m for m in turn.context if m.get("role") == "user"]
        if users:
            return text_of(users[0])[:_MOST_CHARS]
    return ""


def _described(frame: Frame) -> dict[str, Any]:
    decided = frame.decided
    return {
        "name": frame.name,
        "decided": None if decided is None else decided.index,
        "actions": [] if decided is None else [mark.label for mark in marks_of(decided)[0]],
        "said": "" if decided is None else _said(decided),
    }


def _said(turn: Turn) -> str:
    return text_of(turn.message)[:_MOST_CHARS]
