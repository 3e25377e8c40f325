"""JSON over HTTP with deadlines and retries, for engines behind a URL."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.envs._clock import off_the_clock
from trajgym.envs._retry import Retry, Transient, of_status, shared_limiter
from trajgym.envs.search._errors import SearchUnavailable
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import httpx

__all__ = ["Endpoint", "JsonClient", "Patience"]

_T = TypeVar("_T")
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience(Retry):
    """The retry policy of the project, with a deadline per try.

    By default retries last longer than an index takes to load, so that sessions survive a restart
    of the server.

    Args:
        seconds: deadline of one try.
    """

    seconds: float = 30.0


class Endpoint:
    """Calls to one server, retried according to its :class:`Patience`.

    All clients of one server in this process share a limiter. Waits, and every try after the first,
    don't count towards the agent's time.

    Args:
        name: the server's address.
        patience: deadlines and retries.
    """

    def __init__(self, name: str, patience: Patience | None) -> None:
        self.patience = patience or Patience()
        self._limiter = shared_limiter(name)

    async def call(
        self,
        once: Callable[[], Awaitable[_T]],
        transient: Callable[[Exception], Transient | None],
    ) -> _T:
        """Retry a call until it succeeds; raise the error of the last try.

        Args:
            once: makes one try.
            transient: returns a message for a failure that a retry may resolve, else None.
        """
        tries = 0

        async def bounded() -> _T:
            nonlocal tries
            tries += 1
            with off_the_clock() if tries > 1 else nullcontext():
                # Client timeouts limit each read; a server that sends single bytes would never
                # reach them.
                async with asyncio.timeout(self.patience.seconds):
                    return await once()

        answer, _ = await self.patience.run(bounded, transient=transient, limiter=self._limiter)
        return answer


class JsonClient:
    """One keep-alive client of one server.

    Args:
        base_url: in front of every path.
        patience: deadlines and retries.
        headers: sent with every request.

    Raises:
        MissingExtra: httpx is not installed.
    """

    def __init__(
        self,
        base_url: str,
        patience: Patience | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("httpx", "search") from error
        self.base_url = base_url.rstrip("/")
        self._endpoint = Endpoint(self.base_url, patience)
        # Without TLS there is nothing to verify, and loading the certificates takes longest.
        self._client = httpx.AsyncClient(
            base_url=self.base_url,
            timeout=self._endpoint.patience.seconds,
            headers=dict(headers or {}),
            verify=not self.base_url.startswith("http://"),
        )

    async def post(self, path: str, body: Any) -> Any:
        """Send JSON and return the JSON answer.

        Raises:
            SearchUnavailable: no answer after all retries, a refusal, or no JSON.
        """
        return await self._ask("POST", path, json=body)

    async def post_lines(self, path: str, lines: Sequence[Any]) -> Any:
        """Send JSON lines and return the JSON answer; see :meth:`post`."""
        content = "".join(json.dumps(line) + "\n" for line in lines)
        headers = {"Content-Type": "application/x-ndjson"}
        return await self._ask("POST", path, content=content, headers=headers)

    async def get(self, path: str, params: Mapping[str, str]) -> Any:
        """Return the JSON at a path; see :meth:`post`."""
        return await self._ask("GET", path, params=dict(params))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(self, method: str, path: str, **request: Any) -> Any:
        async def once() -> httpx.Response:
            response = await self._client.request(method, path, **request)
            response.raise_for_status()
            return response

        try:
            response = await self._endpoint.call(once, _transient)
        except Exception as error:  # httpx is imported lazily: _ours compares with its classes
            if not _ours(error):
                raise
            raise SearchUnavailable(self._said(path, error)) from error
        try:
            return response.json()
        except ValueError as error:
            text = response.text[:_SHOWN]
            raise SearchUnavailable(f"{self.base_url}{path} answered no JSON: {text!r}") from error

    def _said(self, path: str, error: Exception) -> str:
        import httpx

        where = f"{self.base_url}{path}"
        if isinstance(error, httpx.HTTPStatusError):
            text = error.response.text[:_SHOWN]
            return f"{where} answered {error.response.status_code}: {text}"
        what = str(error) or f"no answer within {self._endpoint.patience.seconds:g} s"
        return f"{where} can't be reached: {what}"


def _transient(error: Exception) -> Transient | None:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        response = error.response
        return of_status(response.status_code, response.headers, response.text[:_SHOWN])
    if isinstance(error, (httpx.TransportError, TimeoutError)):
        return Transient(repr(error), unreachable=isinstance(error, httpx.ConnectError))
    return None


def _ours(error: BaseException) -> bool:
    import httpx

    return isinstance(error, (httpx.HTTPError, TimeoutError))
