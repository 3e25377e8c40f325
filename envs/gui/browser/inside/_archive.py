"""Recorded traffic (HAR): the response to a request, as the recorded server would have given it."""

from __future__ import annotations

import base64
import binascii
import json
import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["Archive", "BadArchive", "Recorded", "redirect_page"]

_SAFE = {"GET", "HEAD", "OPTIONS"}
_REDIRECTS = {301, 302, 303, 307, 308}
_KEEPS_METHOD = {307, 308}
_MOST_HOPS = 20
_NEGOTIATED = ("accept", "accept-language", "range", "x-requested-with", "hx-request", "rsc")
"""Headers with which a page asks for different representations of the same address."""
_DROPPED = {
    *("connection", "content-encoding", "content-length", "keep-alive", "proxy-authenticate"),
    *("trailer", "transfer-encoding", "upgrade", "strict-transport-security", "alt-svc"),
}
"""Response headers that describe the recorded connection, not the content."""
_BOUNDARY = re.compile(r'boundary="?([^";]+)')


class BadArchive(Exception):
    """A file is not a HAR with responses; the message states why."""


class Recorded(NamedTuple):
    """A recorded response."""

    status: int
    """0 if the request failed when it was recorded."""
    headers: dict[str, str]
    """Names in lower case; several ``set-cookie`` are separated by line breaks."""
    body: bytes
    location: str = ""
    """Where a redirect leads to; empty if it is none."""


@dataclass(slots=True)
class _Entry:
    at: int
    method: str
    url: str
    asked: dict[str, str]
    sent: str | None
    status: int
    answered: list[tuple[str, str]]
    content: Mapping[str, Any]
    body: bytes | None = None

    def recorded(self) -> Recorded:
        headers: dict[str, str] = {}
        for name, value in self.answered:
            if name.startswith(":") or name in _DROPPED:
                continue
            headers[name] = f"{headers[name]}\n{value}" if name in headers else value
        if "content-type" not in headers and self.content.get("mimeType"):
            headers["content-type"] = str(self.content["mimeType"])
        location = headers.get("location", "") if self.status in _REDIRECTS else ""
        where = urljoin(self.url, location) if location else ""
        # A response from the browser's cache was recorded with its content.
        status = 200 if self.status == 304 else self.status
        return Recorded(status, headers, _decoded(self.content), where)

    @property
    def usable(self) -> bool:
        """Whether there is something to answer with: some exports leave bodies out."""
        if self.status in _REDIRECTS or self.status == 0 or self.method == "HEAD":
            return True
        if "text" in self.content:
            return True
        size = self.content.get("size")
        return self.status != 304 and not (isinstance(size, int) and size > 0)


@dataclass(slots=True)
class _Site:
    """The requests of one origin that change its state, and how far they have been replayed."""

    changes: list[int] = field(default_factory=list)
    position: int = -1
    served: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def part(self, at: int) -> int:
        """Return how many changes precede an entry."""
        return bisect_right(self.changes, at)


class Archive:
    """The responses of a recording, found by method, address, body and order.

    A recording is divided, for every origin, by the requests that may change state (any but GET,
    HEAD and OPTIONS). A request is answered with a response recorded after the last change that
    was replayed, in their order, and the last of them is repeated; if there is none, with the
    closest earlier one, or else the next later one. Requests with a body are answered if the same
    body was recorded; boundaries of multipart bodies may differ.

    Args:
        path: a HAR, version 1.1 or 1.2.
        ignore: names of query parameters that may differ, such as ``_``; ``*`` for all.

    Raises:
        BadArchive: it is not a HAR, or it has no responses.
    """

    def __init__(self, path: Path, ignore: Sequence[str] = ()) -> None:
        self._ignore = frozenset(ignore)
        self._sites: defaultdict[str, _Site] = defaultdict(_Site)
        self._entries: defaultdict[tuple[str, str], list[_Entry]] = defaultdict(list)
        self.lacking: list[str] = []
        """Addresses whose responses were recorded without their bodies."""
        for at, found in enumerate(_read(path)):
            self._add(at, found)
        if not self._entries:
            raise BadArchive(f"{path} has no responses that can be replayed")

    def _add(self, at: int, found: Mapping[str, Any]) -> None:
        entry = _entry(at, found)
        if entry is None:
            return
        if not entry.usable:
            self.lacking.append(entry.url)
            return
        self._entries[entry.method, self._key(entry.url)].append(entry)
        if entry.method not in _SAFE:
            self._sites[_origin(entry.url)].changes.append(at)

    def _key(self, url: str) -> str:
        plain = url.partition("#")[0]
        if not self._ignore:
            return plain
        path, mark, query = plain.partition("?")
        if not mark or "*" in self._ignore:
            return path
        kept = [one for one in query.split("&") if one.partition("=")[0] not in self._ignore]
        return f"{path}?{'&'.join(kept)}"

    def progress(self) -> dict[str, Any]:
        """Return how far every origin has been replayed, as JSON values."""
        return {
            origin: [site.position, [[*key, count] for key, count in site.served.items()]]
            for origin, site in self._sites.items()
        }

    def resume(self, progress: Mapping[str, Any]) -> None:
        """Continue where :meth:`progress` was called."""
        for site in self._sites.values():
            site.position = -1
            site.served.clear()
        for origin, (position, served) in progress.items():
            site = self._sites[origin]
            site.position = position
            site.served.update({(method, url): count for method, url, count in served})

    def has(self, url: str) -> bool:
        """Whether a GET of an address was recorded."""
        return ("GET", self._key(url)) in self._entries

    def find(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        follow: bool = False,
    ) -> Recorded | None:
        """Return the response to a request; None if none was recorded.

        Args:
            method: in capitals.
            url: absolute; its fragment is ignored.
            headers: of the request, with names in lower case.
            body: of the request.
            follow: whether redirects are followed within the recording.

        Returns:
            The response. Cookies of redirects that were followed are added to it.
        """
        cookies: list[str] = []
        for _ in range(_MOST_HOPS):
            entry = self._choose(method, url, headers or {}, body)
            if entry is None:
                return None
            found = entry.recorded()
            if not (follow and found.location):
                break
            if "set-cookie" in found.headers and _origin(found.location) == _origin(url):
                cookies.append(found.headers["set-cookie"])
            url = found.location
            if found.status not in _KEEPS_METHOD and method != "HEAD":
                method, body = "GET", None
        else:
            return None
        if cookies:
            cookies += [found.headers["set-cookie"]] if "set-cookie" in found.headers else []
            found.headers["set-cookie"] = "\n".join(cookies)
        return found

    def _choose(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> _Entry | None:
        key = (method, self._key(url))
        found = _with_body(self._entries.get(key, ()), headers, body)
        if not found:
            return None
        most = max(_agreement(entry.asked, headers) for entry in found)
        found = [entry for entry in found if _agreement(entry.asked, headers) == most]
        site = self._sites[_origin(url)]
        if method not in _SAFE:
            later = [entry for entry in found if entry.at > site.position]
            chosen = later[0] if later else found[-1]
            site.position = chosen.at
            site.served.clear()
            return chosen
        part = site.part(site.position)
        now = [entry for entry in found if site.part(entry.at) == part]
        if now:
            nth = site.served[key]
            site.served[key] += 1
            return now[min(nth, len(now) - 1)]
        before = [entry for entry in found if site.part(entry.at) < part]
        return before[-1] if before else found[0]


def redirect_page(where: str) -> str:
    """Return a page that leads to an address, and takes no place in the history.

    An intercepted navigation can't be answered with a redirect, since the browser would request
    its target from the network.
    """
    target = json.dumps(where).replace("<", "\\u003c")
    return f"<!doctype html><title></title><script>location.replace({target})</script>"


def _read(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        whole = json.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
        entries = whole["log"]["entries"]
    except OSError as error:
        raise BadArchive(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadArchive(f"{path} is not a HAR: it has no log with entries") from error
    if not isinstance(entries, list):
        raise BadArchive(f"{path} is not a HAR: its entries are not a list")
    found = [one for one in entries if isinstance(one, dict)]
    return sorted(found, key=lambda one: str(one.get("startedDateTime", "")))


def _entry(at: int, found: Mapping[str, Any]) -> _Entry | None:
    """Return one entry; None if it lacks a part or is not of HTTP."""
    try:
        asked, answered = found["request"], found["response"]
        url = str(asked["url"]).partition("#")[0]
        if urlsplit(url).scheme not in {"http", "https"}:
            return None
        posted, content = asked.get("postData") or {}, answered.get("content") or {}
        sent = posted.get("text")
        return _Entry(
            at=at,
            method=str(asked["method"]).upper(),
            url=url,
            asked=dict(_headers(asked)),
            sent=None if sent is None else str(sent),
            status=max(0, int(answered["status"])),
            answered=_headers(answered),
            content=dict(content),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _headers(of: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(one["name"]).lower(), str(one["value"])) for one in of.get("headers") or ()]


def _decoded(content: Mapping[str, Any]) -> bytes:
    text = str(content.get("text") or "")
    if content.get("encoding") != "base64":
        return text.encode(errors="surrogatepass")
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""


def _with_body(
    entries: Sequence[_Entry], headers: Mapping[str, str], body: bytes | None
) -> list[_Entry]:
    """Return the entries whose request had this body, or of which no body was recorded."""
    if not body:
        return [entry for entry in entries if not entry.sent]
    sent = _without_boundary(body.decode(errors="replace"), headers)
    same = [
        entry
        for entry in entries
        if entry.sent and _without_boundary(entry.sent, entry.asked) == sent
    ]
    return same or [entry for entry in entries if entry.sent is None]


def _without_boundary(body: str, headers: Mapping[str, str]) -> str:
    found = _BOUNDARY.search(headers.get("content-type", ""))
    return body.replace(found[1], "") if found else body


def _agreement(one: Mapping[str, str], other: Mapping[str, str]) -> int:
    return sum(one.get(name) == other.get(name) for name in _NEGOTIATED)


def _origin(url: str) -> str:
    split = urlsplit(url)
    return f"{split.scheme}://{split.netloc}"
