"""Server of pages on which waiting is difficult, on ``127.0.0.1:8099``; see ``bench_gui.py``."""

from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUTTON = (
    "<button style='position:absolute;left:20px;top:20px;width:200px;height:40px' "
    'onclick="{0}">Go</button>'
)
LINK = (
    "<a style='position:absolute;left:20px;top:20px;width:200px;height:40px;background:#ddd' "
    'href="{0}">Go</a>'
)
FRAMES = "<iframe></iframe><iframe src='about:blank'></iframe><iframe srcdoc='<p>hi'></iframe>"
PAGES = {
    "quiet": BUTTON.format("document.title = 1"),
    "hash-link": LINK.format("#x"),
    "script-link": LINK.format("javascript:void(document.title = 1)"),
    "set-hash": BUTTON.format("location.hash = Math.random()"),
    "push-state": BUTTON.format("history.pushState({}, '', '?' + Math.random())"),
    "empty-frames": FRAMES + BUTTON.format("document.title = 1"),
    "new-empty-frame": BUTTON.format("document.body.append(document.createElement('iframe'))"),
    "unread-fetch": "<script>fetch('/big')</script>" + BUTTON.format("document.title = 1"),
    "unread-fetch-each": BUTTON.format("fetch('/big?' + Math.random())"),
    "fetch": BUTTON.format("fetch('/text').then(r => r.text()).then(t => document.title = t)"),
    "slow-fetch": BUTTON.format("fetch('/slow').then(r => r.text()).then(t => document.title = t)"),
    "unanswered-fetch": "<script>fetch('/never')</script>" + BUTTON.format("document.title = 1"),
    "polling": "<script>setInterval(() => fetch('/text'), 50)</script>"
    + BUTTON.format("document.title = 1"),
    "link": LINK.format("/quiet"),
    "no-content": LINK.format("/nothing"),
    "event-source": "<script>new EventSource('/never')</script>"
    + BUTTON.format("document.title = 1"),
    "script-redirect": "<script>location = '/script-redirect?' + Math.random()</script>",
    "http-redirect": "",
    "huge": BUTTON.format("document.title = 1")
    + "<div style='margin-top:80px'>"
    + "".join(f"<p><a href='#{n}'>Item {n}</a> <span>text {n}</span>" for n in range(5000)),
    "no-such-page": "<h1>Not found</h1>",
}

ENDLESS = {
    "script-reload": "<p>reloads<script>location.reload()</script>",
    "script-replace": "<script>location.replace('/script-replace?' + Math.random())</script>",
    "two-pages": "<p>one<script>setTimeout(() => location = '/two-pages-back')</script>",
    "two-pages-back": "<p>two<script>setTimeout(() => location = '/two-pages')</script>",
    "meta-refresh": "<meta http-equiv=refresh content=0><p>refreshes",
    "submitted-form": "<form action=/submitted-form><input name=a value=1></form>"
    "<script>document.forms[0].submit()</script>",
    "after-load": "<p>waits<script>onload = () => location.reload()</script>",
    "one-frame": '<iframe srcdoc="<script>parent.location.reload()</script>"></iframe>',
    "new-addresses": "<script>setInterval(() => history.pushState({}, '', '?' + Math.random()), 1)"
    "</script>",
    "new-hashes": "<script>setInterval(() => location.hash = Math.random(), 1)</script>",
    "frame-reloads": "<iframe srcdoc='<script>location.reload()</script>'></iframe>",
    "redirected": "",
    "redirected-in-turn": "<script>location = '/redirected-once?' + Math.random()</script>",
    "slow-reload": "<p>reloads<script>setTimeout(() => location.reload(), 300)</script>",
}
"""Pages that load themselves, or one another, without end."""
LARGE = {
    "elements-20000": BUTTON.format("document.title = 1")
    + "<div style='margin-top:80px'>"
    + "".join(f"<p><a href='#{n}'>Item {n}</a> <span>{n}</span>" for n in range(6667)),
    "elements-20000-deep": "<div>" * 300 + "<button>Go</button>" * 19_700 + "</div>" * 300,
    "elements-20000-in-view": "<style>i{float:left;width:6px;height:6px}</style>"
    + "<i onclick=1></i>" * 20_000,
}
"""Pages with 20,000 elements."""
STATUS = {
    "nothing": 204,
    "no-such-page": 404,
    **dict.fromkeys(("http-redirect", "redirected", "redirected-once"), 302),
}
TARGETS = {
    "http-redirect": "/http-redirect?{}",
    "redirected": "/redirected?{}",
    "redirected-once": "/redirected-in-turn?{}",
}
ALL = {**PAGES, **ENDLESS, **LARGE}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        del args

    def do_GET(self) -> None:
        name = self.path.split("?")[0].strip("/")
        if name == "never":
            time.sleep(600)
            return
        if name == "slow":
            time.sleep(0.3)
        status = STATUS.get(name, 200)
        body = ALL.get(name, "done").encode()
        if name == "big":
            body = b"x" * (8 << 20)  # more than the browser buffers for a body that is never read
        kind = "text/html" if name in ALL else "text/plain"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 302:
            self.send_header("Location", TARGETS[name].format(time.time()))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 8099), Handler)
    print("ready", flush=True)
    server.serve_forever()
