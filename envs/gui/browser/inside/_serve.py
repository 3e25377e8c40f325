"""Sites inside the sandbox: one server on the loopback interface, selected by host name."""

from __future__ import annotations

import mimetypes
import threading
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Answer", "Asked", "Files", "Pages", "Server", "Site", "page", "redirect"]

_MAX_BODY = 8 << 20


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    form: dict[str, str] = field(default_factory=dict)
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Uploads: ``{field: (file name, content)}``."""


@dataclass
class Answer:
    """The response of a site."""

    body: str | bytes = ""
    status: int = 200
    kind: str = "text/html; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)


def redirect(where: str) -> Answer:
    """Redirect after a POST, so that going back does not repeat it."""
    return Answer(status=303, headers={"Location": where})


_STYLE = """
body { font: 15px 'Liberation Sans', sans-serif; margin: 0; color: #222; background: #fff; }
header { background: #24445c; color: #fff; padding: 10px 20px; }
header a { color: #fff; margin-right: 16px; }
main { padding: 16px 20px; max-width: 900px; }
table { border-collapse: collapse; } td, th { padding: 6px 12px 6px 0; text-align: left; }
label { display: block; margin: 8px 0; } .error { color: #a00; } .muted { color: #666; }
button { font: inherit; padding: 4px 12px; } input, select, textarea { font: inherit; }
.unread { font-weight: bold; }
"""


def page(title: str, head: str, body: str) -> Answer:
    """Return a page of a built-in site; ``head`` and ``body`` are HTML."""
    return Answer(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style><header>{head}</header><main>{body}</main></html>"
    )


class Site:
    """A site with a state that verification reads; ``state`` holds JSON values only."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def answer(self, asked: Asked) -> Answer:
        """Answer a request."""
        raise NotImplementedError


class Files(Site):
    """A folder, read-only."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder.resolve()

    def answer(self, asked: Asked) -> Answer:
        """See :meth:`Site.answer`."""
        path = (self._folder / unquote(asked.path).lstrip("/")).resolve()
        if path.is_dir():
            path /= "index.html"
        if not path.is_relative_to(self._folder) or not path.is_file():
            return Answer("not found", 404)
        return Answer(path.read_bytes(), kind=_kind(path.name))


class Pages(Site):
    """Pages of a task: ``{path: text}``; posted forms are recorded in the state."""

    def __init__(self, files: dict[str, str]) -> None:
        super().__init__()
        self._files = {name.lstrip("/"): text for name, text in files.items()}
        self.state = {"posted": []}

    def answer(self, asked: Asked) -> Answer:
        """See :meth:`Site.answer`."""
        name = unquote(asked.path).lstrip("/") or "index.html"
        if asked.method == "POST":
            self.state["posted"].append({"path": name, **asked.form})
            return redirect(asked.path)
        if name not in self._files:
            return Answer("not found", 404)
        kind = _kind(name) if "." in name else "text/html; charset=utf-8"
        return Answer(self._files[name], kind=kind)


def _kind(name: str) -> str:
    found = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{found}; charset=utf-8" if found.startswith("text/") else found


class Server:
    """Serves sites on a port of the loopback interface."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites = sites
        self.lock = threading.Lock()
        server = self
        handler = type("Handler", (_Handler,), {"server_of_sites": server})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.address = f"127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def answer(self, host: str, asked: Asked) -> Answer:
        """Answer a request for a host; one at a time, so that states stay consistent."""
        site = self.sites.get(host)
        if site is None:
            return Answer("no such site", 404)
        if asked.path == "/favicon.ico":
            return Answer(status=204)
        with self.lock:
            return site.answer(asked)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_sites: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        del format, args

    def do_GET(self) -> None:
        self._answer({}, {})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        if size > _MAX_BODY:
            self.close_connection = True
            self._send(Answer("too large", 413))
            return
        body = self.rfile.read(size)
        kind = self.headers.get("Content-Type", "")
        if kind.startswith("multipart/form-data"):
            self._answer(*_multipart(kind, body))
        else:
            self._answer(_flat(body.decode(errors="replace")), {})

    def _answer(self, form: dict[str, str], files: dict[str, tuple[str, bytes]]) -> None:
        split = urlsplit(self.path)
        asked = Asked(self.command, split.path, _flat(split.query), form, files)
        host = self.headers.get("Host", "").split(":")[0]
        try:
            answer = self.server_of_sites.answer(host, asked)
        except Exception as error:  # noqa: BLE001 - boundary: a site must not end the server
            answer = Answer(f"{type(error).__name__}", 500)
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        self.send_response(answer.status)
        headers = {"Cache-Control": "no-store", "Content-Type": answer.kind, **answer.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _flat(text: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}


def _multipart(kind: str, body: bytes) -> tuple[dict[str, str], dict[str, tuple[str, bytes]]]:
    from email.parser import BytesParser
    from email.policy import HTTP

    whole = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    form: dict[str, str] = {}
    files: dict[str, tuple[str, bytes]] = {}
    for part in whole.iter_parts():
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        content = payload if isinstance(payload, bytes) else b""
        file = part.get_filename()
        if file:
            files[str(name)] = (file, content)
        elif file is None:
            form[str(name)] = content.decode(errors="replace")
    return form, files
