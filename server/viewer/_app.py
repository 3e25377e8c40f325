"""The viewer as an ASGI application: a page, and what it shows as JSON."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, get_type_hints

from trajgym.server._auth import Auth, bearer_of
from trajgym.server._errors import Refused
from trajgym.server._json import dumps
from trajgym.server._limits import Limits
from trajgym.server.viewer._groups import describe_group
from trajgym.server.viewer._library import Library
from trajgym.server.viewer._page import page_files
from trajgym.server.viewer._plots import RunPlots
from trajgym.server.viewer._session import describe_session, describe_turn
from trajgym.server.viewer._tokens import describe_tokens
from trajgym.server.viewer._values import describe_derivers, group_of, trees_of, values_of
from trajgym.trajectory import InvalidInput, StoreError
from trajgym.trajectory._internal import MissingExtra
from trajgym.trajectory.catalog import SessionFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from trajgym.server.viewer._tokens import Decode

__all__ = ["Viewer"]

_IDLE = 0.7
"""Seconds between two looks at a run that is complete."""
_MOST_ROWS = 500
_MOST_DERIVERS = 12
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_HASH = re.compile(r"[0-9a-f]{64}")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Viewer:
    """An ASGI application that shows runs in a browser. It changes nothing in them.

    The page has no external parts. All data needs the token, and is read from the runs' files, so
    that any process may record them meanwhile.

    Args:
        path: a run, or a directory that contains runs; it need not exist yet.
        token: that a client needs to read data.
        own_token: whether the user chose the token; without it the server binds to loopback
            addresses only.
        decode: gives the text of token ids; see :func:`describe_tokens`.
        place: gives a catalogue's file by the path of its run; the user's cache if None.

    Raises:
        MissingExtra: Starlette is not installed.
    """

    def __init__(
        self,
        path: Path,
        token: str,
        *,
        own_token: bool = False,
        decode: Decode | None = None,
        place: Callable[[Path], Path] | None = None,
    ) -> None:
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
        self._decode = decode
        self.library = Library(path, place=place)
        self.plots = RunPlots(self.library)
        self._files = page_files()
        run = "/api/runs/{run}"
        reads: dict[str, Callable[..., Any]] = {
            "/api/runs": self._runs,
            "/api/derivers": self._derivers,
            run: self._overview,
            f"{run}/facets": self._facets,
            f"{run}/sessions": self._sessions,
            f"{run}/sessions/{{session}}": self._session,
            f"{run}/sessions/{{session}}/values": self._session_values,
            f"{run}/sessions/{{session}}/turns/{{turn:int}}": self._turn,
            f"{run}/sessions/{{session}}/turns/{{turn:int}}/tokens": self._turn_tokens,
            f"{run}/groups": self._groups,
            f"{run}/groups/{{group}}": self._group,
            f"{run}/groups/{{group}}/values": self._group_values,
            f"{run}/failures": self._failures,
            f"{run}/plots": self._plots,
        }
        self._app = Starlette(
            routes=[
                Route("/", self._file),
                Route("/page/{name}", self._file),
                *(Route(path, self._answer(read)) for path, read in reads.items()),
                Route(f"{run}/blobs/{{blob}}", self._blob),
            ],
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request, or the server's life cycle."""
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        del app
        task = asyncio.get_running_loop().create_task(self._keep_fresh())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            await asyncio.to_thread(self.plots.close)
            await asyncio.to_thread(self.library.close)

    async def _keep_fresh(self) -> None:
        while True:
            complete = await asyncio.to_thread(self.library.refresh)
            complete &= await asyncio.to_thread(self.plots.advance)
            await asyncio.sleep(_IDLE if complete else 0)

    # Answers --------------------------------------------------------------------------------

    async def _file(self, request: Any) -> Any:
        from starlette.responses import Response

        found = self._files.get(request.path_params.get("name", "index.html"))
        if found is None:
            return Response("no such file", 404, _HEADERS)
        return Response(found.data, headers=_HEADERS, media_type=found.media_type)

    def _answer(self, read: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return an endpoint that checks the token and reads in a thread."""

        async def endpoint(request: Any) -> Any:
            from starlette.responses import Response

            def answer() -> bytes:
                return dumps(
                    read(_Query(request.query_params.multi_items()), **request.path_params)
                )

            try:
                self._check(request)
                body = await asyncio.to_thread(answer)
            except Refused as error:
                return _problem(error.status, str(error))
            except InvalidInput as error:
                return _problem(404, str(error))
            except StoreError as error:
                return _problem(503, str(error))
            return Response(body, headers=_HEADERS, media_type="application/json")

        return endpoint

    def _check(self, request: Any) -> None:
        self._tokens.check(bearer_of(request.scope["headers"]))

    async def _blob(self, request: Any) -> Any:
        """Answer with a stored image; other bytes are not shown as what they claim to be."""
        from starlette.responses import Response

        name = request.path_params["blob"]

        def read() -> Any:
            with self.library.open(request.path_params["run"]) as run:
                return run.blob(name)

        try:
            self._check(request)
            if not _HASH.fullmatch(name):
                raise InvalidInput(f"{name!r} is not the name of a blob")
            data, media_type = await asyncio.to_thread(read)
        except Refused as error:
            return _problem(error.status, str(error))
        except (InvalidInput, StoreError) as error:
            return _problem(404, str(error))
        kind = media_type if media_type in _IMAGES else "application/octet-stream"
        # A blob is named after its content, so that a browser may keep it.
        headers = _HEADERS | {"Cache-Control": "private, max-age=86400, immutable"}
        return Response(data, headers=headers, media_type=kind)

    # Reads ----------------------------------------------------------------------------------

    def _runs(self, query: _Query) -> Any:
        del query
        return {"path": str(self.library.path), "runs": self.library.describe()}

    def _derivers(self, query: _Query) -> Any:
        del query
        return describe_derivers()

    def _overview(self, query: _Query, run: str) -> Any:
        catalog = self.library.catalog(run)
        progress = catalog.progress()
        after = query.number("after", int)
        if after is not None and after == progress.revision:
            found: dict[str, Any] = {}
        else:
            found = {"totals": catalog.totals()}
        return {
            "name": run,
            "path": str(catalog.run),
            "texts": self._decode is not None,
            "error": self.library.error(run),
            **progress._asdict(),
            **found,
        }

    def _facets(self, query: _Query, run: str) -> Any:
        del query
        return self.library.catalog(run).facets()

    def _sessions(self, query: _Query, run: str) -> Any:
        catalog = self.library.catalog(run)
        page = catalog.sessions(
            query.session_filter(),
            sort=query.text("sort") or "begun",  # type: ignore[arg-type]
            descending=query.flag("desc"),
            offset=query.number("offset", int) or 0,
            limit=min(query.number("limit", int) or 100, _MOST_ROWS),
        )
        several = [row["id"] for row in page.rows if row["attempts"] > 1]
        attempts = catalog.attempts(several) if several else {}
        for row in page.rows:
            if row["id"] in attempts:
                row["ends"] = attempts[row["id"]]
        return {"revision": catalog.progress().revision, "total": page.total, "rows": page.rows}

    def _session(self, query: _Query, run: str, session: str) -> Any:
        del query
        with self.library.open(run) as opened:
            return describe_session(opened, opened.session(session))

    def _turn(self, query: _Query, run: str, session: str, turn: int) -> Any:
        del query
        with self.library.open(run) as opened:
            tree = opened.session(session)
        if turn >= len(tree.turns):
            raise InvalidInput(f"session {session!r} has no turn {turn}")
        return describe_turn(tree.turns[turn], longest=None)

    def _turn_tokens(self, query: _Query, run: str, session: str, turn: int) -> Any:
        del query
        with self.library.open(run) as opened:
            tree = opened.session(session)
        return describe_tokens(tree, turn, self._decode)

    def _session_values(self, query: _Query, run: str, session: str) -> Any:
        names = query.all("with")[:_MOST_DERIVERS]
        with self.library.open(run) as opened:
            group, trees = group_of(opened, opened.session(session))
        return values_of(group, trees, [session], names)

    def _groups(self, query: _Query, run: str) -> Any:
        page = self.library.catalog(run).groups(
            task=query.text("task") or None,
            mixed=query.flag("mixed"),
            sort=query.text("sort") or "begun",
            descending=query.flag("desc"),
            offset=query.number("offset", int) or 0,
            limit=min(query.number("limit", int) or 100, _MOST_ROWS),
        )
        return page._asdict()

    def _group(self, query: _Query, run: str, group: str) -> Any:
        del query
        with self.library.open(run) as opened:
            found = opened.group(group)
            if found is None:
                raise InvalidInput(f"no group {group!r}")
            return describe_group(found, trees_of(opened, found))

    def _group_values(self, query: _Query, run: str, group: str) -> Any:
        names = query.all("with")[:_MOST_DERIVERS]
        with self.library.open(run) as opened:
            found = opened.group(group)
            if found is None:
                raise InvalidInput(f"no group {group!r}")
            trees = trees_of(opened, found)
        return values_of(found, trees, [tree.record.id for tree in trees], names)

    def _failures(self, query: _Query, run: str) -> Any:
        del query
        catalog = self.library.catalog(run)
        tools = [tool for tool in catalog.facets()["tool"] if tool["failed"]]
        return {
            "attempts": catalog.totals()["attempts"],
            "causes": catalog.failures(),
            "tools": sorted(tools, key=lambda tool: -tool["failed"]),
        }

    def _plots(self, query: _Query, run: str) -> Any:
        return self.plots.describe(run, after=query.number("after", int))


class _Query:
    """The parameters of a request."""

    def __init__(self, items: Iterable[tuple[str, str]]) -> None:
        self._items = list(items)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._items if key == name]

    def text(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    def flag(self, name: str) -> bool:
        return self.text(name) in {"1", "true"}

    def number(self, name: str, kind: type[float | int]) -> Any:
        text = self.text(name)
        if not text:
            return None
        try:
            value = kind(text)
        except ValueError:
            raise Refused(400, f"{name}={text!r} is not a number") from None
        if not abs(value) < 1e15 or (kind is int and value < 0):
            raise Refused(400, f"{name}={text!r} is out of range")
        return value

    def session_filter(self) -> SessionFilter:
        given: dict[str, Any] = {}
        for name, hint in get_type_hints(SessionFilter).items():
            if hint == list[str]:
                given[name] = self.all(name)
            elif hint == (float | None):
                given[name] = self.number(name, float)
            elif hint == (int | None):
                given[name] = self.number(name, int)
            else:
                given[name] = self.text(name) or ("" if name == "text" else None)
        return SessionFilter(**given)


def _problem(status: int, message: str) -> Any:
    from starlette.responses import Response

    body = dumps({"error": message})
    return Response(body, status, _HEADERS, media_type="application/json")
