"""Tasks in the format of WebArena's records, on sites that you host yourself."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trajgym.envs import TaskData, load_tasks
from trajgym.envs._records import read_records
from trajgym.envs.gui._errors import BadAction, ScreenEnded
from trajgym.envs.gui.browser._env import BrowserEnvBase
from trajgym.envs.gui.browser._sandbox import browser_spec
from trajgym.trajectory import InvalidInput, Outcome, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.sandbox import SandboxSpec

__all__ = ["WebArenaEnv", "WebArenaTasks", "webarena_tasks"]

_PLACE = re.compile(r"__[A-Z_]+__")
_SUPPORTED = {"string_match", "url_match", "program_html"}


class _Page(BaseModel):
    model_config = ConfigDict(extra="ignore")

    url: str
    locator: str = ""
    required_contents: dict[str, Any] = Field(default_factory=dict)


class _Eval(BaseModel):
    model_config = ConfigDict(extra="ignore")

    eval_types: list[str]
    reference_answers: dict[str, Any] | None = None
    reference_url: str | None = None
    program_html: list[_Page] | None = None
    url_note: str = "GOLD in PRED"


class WebArenaRecord(BaseModel):
    """The fields of a WebArena record that are used here; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    task_id: int | str
    intent: str
    start_url: str
    sites: list[str] = Field(default_factory=list)
    storage_state: str | None = None
    require_login: bool = False
    require_reset: bool = False
    eval: _Eval


class WebArenaTasks(NamedTuple):
    """The tasks that can run, and the reasons why the others can't."""

    tasks: list[Task]
    refused: dict[str, str]
    """By task id."""


def webarena_tasks(
    source: str, places: Mapping[str, str], *, storage: Mapping[str, Any] | None = None
) -> WebArenaTasks:
    """Read records in WebArena's shape.

    Args:
        source: a JSON or JSONL file of records.
        places: addresses of the sites, ``{"__SHOPPING__": "http://shop.example:7770"}``.
        storage: cookies and local storage of a logged-in user (what Playwright saves), for
            records that need a login.

    Returns:
        The tasks; records that need a judge model, a helper function of WebArena's own code, a
        login without ``storage``, or a site that ``places`` does not name, are refused by name.

    Raises:
        InvalidInput: the file can't be read, or a record lacks a field.
    """
    tasks: list[Task] = []
    refused: dict[str, str] = {}
    for found in read_records(source):
        raw = found.value
        record = _record(raw, found.where)
        name = f"webarena-{record.task_id}"
        reason = _refusal(record, places, storage)
        if reason:
            refused[name] = reason
            continue
        data = {
            "record": raw,
            "places": dict(places),
            "storage": dict(storage or {}) or None,
            # Sites are shared and keep state, so a replay would not give the same result.
            "replayable": False,
        }
        tasks.append(Task(id=name, data=data))
    return WebArenaTasks(tasks, refused)


def _record(raw: Mapping[str, Any], where: str) -> WebArenaRecord:
    try:
        return WebArenaRecord.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidInput(f"{where}: no WebArena record: {field}: {first['msg']}") from error


def _refusal(
    record: WebArenaRecord,
    places: Mapping[str, str],
    storage: Mapping[str, Any] | None,
) -> str:
    """Return why a record can't run here; empty if it can."""
    unknown = sorted(set(record.eval.eval_types) - _SUPPORTED)
    if unknown:
        return f"evaluation by {unknown[0]} is not supported"
    if "fuzzy_match" in (record.eval.reference_answers or {}):
        return "fuzzy_match needs a judge model"
    pages = record.eval.program_html or []
    if any("func:" in page.url + page.locator for page in pages):
        return "it calls a function of WebArena's own code"
    if (record.require_login or record.storage_state) and not storage:
        return "it needs a login; give storage"
    texts = [record.start_url, record.eval.reference_url or "", *(page.url for page in pages)]
    if nothing := _checks_nothing(record.eval):
        return nothing
    missing = sorted(set(_PLACE.findall(" ".join(texts))) - set(places))
    return f"no place was given for {missing[0]}" if missing else ""


class WebArenaData(TaskData):
    """The data of a task that :func:`webarena_tasks` made.

    Attributes:
        record: the record as it was published.
        places: where the sites lie, by their placeholders.
        storage: the state of a browser that is logged in; None without a login.
        replayable: False, as the sites are shared and remember.
    """

    record: dict[str, Any]
    places: dict[str, str]
    storage: dict[str, Any] | None = None
    replayable: bool = False

    @model_validator(mode="after")
    def _runs_here(self) -> Self:
        if reason := _refusal(_record(self.record, "record"), self.places, self.storage):
            raise ValueError(reason)
        return self


def _checks_nothing(wanted: _Eval) -> str:
    """Return which comparison of a record would hold for every attempt; empty if none would."""
    answers = wanted.reference_answers or {}
    if not wanted.eval_types:
        return "it checks nothing"
    if "string_match" in wanted.eval_types and not (
        answers.get("exact_match") or answers.get("must_include")
    ):
        return "string_match has no answer to compare with"
    if "url_match" in wanted.eval_types and not wanted.reference_url:
        return "url_match has no address to compare with"
    pages = wanted.program_html or []
    wants = [page.required_contents for page in pages]
    if "program_html" in wanted.eval_types and not (
        pages and all(want.get("exact_match") or want.get("must_include") for want in wants)
    ):
        return "program_html has no contents to compare with"
    return ""


class WebArenaEnv(BrowserEnvBase):
    """WebArena-shaped tasks: ``trajgym.envs.gui:WebArenaEnv``.

    Sites are outside the sandbox: ``allow`` names them, or the sandbox gets the network of the
        host. Forks are refused: the sites are shared. The official comparisons are made:
    ``exact_match`` and ``must_include`` of answers, the address, and what expressions find.

    Args:
        allow: the only places that pages may reach, ``host:port`` or ``host:port=target:port``:
            ``shopping.example:80=127.0.0.1:7770`` is a container with that port on this machine.
        own_sites: the library's sites to serve inside instead (then there is no network); for
            trying things out.
        options: see :class:`BrowserEnvBase`.
    """

    task_data = WebArenaData

    def __init__(
        self,
        *,
        allow: list[str] | None = None,
        own_sites: list[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.allow = allow or []
        self.own_sites = own_sites or []

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return the tasks of a file that :func:`webarena_tasks` made.

        Raises:
            InvalidInput: a task lacks a part, or can't run here.
        """
        return load_tasks(source, data=cls.task_data)

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """See :meth:`BrowserEnvBase.sandbox_spec`."""
        del task
        return browser_spec(
            image=self._image,
            memory=self._memory,
            network=not (self.own_sites or self.allow),
            allow=self.allow,
            labels=dict(self.labels),
        )

    def browser_options(self, task: Task) -> dict[str, Any]:
        """See :meth:`BrowserEnvBase.browser_options`."""
        return {**super().browser_options(task), "sites": self.own_sites}

    def storage_of(self, task: Task) -> Mapping[str, Any] | None:
        """See :meth:`BrowserEnvBase.storage_of`."""
        return WebArenaData.of(task).storage

    async def begin(self, task: Task, seed: int) -> str:
        """See :meth:`BrowserEnvBase.begin`."""
        del seed
        record = self.record
        first, *others = self._placed(record.start_url).split(" |AND| ")
        await self.browser.goto(first)
        for url in others:
            await self.browser.act([{"do": "new_tab"}])
            await self.browser.goto(url)
        del task
        return record.intent

    @property
    def record(self) -> WebArenaRecord:
        """The task's record."""
        assert self._task is not None
        return _record(WebArenaData.of(self._task).record, self._task.id)

    def _placed(self, text: str) -> str:
        assert self._task is not None
        places = WebArenaData.of(self._task).places
        return _PLACE.sub(lambda match: places[match[0]].rstrip("/"), text)

    async def verify(self) -> Outcome:
        """Evaluate the record's comparisons; all of them must hold."""
        wanted = self.record.eval
        try:
            url = (await self.browser.look()).url
        except ScreenEnded as error:  # no comparison holds once the browser has ended
            await self.still_runs(error, self.sandbox)
            return Outcome(score=0.0, passed=False, details={"held": {}, "ended": str(error)})
        held: dict[str, bool] = {}
        if "string_match" in wanted.eval_types:
            held["string_match"] = answer_matches(
                self.answer_given or "", wanted.reference_answers or {}
            )
        if "url_match" in wanted.eval_types:
            held["url_match"] = url_matches(url, self._placed(wanted.reference_url or ""))
        if "program_html" in wanted.eval_types:
            found = [await self._page_holds(page, url) for page in wanted.program_html or []]
            held["program_html"] = all(found)
        passed = all(held.values()) and not self.gave_up
        details = {"held": held, "answer": self.answer_given, "url": url}
        return Outcome(score=float(passed), passed=passed, details=details)

    async def _page_holds(self, page: _Page, last: str) -> bool:
        url = last if page.url == "last" else self._placed(page.url)
        expression = page.locator.removeprefix("lambda:") or "document.documentElement.outerHTML"
        try:
            found = await self.browser.evaluate(f"() => ({expression.strip()})", url)
        except BadAction:
            return False
        return contents_match(html.unescape(str(found or "")), page.required_contents)


def _clean(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def answer_matches(answer: str, wanted: Mapping[str, Any]) -> bool:
    """Compare an answer by ``exact_match`` and ``must_include``."""
    exact = wanted.get("exact_match")
    parts = [str(part) for part in wanted.get("must_include", ())]
    text = _clean(answer)
    if exact is not None and text != _clean(str(exact)):
        return False
    # A single short word must be a word of the answer: "0" is not in "10".
    if len(parts) == 1 and len(_clean(parts[0]).split()) == 1:
        return _clean(parts[0]) in re.findall(r"[\w.,:/@$%-]*[\w%]", text)
    return all(_clean(part) in text for part in parts)


def url_matches(found: str, wanted: str) -> bool:
    """Compare addresses: the wanted path must be in the one found, and so must its query."""
    return any(_url_matches(found, one) for one in wanted.split(" |OR| "))


def _url_matches(found: str, wanted: str) -> bool:
    here, there = urlsplit(found.rstrip("/")), urlsplit(wanted.rstrip("/"))
    if there.netloc + there.path not in here.netloc + here.path:
        return False
    query = parse_qs(here.query)
    return all(
        any(value in query.get(name, ()) for value in values)
        for name, values in parse_qs(there.query).items()
    )


def contents_match(found: str, wanted: Mapping[str, Any]) -> bool:
    """Compare what was found on a page by ``exact_match`` and ``must_include``."""
    exact = wanted.get("exact_match")
    if exact is not None and _clean(found) != _clean(str(exact)):
        return False
    return all(
        any(_clean(one) in found.lower() for one in str(part).split(" |OR| "))
        for part in wanted.get("must_include", ())
    )
