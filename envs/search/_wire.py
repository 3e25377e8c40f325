"""JSON over HTTP with deadlines and retries, for every engine that lives behind a URL."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trajgym.envs.search._errors import SearchUnavailable
from trajgym.trajectory import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx

__all__ = ["JsonClient", "Patience"]

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a server is waited for, and how often it is asked again.

    Time-outs, broken connections, rate limits and 5xx are tried again, other 4xx never.

    Args:
        seconds: of one try.
        attempts: most tries.
        total_seconds: no try begins after so long.
        first_wait: most seconds before the second try, drawn at random; doubled each time.
        longest_wait: where the doubling ends.
    """

    seconds: float = 30.0
    attempts: int = 5
    total_seconds: float = 180.0
    first_wait: float = 0.5
    longest_wait: float = 10.0


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
        self.patience = patience or Patience()
        # Without TLS there is nothing to verify, and loading the certificates takes longest.
        self._client = httpx.AsyncClient(
            base_url=self.base_url,
            timeout=self.patience.seconds,
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
        from tenacity import (
            AsyncRetrying,
            retry_if_exception,
            stop_after_attempt,
            stop_before_delay,
            wait_random_exponential,
        )

        patience = self.patience
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(patience.attempts)
                | stop_before_delay(patience.total_seconds),
                wait=wait_random_exponential(patience.first_wait, patience.longest_wait),
                retry=retry_if_exception(_transient),
                reraise=True,
            ):
                with attempt:
                    response = await self._once(method, path, request)
        except Exception as error:
            if not _ours(error):
                raise
            raise SearchUnavailable(self._said(path, error)) from error
        try:
            return response.json()
        except ValueError as error:
            text = response.text[:_SHOWN]
            raise SearchUnavailable(f"{self.base_url}{path} answered no JSON: {text!r}") from error

    async def _once(self, method: str, path: str, request: dict[str, Any]) -> httpx.Response:
        # httpx bounds each read; a server that drips bytes would never end.
        async with asyncio.timeout(self.patience.seconds):
            response = await self._client.request(method, path, **request)
        response.raise_for_status()
        return response

    def _said(self, path: str, error: Exception) -> str:
        import httpx

        where = f"{self.base_url}{path}"
        if isinstance(error, httpx.HTTPStatusError):
            text = error.response.text[:_SHOWN]
            return f"{where} answered {error.response.status_code}: {text}"
        what = str(error) or f"no answer within {self.patience.seconds:g} s"
        return f"{where} can't be reached: {what} ({self.patience.attempts} tries at most)"


def _transient(error: BaseException) -> bool:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _RETRIED
    return isinstance(error, (httpx.TransportError, TimeoutError))


def _ours(error: BaseException) -> bool:
    import httpx

    return isinstance(error, (httpx.HTTPError, TimeoutError))
