"""The browser's driver: runs inside the sandbox, with only Python and Playwright.

It is copied in as the package ``trajgym_driver`` and takes JSON lines on stdin, one request per
line: ``{"id": 1, "op": "act", ...}``; the answer is ``{"id": 1, "ok": true, ...}`` or
``{"id": 1, "ok": false, "error": "..."}``. Nothing here may import the rest of the library.
"""
