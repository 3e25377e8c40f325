"""Browser tasks: start page, instruction and verification."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import Field

from trajgym.envs import TaskData, load_tasks
from trajgym.envs.gui.browser._builtin import BUILTIN_TASKS
from trajgym.envs.gui.browser._goals import Condition  # noqa: TC001 - pydantic reads it
from trajgym.envs.gui.browser.inside._archive import Archive, BadArchive
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BrowserRecord", "load_browser_tasks"]

BUILTIN = "builtin"
SiteName: TypeAlias = Literal["shop", "mail", "wizard"]


class BrowserRecord(TaskData):
    """The :attr:`Task.data` of a browser task.

    Attributes:
        instruction: the instruction to the agent.
        start_url: the first page.
        sites: the built-in sites to serve, such as ``shop`` at ``http://shop.test/``.
        pages: files served at ``http://pages.test/``, ``{path: text}``.
        folders: folders of this machine to serve read-only at ``http://NAME.test/``, ``{name:
            path}``.
        allow: services that pages may reach without a network, as ``host:port`` or
            ``host:port=target:port``; ``wiki.example:80=127.0.0.1:8000`` maps a host name to a
            service on this machine.
        hosts: addresses of other host names inside the sandbox, ``{"wiki.example":
            "10.0.0.5:8000"}``.
        network: whether pages have the network access of the host.
        har: a recording of traffic (HAR) on this machine, from which the requests of pages are
            answered instead of by the network. A request gets the response that was recorded for
            its method, address and body; responses that changed over time are given in their
            order, as explained in the documentation.
        har_ignore: names of query parameters whose values may differ from the recorded ones, such
            as ``_``; ``*`` for all.
        checks: conditions on the final states of the sites, which must all hold.
        answer: the expected answer; case, differences in whitespace and final full stops are
            ignored.
        answer_includes: texts that the answer must contain.
        infeasible: whether giving up is the correct result.
        replayable: whether replaying the actions leads to the same state, as forks require. Set it
            to False if sites are shared with other sessions.
    """

    instruction: str = Field(min_length=1)
    start_url: str = "about:blank"
    sites: list[SiteName] = Field(default_factory=list)
    pages: dict[str, str] = Field(default_factory=dict)
    folders: dict[str, str] = Field(default_factory=dict)
    allow: list[str] = Field(default_factory=list)
    hosts: dict[str, str] = Field(default_factory=dict)
    network: bool = False
    har: str | None = None
    har_ignore: list[str] = Field(default_factory=list)
    checks: list[Condition] = Field(default_factory=list)
    answer: str | None = None
    answer_includes: list[str] = Field(default_factory=list)
    infeasible: bool = False
    replayable: bool = True

    @classmethod
    def of(cls, task: Task, where: str = "") -> Self:
        """Read a task; see :meth:`TaskData.of`.

        Raises:
            InvalidInput: it is not a valid browser task, or it has no check; the message names
                the field.
        """
        record = super().of(task, where)
        problem = record.problem()
        if problem:
            raise InvalidInput(f"{where}{': ' if where else ''}task {task.id!r}: {problem}")
        return record

    def problem(self) -> str:
        """Return what is wrong with this record; empty if it is valid."""
        asked = [text for text in (self.answer, *self.answer_includes) if text is not None]
        if any(not _plain(text) for text in asked):
            return "answer and answer_includes must not be empty: an empty answer would pass"
        if not (self.checks or asked or self.infeasible):
            return (
                "it checks nothing, so every attempt would pass: give checks, answer, "
                "answer_includes or infeasible"
            )
        taken = {*get_args(SiteName), "pages", "miniwob"}
        for name, path in self.folders.items():
            if name in taken or not re.fullmatch(r"[a-z0-9-]+", name):
                return f"the folder name {name!r} must consist of a-z, 0-9 and -, and not be a site"
            if not Path(path).is_dir():
                return f"there is no folder {path!r}"
        if self.network and self.allow:
            return "allow and network exclude each other: allow is for pages without a network"
        if self.har is not None:
            if self.network or self.allow:
                return "har excludes network and allow: every request is answered from it"
            try:
                archive = _archive(self.har, Path(self.har).stat().st_mtime, *self.har_ignore)
            except (BadArchive, OSError) as error:
                return f"har: {error}"
            host = urlsplit(self.start_url).hostname or ""
            own = host.endswith(".test") or host in self.hosts or not host
            if not own and not archive.has(self.start_url):
                return f"har has no response for start_url {self.start_url!r}"
        elif self.har_ignore:
            return "har_ignore is given without har"
        served = {*self.sites, *(["pages"] if self.pages else [])}
        missing = [check.site for check in self.checks if check.site not in served]
        if missing:
            return f"a check refers to the site {missing[0]!r}, which is not served"
        return ""

    def said(self, answer: str) -> bool:
        """Return whether an answer is the expected one; True if the task expects none."""
        plain = _plain(answer)
        exact = self.answer is None or plain == _plain(self.answer)
        return exact and all(_plain(part) in plain for part in self.answer_includes)


@lru_cache(maxsize=8)
def _archive(path: str, changed: float, *ignore: str) -> Archive:
    """Return a recording; read once for all tasks that name it."""
    del changed
    return Archive(Path(path), ignore)


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".")


def load_browser_tasks(source: str) -> list[Task]:
    """Return browser tasks.

    Args:
        source: ``builtin``, names of built-in tasks separated by commas, or a file of tasks.

    Raises:
        InvalidInput: there is no such task or file, or a task is malformed.
    """
    names = list(BUILTIN_TASKS) if source == BUILTIN else source.split(",")
    if all(name in BUILTIN_TASKS for name in names):
        return [Task(id=name, data=BUILTIN_TASKS[name]) for name in names]
    return load_tasks(source, data=BrowserRecord)
