"""The sandbox of a browser, and what is mounted where inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trajgym.envs.sandbox import Limits, SandboxSpec
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "BROWSER_IMAGE",
    "FOLDERS_INSIDE",
    "INSIDE",
    "MINIWOB_INSIDE",
    "browser_spec",
    "miniwob_html",
]

BROWSER_IMAGE = "trajgym/browser:bookworm"
INSIDE = "/opt/trajgym/driver"
MINIWOB_INSIDE = "/opt/trajgym/miniwob"
FOLDERS_INSIDE = "/opt/trajgym/sites"
_SOURCE = Path(__file__).with_name("inside")
_MIB = 1 << 20


def miniwob_html() -> Path:
    """Return the folder of MiniWoB++'s pages.

    Raises:
        MissingExtra: the package ``miniwob`` is not installed.
    """
    from importlib.util import find_spec

    found = find_spec("miniwob")  # importing it would load Selenium
    if found is None or found.origin is None:
        raise MissingExtra("miniwob", "gui")
    return Path(found.origin).with_name("html")


def browser_spec(
    *,
    image: str = BROWSER_IMAGE,
    memory: int = 1536,
    network: bool = False,
    miniwob: bool = False,
    allow: Sequence[str] = (),
    folders: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> SandboxSpec:
    """Return the sandbox that a :class:`Browser` needs.

    Args:
        image: with Chromium and Playwright; ``scripts/gui-image.sh`` makes it.
        memory: MiB for everything inside.
        network: whether pages may reach what the host can reach.
        miniwob: whether MiniWoB++'s pages are mounted.
        allow: the addresses that pages may reach without a network; see :class:`SandboxSpec`.
        folders: of this machine that are served at ``http://NAME.test/``, ``{name: path}``.
        labels: see :class:`SandboxSpec`.
    """
    readonly = {f"{INSIDE}/trajgym_driver": _SOURCE}
    if miniwob:
        readonly[MINIWOB_INSIDE] = miniwob_html()
    for name, path in (folders or {}).items():
        readonly[f"{FOLDERS_INSIDE}/{name}"] = Path(path).resolve()
    return SandboxSpec(
        image=image,
        readonly=readonly,
        network=network,
        allow=list(allow),
        labels=labels or {},
        limits=Limits(memory=memory * _MIB, pids=1024, cpus=2.0),
    )
