"""The desktop's driver: runs inside the sandbox, with Python, python-xlib, mss and Pillow.

It is copied in as the package ``trajgym_desktop`` and takes JSON lines on stdin, one request per
line: ``{"id": 1, "op": "act", ...}``; the answer is ``{"id": 1, "ok": true, ...}`` or ``{"id": 1,
"ok": false, "error": "...", "kind": "refused"}`` (or ``gone``: the screen, ``broken``: the driver).
Nothing here may import the rest of the library.
"""
