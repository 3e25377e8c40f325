"""Fetching web pages: size limits, text extraction, division into sections."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin, urlsplit

from trajgym.envs._retry import Transient, of_status
from trajgym.envs.search._engine import Passage
from trajgym.envs.search._errors import SearchUnavailable
from trajgym.envs.search._wire import Endpoint, Patience
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    import httpx

__all__ = ["PageFetcher", "PageRefused", "Section", "sections_of"]

_HEADING = re.compile(r"^(#{1,6})[ \t]+(\S.*?)[ \t]*#*$", re.MULTILINE)
_TEXT = ("text/plain", "text/markdown", "application/json")
_HTML = ("text/html", "application/xhtml+xml")
_REDIRECTS = 5
_PATIENCE = Patience(tries=3, total_seconds=60.0, unreachable_seconds=10.0)


class PageRefused(Exception):
    """A page that can't be read: not found, of another type, or at a private address."""


class Section(NamedTuple):
    """The part of a page under one heading."""

    title: str
    """Empty for text before the first heading."""
    text: str


def sections_of(text: str) -> list[Section]:
    """Divide Markdown text at its headings; a text without any is one section."""
    found: list[Section] = []
    title, start = "", 0
    for match in _HEADING.finditer(text):
        found.append(Section(title, text[start : match.start()].strip()))
        title, start = match[2], match.end()
    found.append(Section(title, text[start:].strip()))
    return [section for section in found if section.title or section.text] or [Section("", "")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFetcher:
    """Fetches pages and extracts their main text as Markdown (by trafilatura).

    The agent chooses the addresses, so only ``http`` and ``https`` are followed, redirects are
    checked as the first address is, and addresses of this machine and of private networks are
    refused unless ``private`` is set.

    Args:
        patience: deadlines and retries.
        most_bytes: limit per page; longer pages are truncated.
        private: allow loopback and private addresses, for self-hosted pages.
    """

    patience: Patience = _PATIENCE
    most_bytes: int = 4_000_000
    private: bool = False

    async def fetch(self, url: str) -> Passage:
        """Return a page as a passage whose id is the requested address.

        Raises:
            PageRefused: the page can't be read, and a retry would not help.
            SearchUnavailable: no answer after all retries.
            MissingExtra: httpx or trafilatura is not installed.
        """
        try:
            import httpx
            import trafilatura
        except ImportError as error:
            raise MissingExtra(str(error.name), "search-web") from error
        del trafilatura
        host = urlsplit(url).netloc
        try:
            kind, content, charset = await Endpoint(host, self.patience).call(
                lambda: self._once(url), _transient
            )
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if _transient(error) is None:
                raise PageRefused(f"{url} answered {status}") from error
            raise SearchUnavailable(f"{url} answered {status}") from error
        except (httpx.TransportError, TimeoutError) as error:
            raise SearchUnavailable(f"{url} can't be reached: {error!r}") from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise PageRefused(f"{url}: not an address: {error}") from error
        # Extraction takes tens of milliseconds, and longer for large pages.
        title, text = await asyncio.to_thread(_extracted, url, kind, content, charset)
        if not text.strip():
            raise PageRefused(f"{url}: no text could be extracted")
        return Passage(url, title, text, url)

    async def _once(self, url: str) -> tuple[str, bytes, str]:
        import httpx

        headers = {"User-Agent": "trajgym", "Accept": "text/html, text/plain;q=0.9"}
        async with httpx.AsyncClient(timeout=self.patience.seconds, headers=headers) as client:
            for _ in range(_REDIRECTS + 1):
                await self._check(url)
                async with client.stream("GET", url) as response:
                    if response.has_redirect_location:
                        url = urljoin(url, response.headers["location"])
                        continue
                    response.raise_for_status()
                    return await self._read(url, response)
        raise PageRefused(f"{url}: more than {_REDIRECTS} redirects")

    async def _read(self, url: str, response: httpx.Response) -> tuple[str, bytes, str]:
        kind = response.headers.get("content-type", "text/html").partition(";")[0].strip().lower()
        if kind not in (*_HTML, *_TEXT):
            raise PageRefused(f"{url}: content of type {kind}; only HTML and plain text are read")
        content = bytearray()
        async for chunk in response.aiter_bytes(65_536):
            content += chunk
            if len(content) >= self.most_bytes:
                break
        return kind, bytes(content[: self.most_bytes]), response.charset_encoding or "utf-8"

    async def _check(self, url: str) -> None:
        """Refuse addresses that are not on the public web.

        The name is resolved again when the connection is made; a name server that answers
        differently each time is not guarded against.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise PageRefused(f"{url}: only http and https addresses can be opened")
        if self.private:
            return
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(parts.hostname, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise PageRefused(f"{url}: unknown host {parts.hostname!r}") from error
        if not all(ipaddress.ip_address(entry[4][0]).is_global for entry in found):
            raise PageRefused(f"{url}: an address of a private network")


def _transient(error: Exception) -> Transient | None:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return of_status(error.response.status_code, error.response.headers)
    if isinstance(error, (httpx.TransportError, TimeoutError)):
        return Transient(repr(error), unreachable=isinstance(error, httpx.ConnectError))
    return None


def _extracted(url: str, kind: str, content: bytes, charset: str) -> tuple[str, str]:
    """Return the title and the Markdown text of a page."""
    if kind in _TEXT:
        try:
            return "", content.decode(charset, "replace")
        except LookupError:
            return "", content.decode("utf-8", "replace")
    import trafilatura

    text = trafilatura.extract(
        content,
        url=url,
        output_format="markdown",
        include_formatting=True,
        include_tables=True,
        favor_recall=True,
    )
    metadata = trafilatura.extract_metadata(content)
    return str((metadata and metadata.title) or ""), text or ""
