"""Recording the traffic of a profile, and answering its requests from a recording."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ._archive import redirect_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.async_api import BrowserContext, Request, Route, WebSocketRoute

    from ._archive import Archive, Recorded

__all__ = ["MOST_UNMATCHED", "Replay"]

MOST_UNMATCHED = 20
"""Requests that are named in one observation; further ones are counted."""
_MOST_CHARS = 300
_GOING_AWAY = 1001
_NO_ANSWER = "addressunreachable"


class Replay:
    """Answers every request of a profile from a recording.

    Requests that were not recorded fail as without a network, and are reported; those for hosts
    that the driver serves are sent there.

    Args:
        archive: the recording.
        served: whether a host is served inside the sandbox.
    """

    def __init__(self, archive: Archive, served: Callable[[str], bool]) -> None:
        self.archive = archive
        self._served = served
        self._unmatched: list[str] = []
        self._count = 0

    async def attach(self, context: BrowserContext) -> None:
        """Intercept the requests of a profile, before it has pages."""
        await context.route("**/*", self._answer)
        await context.route_web_socket("**/*", self._socket)

    def report(self) -> dict[str, Any]:
        """Return the unmatched requests since the last call, and how many there were."""
        unmatched, count = self._unmatched, self._count
        self._unmatched, self._count = [], 0
        return {"requests": unmatched, "count": count}

    def _miss(self, method: str, url: str) -> None:
        self._count += 1
        if len(self._unmatched) < MOST_UNMATCHED:
            self._unmatched.append(f"{method} {url}"[:_MOST_CHARS])

    async def _answer(self, route: Route, request: Request) -> None:
        from playwright.async_api import Error

        with contextlib.suppress(Error):  # the page may have been closed in the meantime
            found = await self._find(request)
            if found is None and self._served(urlsplit(request.url).hostname or ""):
                await route.continue_()
            elif found is None:
                self._miss(request.method, request.url)
                await route.abort(_NO_ANSWER)
            elif found.status == 0:
                await route.abort("failed")
            elif found.location:
                await route.fulfill(status=200, headers=_page(found), body=_leading(found, request))
            else:
                await route.fulfill(status=found.status, headers=found.headers, body=found.body)

    async def _find(self, request: Request) -> Recorded | None:
        return self.archive.find(
            request.method,
            request.url,
            await request.all_headers(),
            request.post_data_buffer,
            follow=not request.is_navigation_request(),
        )

    async def _socket(self, socket: WebSocketRoute) -> None:
        self._miss("WEBSOCKET", socket.url)
        await socket.close(code=_GOING_AWAY)


def _page(found: Recorded) -> dict[str, str]:
    headers = {"content-type": "text/html; charset=utf-8"}
    if "set-cookie" in found.headers:
        headers["set-cookie"] = found.headers["set-cookie"]
    return headers


def _leading(found: Recorded, request: Request) -> str:
    """Return a page that leads to where a redirect leads, with the fragment of the request."""
    _, mark, fragment = request.url.partition("#")
    where = found.location
    return redirect_page(where if "#" in where or not mark else f"{where}#{fragment}")
