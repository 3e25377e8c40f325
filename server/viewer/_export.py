"""A session as one HTML file, with the page and all its data inside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from trajgym.server.viewer._page import page_files
from trajgym.server.viewer._session import describe_session
from trajgym.server.viewer._tokens import describe_tokens
from trajgym.server.viewer._values import describe_derivers, group_of, values_of
from trajgym.trajectory import InvalidInput, blob_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trajgym.server.viewer._tokens import Decode
    from trajgym.trajectory import Run, SessionTree

__all__ = ["export_session"]

_USUAL = ("outcome", "grpo", "gigpo")
_LONGEST = 200_000
"""Longest text (characters) that a file holds whole."""
_IMPORT = re.compile(r'^import\s+(?:\{[^}]*\}\s+from\s+)?"\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=const|function|async|class|let)", re.MULTILINE)
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def export_session(
    run: Run, session: str, *, derivers: Sequence[str] = (), decode: Decode | None = None
) -> str:
    """Return a session as an HTML page that needs no server and no network.

    It has the viewer's conversation, tree, rewards and tokens. Its content security policy permits
    its own script only, and no connection.

    Args:
        run: the run that it is from.
        session: id of the session.
        derivers: whose values the page has; some usual ones if none is named.
        decode: gives the text of token ids.

    Raises:
        InvalidInput: there is no such session.
    """
    tree = run.session(session)
    group, trees = group_of(run, tree)
    names = list(derivers or _USUAL)
    shown = {one["name"]: one for one in describe_derivers()}
    document = {
        "session": describe_session(run, tree, longest=_LONGEST),
        "overview": {"name": run.path.resolve().name, "texts": decode is not None},
        "values": values_of(group, trees, [session], names),
        "derivers": [shown[name] for name in names if name in shown],
        "tokens": [describe_tokens(tree, turn.index, decode) for turn in tree.turns],
        "images": dict(_images(run, tree)),
    }
    return _page(tree.record.task, document)


def _images(run: Run, tree: SessionTree) -> Iterator[tuple[str, str]]:
    messages = [m for turn in tree.turns for m in (*turn.context, *turn.observation, turn.message)]
    for name in dict.fromkeys(blob_hashes(messages)):
        try:
            data, media_type = run.blob(name)
        except InvalidInput:
            continue  # the page says that it is not there
        if media_type in _IMAGES:
            yield name, f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _page(title: str, document: dict[str, Any]) -> str:
    script = _one_script("main.js")
    style = page_files()["style.css"].data.decode()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    # Nothing in the data can end its element: no "<" is left in it.
    data = json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    name = title.replace("&", "&amp;").replace("<", "&lt;")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name} · trajgym</title>\n<style>{style}</style>\n</head>\n<body>\n"
        "<noscript>This page needs JavaScript.</noscript>\n"
        f'<script type="application/json" id="embedded">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _one_script(name: str) -> str:
    """Return a module of the page with all that it imports, in one scope, dependencies first.

    The modules import by name from each other only, and no name is used at the top of two.
    """
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in texts:
            return
        texts[name] = ""
        source = page_files()[name].data.decode()
        for wanted in _IMPORT.findall(source):
            add(wanted)
        del texts[name]
        texts[name] = _EXPORT.sub("", _IMPORT.sub("", source))

    add(name)
    return "\n".join(texts.values())
