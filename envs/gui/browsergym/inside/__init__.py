"""The driver of BrowserGym: runs inside the sandbox, with only BrowserGym's own packages.

It is copied in as the package ``trajgym_browsergym`` and takes JSON lines on stdin, one request per
line. Nothing here may import the rest of the library.
"""
