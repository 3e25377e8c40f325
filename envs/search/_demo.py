"""Scripted searchers for demonstrations and tests: some solve the task, some fail on purpose."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajgym.envs.search._tasks import SearchRecord
    from trajgym.trajectory import Message

__all__ = ["tag_script", "tool_script"]

_STYLES = ("hop by hop", "guess", "slips, then solves", "stops half way", "all at once", "wordy")


def tool_script(record: SearchRecord, sample: int) -> list[Message]:
    """Return the assistant messages of one session with tools.

    The script is derived from the gold answers, which a real agent does not see. Samples 0, 2 and 4
    of every six solve the task (2 after malformed calls, 4 with all searches in one turn), 1
    guesses without a search, 3 stops after the first hop with that hop's answer, 5 wraps the right
    answer in words.
    """
    style, say = _STYLES[sample % len(_STYLES)], _Script()
    queries = _queries(record)
    if style == "slips, then solves":
        say.calls("Let me look.", ("find", {"query": queries[0]}))
        say.calls("With the right name.", ("search", '{"query": '))
    if style == "all at once":
        say.calls("Everything at once.", *(("search", {"query": query}) for query in queries))
    elif style != "guess":
        for query in queries[:1] if style == "stops half way" else queries:
            say.calls("I need a fact.", ("search", {"query": query}))
    if style == "hop by hop" and record.gold:
        say.calls("Let me read it in full.", ("open", {"doc": record.gold[-1]}))
    say.calls("I know enough.", ("answer", {"answer": _answer(record, style)}))
    return say.messages


def tag_script(record: SearchRecord, sample: int) -> list[Message]:
    """Return the assistant messages of one session in tags; the same styles."""
    style, say = _STYLES[sample % len(_STYLES)], _Script()
    queries = _queries(record)
    if style == "slips, then solves":
        say.calls("I should search for it.")
    if style == "all at once":
        say.calls("".join(f"<search>{query}</search>" for query in queries))
    elif style != "guess":
        for query in queries[:1] if style == "stops half way" else queries:
            say.calls(f"<think>I need a fact.</think><search>{query}</search>")
    say.calls(f"<think>I know enough.</think><answer>{_answer(record, style)}</answer>")
    return say.messages


def _queries(record: SearchRecord) -> list[str]:
    """Return one query per hop, with the answers of earlier hops in place of ``#1``."""
    queries: list[str] = []
    for hop in record.hops:
        query = hop.get("query") or hop["question"]
        for number, earlier in enumerate(record.hops, 1):
            query = query.replace(f"#{number}", earlier["answer"])
        queries.append(query)
    return queries or [record.question]


def _answer(record: SearchRecord, style: str) -> str:
    right = record.answers[0]
    if style == "guess":
        return "I do not know"
    if style == "stops half way" and record.hops:
        return record.hops[0]["answer"]
    return f"It must be {right}, as far as I can see" if style == "wordy" else right


class _Script:
    """Builds messages with numbered call ids."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._made = 0

    def calls(self, text: str, *calls: tuple[str, dict[str, Any] | str]) -> None:
        message: Message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [self._call(name, arguments) for name, arguments in calls]
        self.messages.append(message)

    def _call(self, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
        self._made += 1
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        function = {"name": name, "arguments": text}
        return {"id": f"call_{self._made}", "type": "function", "function": function}
