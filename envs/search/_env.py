"""The search environment: questions over a corpus, answered with tools."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from trajgym.envs import Budgets, Env, ToolError, ToolResult, tool
from trajgym.envs.search._demo import tag_script, tool_script
from trajgym.envs.search._engine import Hit
from trajgym.envs.search._judge import Judge
from trajgym.envs.search._open import EngineConfig, release, shared_engine
from trajgym.envs.search._show import counter_for, show_document, show_hits
from trajgym.envs.search._state import SearchState
from trajgym.envs.search._tags import actions_of
from trajgym.envs.search._tasks import BUILTIN, SearchRecord, load_tasks
from trajgym.envs.search._text import words
from trajgym.trajectory import InvalidInput, Outcome, text_of
from trajgym.trajectory._internal import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.search._engine import SearchEngine
    from trajgym.trajectory import Message, Task

__all__ = ["Metric", "SearchEnv", "SearchEnvBase", "TagSearchEnv"]

Metric = Literal["em", "f1", "cover", "judge"]
_QUERY_CHARS = 1000
_MOST_CITATIONS = 50

_TOOL_PROMPT = """\
Answer the question with the help of the search tools. It may take several searches, each building \
on what the ones before have found. You have {budget}; several searches may go in one turn. When \
you know the answer, call answer with nothing but the answer itself: a name, a number, a date, or \
yes or no.{cite}

Question: {question}"""

_TAG_PROMPT = """\
Answer the question below. First think between <think> and </think>. Whenever you lack a fact, \
write a query between <search> and </search> and stop; what is found comes back between \
<information> and </information>. You have {budget}. When you know the answer, write nothing but \
the answer itself between <answer> and </answer>, for example <answer>Paris</answer>.{cite}

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
        searches: how many searches an attempt has; the number left is reported with every result.
        observation_tokens: maximum number of tokens of one result, as counted by ``tokenizer``.
        tokenizer: a ``tokenizer.json``; without one tokens are estimated, one per word.
        citations: ask for the documents that an answer rests on and show their ids; what an
            answer cites is scored in the outcome's details in any case.
        metric: which measure is the score: ``em``, ``f1``, ``cover``, or ``judge``.
        judge: settings of :class:`Judge`; required by the metric ``judge``; otherwise its verdict
            is only recorded.
        web: allow engines that ask the live web.
    """

    task_data = SearchRecord
    budgets: ClassVar[Budgets] = Budgets(turns=12, seconds=900.0, observation_bytes=32_000)
    prompt: ClassVar[str] = ""
    cite: ClassVar[str] = ""

    def __init__(
        self,
        *,
        engine: EngineConfig = BUILTIN,
        k: int = 3,
        searches: int = 8,
        observation_tokens: int = 800,
        tokenizer: str | None = None,
        citations: bool = False,
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
        self.citations = citations
        self.metric: Metric = metric
        self.judge: Judge | None = None if judge is None else Judge.model_validate(judge)
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
        """Open the engine once for all sessions.

        Raises:
            InvalidCorpus: the data of a task is not a search record.
        """
        for task in tasks:
            SearchRecord.of(task)
        env = cls(**config)
        await shared_engine(env._config, web=env._web)

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        """Release the engine."""
        env = cls(**config)
        engine = await shared_engine(env._config, web=env._web)
        await release(engine)
        await release(engine)  # once for open_run, once for this call

    async def reset(self, task: Task, seed: int | None) -> str:
        """Return the question with instructions."""
        del seed
        self._state = SearchState()
        await self._begin(task)
        budget = f"{self.searches} search{'' if self.searches == 1 else 'es'}"
        if limits := str(self.remaining):
            budget += f" ({limits})"
        cite = self.cite if self.citations else ""
        return self.prompt.format(budget=budget, question=self._task.question, cite=cite)

    async def snapshot(self) -> str:
        """Return the state; the corpus does not change, so it is all that a fork needs."""
        return self._state.to_json()

    async def restore(self, task: Task, seed: int | None, snapshot: str) -> None:
        """Continue from a state."""
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
        """Release the engine."""
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

    def _admit(self, query: str) -> str:
        """Use one search of the budget and return the query to send.

        Both protocols admit the searches of a message one by one: those within the budget are made,
            the others are refused.

        Raises:
            ToolError: a query without words, or no search is left.
        """
        asked = replace_surrogates(query).strip()[:_QUERY_CHARS]
        if not words(asked):
            raise ToolError("the query is empty; write words to search for")
        if self._state.searches >= self.searches:
            raise ToolError(f"{self._left()}; answer with what you know")
        self._state.searches += 1
        return asked

    def _left(self) -> str:
        left = self.searches - self._state.searches
        searches = f"{left or 'no'} search{'' if left == 1 else 'es'} left of {self.searches}"
        return ", ".join(filter(None, (searches, str(self.remaining))))

    def _result(self, text: str, hits: Sequence[Hit] = ()) -> ToolResult:
        self._state.show([hit.passage for hit in hits], self._task)
        return ToolResult(content=text, signals=self._state.signals(self._task))

    def _finish(self, answer: str, citations: Sequence[str] = ()) -> ToolResult:
        self._state.answer = replace_surrogates(answer).strip()
        cited = [
            replace_surrogates(name).strip().removeprefix("doc:").strip() for name in citations
        ]
        self._state.citations = list(dict.fromkeys(filter(None, cited)))[:_MOST_CITATIONS]
        return ToolResult(done=True, signals=self._state.signals(self._task))


class SearchEnv(SearchEnvBase):
    """Questions with the tools ``search``, ``open`` and ``answer``: id ``search``."""

    prompt: ClassVar[str] = _TOOL_PROMPT
    cite: ClassVar[str] = " Cite the documents that the answer rests on by their ids."

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
        asked = self._admit(query)
        left = self._left()
        hits = (await self._searched.search([asked], self.k))[0]
        shown = show_hits(hits, self.observation_tokens, self._counter, ids=True)
        return self._result(f"{shown or 'Nothing was found.'}\n[{left}]", hits)

    @tool
    async def open(self, doc: str, window: int = 1, section: str = "") -> ToolResult:
        """Read a document that a search has shown.

        Args:
            doc: what stands after "doc:" in a search result.
            window: which part of a long document or section, from 1.
            section: number or heading of one section, as a document with sections lists them.
        """
        passage = (await self._searched.get([replace_surrogates(doc).strip()]))[0]
        if passage is None:
            raise ToolError(
                f"there is no document {doc!r} that can be opened; take an id from a search result"
            )
        try:
            # A long text is cut into tokens in a thread: it may be a whole book.
            text = await asyncio.to_thread(
                show_document, passage, window, section, self.observation_tokens, self._counter
            )
        except LookupError as error:
            raise ToolError(str(error.args[0])) from error
        self._state.opened += 1
        return self._result(text, [Hit(passage, 0.0)])

    @tool
    async def answer(self, answer: str, citations: list[str] | None = None) -> ToolResult:
        """Give the final answer and end.

        Args:
            answer: nothing but the answer itself.
            citations: ids of the documents that the answer rests on.
        """
        return self._finish(answer, citations or [])

    async def respond(self, message: Message) -> ToolResult:
        """Remind an agent that wrote a message without a tool call."""
        del message
        return self._result(_NO_CALL)


class TagSearchEnv(SearchEnvBase):
    """Questions in free text, with tags instead of tools: id ``search-tags``.

    A message may hold several searches; their results come back in order. Text after an
    ``<information>`` that the model wrote itself is ignored, and so is text in ``<think>``.
    """

    prompt: ClassVar[str] = _TAG_PROMPT
    cite: ClassVar[str] = (
        " Inside it, name the documents that the answer rests on by their ids, for example "
        "<answer>Paris <cite>d12, d7</cite></answer>."
    )

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
            return self._finish(actions[0].text, actions[0].citations)
        # An answer after a search was written before the results of the search were read.
        queries = [action.text for action in actions if action.kind == "search"]
        admitted: list[str] = []
        blocks: list[str | None] = []  # None: replaced by the results of the search
        for query in queries:
            try:
                admitted.append(self._admit(query))
                blocks.append(None)
            except ToolError as error:
                blocks.append(f"Error: {error}")
        found = await self._searched.search(admitted, self.k) if admitted else []
        tokens = max(1, self.observation_tokens // max(1, len(found)))
        shown = iter(
            show_hits(hits, tokens, self._counter, ids=self.citations) or "Nothing was found."
            for hits in found
        )
        texts = [next(shown) if block is None else block for block in blocks]
        if admitted:
            texts[-1] += f"\n[{self._left()}]"
        text = "".join(_INFORMATION.format(block) for block in texts)
        return self._result(text, [hit for hits in found for hit in hits])
