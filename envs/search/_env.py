"""The search environment: questions over a corpus, with tools."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from trajgym.envs import Budgets, Env, ToolError, ToolResult, tool
from trajgym.envs.search._demo import tag_script, tool_script
from trajgym.envs.search._engine import Hit
from trajgym.envs.search._judge import Judge
from trajgym.envs.search._open import EngineConfig, release, shared_engine
from trajgym.envs.search._show import counter_for, page_of, show_hits
from trajgym.envs.search._state import SearchState
from trajgym.envs.search._tags import actions_of
from trajgym.envs.search._tasks import BUILTIN, SearchRecord, load_tasks
from trajgym.envs.search._text import words
from trajgym.trajectory import InvalidInput, Outcome, replace_surrogates, text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from trajgym.envs.search._engine import SearchEngine
    from trajgym.trajectory import Message, Task

__all__ = ["Metric", "SearchEnv", "SearchEnvBase", "TagSearchEnv"]

Metric = Literal["em", "f1", "cover", "judge"]
_QUERY_CHARS = 1000

_TOOL_PROMPT = """\
Answer the question with the help of the search tools. It may take several searches, each building \
on what the ones before have found. You have {budget}; several searches may go in one turn. When \
you know the answer, call answer with nothing but the answer itself: a name, a number, a date, or \
yes or no.

Question: {question}"""

_TAG_PROMPT = """\
Answer the question below. First think between <think> and </think>. Whenever you lack a fact, \
write a query between <search> and </search> and stop; what is found comes back between \
<information> and </information>. You have {budget}. When you know the answer, write nothing but \
the answer itself between <answer> and </answer>, for example <answer>Paris</answer>.

Question: {question}"""

_NO_CALL = "That was no tool call. Call search or open to learn more, or answer to finish."
_NO_ACTION = (
    "That held no action. Write a query between <search> and </search>, or the final answer "
    "between <answer> and </answer>."
)
_INFORMATION = "\n\n<information>{}</information>\n\n"


class SearchEnvBase(Env):
    """What both protocols share: the engine, the search budget, verification.

    Args:
        engine: what is searched, see :func:`open_engine`.
        k: passages per search.
        searches: how many searches an attempt has; what is left is told with every result.
        observation_tokens: most tokens of one result, as counted by ``tokenizer``.
        tokenizer: a ``tokenizer.json``; without one tokens are estimated, one per word.
        metric: which measure is the score: ``em``, ``f1``, ``cover``, or ``judge``.
        judge: settings of :class:`Judge`; needed by the metric ``judge``, else only recorded.
        web: allow engines that ask the live web.
    """

    budgets: ClassVar[Budgets] = Budgets(turns=12, seconds=900.0, observation_bytes=32_000)
    prompt: ClassVar[str] = ""

    def __init__(
        self,
        *,
        engine: EngineConfig = BUILTIN,
        k: int = 3,
        searches: int = 8,
        observation_tokens: int = 800,
        tokenizer: str | None = None,
        metric: Metric = "em",
        judge: dict[str, Any] | None = None,
        web: bool = False,
    ) -> None:
        if min(k, searches, observation_tokens) < 1:
            raise InvalidInput("k, searches and observation_tokens must be positive")
        if metric not in get_args(Metric):
            raise InvalidInput(f"metric {metric!r}: use one of {get_args(Metric)}")
        if metric == "judge" and judge is None:
            raise InvalidInput("metric 'judge' needs the setting judge: base_url and model")
        self.k = k
        self.searches = searches
        self.observation_tokens = observation_tokens
        self.metric: Metric = metric
        self.judge = None if judge is None else Judge.model_validate(judge)
        self._config = engine
        self._web = web
        self._counter = counter_for(tokenizer)
        self._engine: SearchEngine | None = None
        self._record: SearchRecord | None = None
        self._state = SearchState()

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return search tasks; see :func:`trajgym.envs.search.load_tasks`."""
        return load_tasks(source)

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        """Open the engine once for all sessions."""
        del tasks
        env = cls(**config)
        await shared_engine(env._config, web=env._web)

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        """Give the engine back."""
        env = cls(**config)
        engine = await shared_engine(env._config, web=env._web)
        await release(engine)
        await release(engine)  # once for open_run, once for this call

    async def reset(self, task: Task, seed: int | None) -> str:
        """Return the question with how to go about it."""
        del seed
        self._state = SearchState()
        await self._begin(task)
        budget = f"{self.searches} search{'' if self.searches == 1 else 'es'}"
        if limits := str(self.remaining):
            budget += f" ({limits})"
        return self.prompt.format(budget=budget, question=self._task.question)

    async def snapshot(self) -> str:
        """Return the state: a corpus does not change, so forks are free."""
        return self._state.to_json()

    async def restore(self, task: Task, seed: int | None, snapshot: str) -> None:
        """Go on with a state."""
        del seed
        self._state = SearchState.from_json(snapshot)
        await self._begin(task)

    async def verify(self) -> Outcome:
        """Score the answer; EM, F1, cover and supporting-fact recall are in the details."""
        outcome = self._state.outcome(self._task, self.metric)
        if self.judge is None:
            return outcome
        answer = (self._state.answer or "").strip()
        accepted = bool(answer) and (
            outcome.details["em"] == 1.0 or await self.judge.accepts(self._task, answer)
        )
        details = {**outcome.details, "judge": float(accepted)}
        if self.metric != "judge":
            return Outcome(score=outcome.score, passed=outcome.passed, details=details)
        return Outcome(score=float(accepted), passed=accepted, details=details)

    async def close(self) -> None:
        """Give the engine back."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await release(engine)

    @property
    def _task(self) -> SearchRecord:
        if self._record is None:
            raise RuntimeError("no task: reset was not called")
        return self._record

    @property
    def _searched(self) -> SearchEngine:
        if self._engine is None:
            raise RuntimeError("no engine: reset was not called, or the environment is closed")
        return self._engine

    async def _begin(self, task: Task) -> None:
        self._record = SearchRecord.of(task)
        if self._engine is None:
            self._engine = await shared_engine(self._config, web=self._web)

    def _find(self, queries: Sequence[str]) -> Awaitable[list[list[Hit]]]:
        """Take searches from the budget and begin them.

        Raises:
            ToolError: a query without words, or no search is left.
        """
        asked = [replace_surrogates(query).strip()[:_QUERY_CHARS] for query in queries]
        for query in asked:
            if not words(query):
                raise ToolError("the query is empty; write words to search for")
        if self._state.searches + len(asked) > self.searches:
            raise ToolError(f"{self._left()}, {len(asked)} asked for; answer with what you know")
        self._state.searches += len(asked)
        return self._searched.search(asked, self.k)

    def _left(self) -> str:
        left = self.searches - self._state.searches
        searches = f"{left or 'no'} search{'' if left == 1 else 'es'} left of {self.searches}"
        return ", ".join(filter(None, (searches, str(self.remaining))))

    def _result(self, text: str, hits: Sequence[Hit] = ()) -> ToolResult:
        self._state.show([hit.passage for hit in hits], self._task)
        return ToolResult(content=text, signals=self._state.signals(self._task))

    def _finish(self, answer: str) -> ToolResult:
        self._state.answer = replace_surrogates(answer).strip()
        return ToolResult(done=True, signals=self._state.signals(self._task))


class SearchEnv(SearchEnvBase):
    """Questions with the tools ``search``, ``open`` and ``answer``: id ``search``."""

    prompt: ClassVar[str] = _TOOL_PROMPT

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return what a scripted searcher says; see :func:`tool_script`."""
        return tool_script(SearchRecord.of(task), sample)

    @tool(concurrent=True)
    async def search(self, query: str) -> ToolResult:
        """Find passages. Several calls may go in one turn.

        Args:
            query: a few words or a question.
        """
        finding = self._find([query])
        left = self._left()
        hits = (await finding)[0]
        shown = show_hits(hits, self.observation_tokens, self._counter, ids=True)
        return self._result(f"{shown or 'Nothing was found.'}\n[{left}]", hits)

    @tool
    async def open(self, doc: str, window: int = 1) -> ToolResult:
        """Read a document that a search has shown.

        Args:
            doc: what stands after "doc:" in a search result.
            window: which part of a long document, from 1.
        """
        passage = (await self._searched.get([replace_surrogates(doc).strip()]))[0]
        if passage is None:
            raise ToolError(f"there is no document {doc!r}; take an id from a search result")
        # A long text is cut into tokens in a thread: it may be a whole book.
        page = await asyncio.to_thread(
            page_of, passage.text, window, self.observation_tokens, self._counter
        )
        self._state.opened += 1
        text = f"{passage.title}\n{page.text}\n[window {page.number} of {page.pages}]"
        return self._result(text, [Hit(passage, 0.0)])

    @tool
    async def answer(self, answer: str) -> ToolResult:
        """Give the final answer and end.

        Args:
            answer: nothing but the answer itself.
        """
        return self._finish(answer)

    async def respond(self, message: Message) -> ToolResult:
        """Remind an agent that talks without calling a tool."""
        del message
        return self._result(_NO_CALL)


class TagSearchEnv(SearchEnvBase):
    """Questions in free text, with tags instead of tools: id ``search-tags``.

    A message may hold several searches; their results come back in order. What a model writes
    after an ``<information>`` of its own making is ignored, and so is what stands in ``<think>``.
    """

    prompt: ClassVar[str] = _TAG_PROMPT

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return what a scripted searcher says; see :func:`tag_script`."""
        return tag_script(SearchRecord.of(task), sample)

    async def respond(self, message: Message) -> ToolResult:
        """Carry out the searches of a message, or take its answer."""
        actions = actions_of(text_of(message))
        if not actions:
            return self._result(_NO_ACTION)
        if actions[0].kind == "answer":
            return self._finish(actions[0].text)
        # An answer behind a search was written without reading what the search finds.
        queries = [action.text for action in actions if action.kind == "search"]
        try:
            found = await self._find(queries)
        except ToolError as error:
            return self._result(_INFORMATION.format(f"Error: {error}"))
        tokens = max(1, self.observation_tokens // len(found))
        blocks = [
            show_hits(hits, tokens, self._counter, ids=False) or "Nothing was found."
            for hits in found
        ]
        blocks[-1] += f"\n[{self._left()}]"
        text = "".join(_INFORMATION.format(block) for block in blocks)
        return self._result(text, [hit for hits in found for hit in hits])
