"""Rules C, W, S, T and O: where a call belongs in the session tree.

Pure functions over canonical atoms: :func:`place` changes nothing. No call is dropped, and none is
joined because of mere similarity.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trajgym.server.joining._atoms import leading_system, squeeze, text_parts
from trajgym.server.joining._seen import Placement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.server.joining._seen import Known, Request, Seen

__all__ = ["kept_of", "place"]

_LONG = 24
"""Shortest text, in characters, that counts as evidence; shorter ones match by chance."""
_SUMMARY = re.compile(r"<summary>(.*?)</summary>", re.S)


def place(known: Known, request: Request) -> Placement:
    """Return where a request belongs among the earlier calls."""
    found = (
        _previous(request)
        or _sibling(known, request)
        or _continued(known, request)
        or _edited(known, request)
        or _by_evidence(known, request)
        or _compacted(known, request)
        or _spawned(known, request)
        or _root(known, request)
    )
    if found.base is None or found.edge == "spawn":
        return found
    return found._replace(returns=tuple(_returning(known, request, found)))


def kept_of(base: Seen, request: Request) -> int | None:
    """Return how many leading messages of the base's conversation a request keeps; None for all."""
    whole = (*base.prints, base.print)
    shared = 0
    for one, other in zip(whole, request.prints, strict=False):
        if one != other:
            break
        shared += 1
    return None if shared == len(whole) else shared


# C ----------------------------------------------------------------------------------------


def _previous(request: Request) -> Placement | None:
    """``previous_response_id``: the client names the base."""
    base = request.previous
    if base is None:
        return None
    if base.followed:
        return Placement(base, "rewrite", "C:fork", base.agent)
    return Placement(base, "continue", "C:previous", base.agent)


def _sibling(known: Known, request: Request) -> Placement | None:
    """The same conversation again: another sample, a sibling of the first."""
    for seen in reversed(known.by_prompt.get(request.chain[-1], ())):
        if seen.head == request.head and _same_agent(request, known, seen):
            caller = seen.caller if seen.edge == "spawn" else ""
            agent = known.fresh_agent() if seen.edge == "spawn" else seen.agent
            if seen.edge == "spawn" and seen.parent is not None:
                caller = _free_caller(seen.parent, request) or caller
            return Placement(seen.parent, seen.edge, "R5:sibling", agent, caller=caller)
    return None


def _same_agent(request: Request, known: Known, seen: Seen) -> bool:
    own = request.hints.get("agent")
    return own is None or known.named.get(own, seen.agent) == seen.agent


def _continued(known: Known, request: Request) -> Placement | None:
    """The longest known prompt that is followed by its answer."""
    for size in range(len(request.atoms), -1, -1):
        fitting = [
            (_echo(seen, request), seen.head == request.head, not seen.followed, seen.number, seen)
            for seen in known.by_prompt.get(request.chain[size], ())
            if seen.answered and size < len(request.atoms)
        ]
        fitting = [one for one in fitting if one[0]]
        if fitting:
            echo, _, _, _, seen = max(fitting)
            if later := _descendant(known, request, seen):
                return _masked(known, request, later)
            if dropped := _dropped_after(known, request, seen):
                return Placement(dropped, "rewrite", "W2:dropped", dropped.agent)
            if echo == 2:
                return Placement(seen, "continue", "C", seen.agent)
            return Placement(seen, "rewrite", "C2:echo-edited", seen.agent)
    return None


def _echo(seen: Seen, request: Request) -> int:
    """Return 2 if the answer follows unchanged, 1 if its call ids do, 0 otherwise."""
    end = seen.size + len(seen.reply)
    if seen.reply and end <= len(request.atoms) and request.chain[end] == seen.echo:
        return 2
    ids = seen.call_ids
    if ids:
        there = {atom.id for atom in request.atoms[seen.size :] if atom.kind == "call"}
        if set(ids) <= there:
            return 1
    return 0


def _descendant(known: Known, request: Request, seen: Seen) -> Seen | None:
    """Return the latest later call of the same agent whose ids are in the request."""
    latest = None
    for atom in request.atoms[seen.size + len(seen.reply) :]:
        found = known.by_call_id.get(atom.id) if atom.kind in {"call", "result"} else None
        if found is not None and found.number > seen.number and found.agent == seen.agent:
            latest = found if latest is None or found.number > latest.number else latest
    return latest


def _dropped_after(known: Known, request: Request, seen: Seen) -> Seen | None:
    """Return the agent's last call if the request has its prompt but not its answer.

    The request then reacts to that answer (a format error), although the longest answer that it
    repeats is an earlier call's.
    """
    last = known.agents.get(seen.agent)
    if last is None or last is seen or last.followed or last.head != request.head:
        return None
    longer = seen.size + len(seen.reply) < last.size < len(request.atoms)
    return last if longer and request.chain[last.size] == last.prompt else None


# W ----------------------------------------------------------------------------------------


def _edited(known: Known, request: Request) -> Placement | None:
    """A known prompt, followed by a changed answer or by none."""
    for size in range(len(request.atoms) - 1, 0, -1):
        there = [
            s
            for s in known.by_prompt.get(request.chain[size], ())
            if s.answered and _same_agent(request, known, s)
        ]
        if not there:
            continue
        changed = request.atoms[size].role == "assistant"
        there.sort(key=lambda s: (s.head == request.head, _likeness(s, request), s.number))
        best = there[-1]
        if changed and (best.head == request.head or best.tools == request.tools):
            summary = _summary_in(known, request, best)
            return Placement(best, "rewrite", "W1:echo-edited", best.agent, summary=summary)
        if not changed and best.head == request.head:
            compacted = _compacted(known, request)
            return compacted or Placement(best, "rewrite", "W2:dropped", best.agent)
    return None


def _likeness(seen: Seen, request: Request) -> int:
    """Return whether the request still contains the beginning of this call's answer."""
    if not seen.said:
        return 0
    said = seen.said[:_LONG]
    return any(
        said in squeeze(text)
        for message in request.messages
        if message.get("role") == "assistant"
        for text in text_parts(message)
    )


def _by_evidence(known: Known, request: Request) -> Placement | None:
    """Call ids, signatures or whole texts of an earlier conversation."""
    found: list[Seen] = []
    for atom in request.atoms:
        if atom.kind in {"call", "result"} and atom.id in known.by_call_id:
            found.append(known.by_call_id[atom.id])
        elif atom.kind == "text" and atom.role == "assistant" and _is_long(atom.key):
            seen = known.by_text.get(atom.key)
            if seen is not None:
                found.append(seen)
    found += [known.by_name[s] for s in request.signatures if s in known.by_name]
    if not found:
        return None
    return _masked(known, request, max(found, key=lambda seen: seen.number))


def _masked(known: Known, request: Request, base: Seen) -> Placement:
    summary = _summary_in(known, request, base)
    return Placement(base, "rewrite", "W3:masked", base.agent, summary=summary)


def _is_long(key: object) -> bool:
    return isinstance(key, int) or (isinstance(key, str) and len(key) >= _LONG)


def _compacted(known: Known, request: Request) -> Placement | None:
    """A new conversation that contains the text of an earlier answer: a summary."""
    for summary in _summaries_in(known, request):
        for base in reversed(known.calls):
            alike = base.head == request.head or (request.tools and base.tools == request.tools)
            if base is not summary and base.answered and alike and not base.summary:
                return Placement(base, "rewrite", "W4:compaction", base.agent, summary=summary)
    return None


def _summary_in(known: Known, request: Request, base: Seen) -> Seen | None:
    """Return a call outside the base's conversation whose text the request contains."""
    found = (seen for seen in _summaries_in(known, request) if seen is not base)
    return next(found, None)


def _summaries_in(known: Known, request: Request) -> Iterable[Seen]:
    """Yield calls without a continuation whose text the request contains, latest first."""
    texts: list[str] | None = None
    for seen in reversed(known.calls):
        if seen.calls or seen.heirs or not seen.answered or _is_sub_agents(seen):
            continue
        for text in _summaries(seen):
            texts = _given_texts(request) if texts is None else texts
            if _holds(texts, text):
                yield seen
                break


def _is_sub_agents(seen: Seen) -> bool:
    link: Seen | None = seen
    while link is not None:
        if link.edge == "spawn":
            return True
        link = link.parent
    return False


def _summaries(seen: Seen) -> Iterable[str]:
    if len(seen.said) >= _LONG:
        yield seen.said
    for inner in _SUMMARY.findall(seen.said) if "<summary>" in seen.said else ():
        if len(text := squeeze(inner)) >= _LONG:
            yield text


def _given_texts(request: Request, start: int = 0) -> list[str]:
    start = max(start, leading_system(request.messages))
    return [
        squeeze(text)
        for message in request.messages[start:]
        if message.get("role") != "assistant"
        for text in text_parts(message)
    ]


def _holds(texts: Iterable[str], part: str) -> bool:
    return any(part in text for text in texts)


# S ----------------------------------------------------------------------------------------


def _spawned(known: Known, request: Request) -> Placement | None:
    """The first call of a sub-agent."""
    hint, parent = request.hints.get("agent"), request.hints.get("parent_agent")
    texts = [text for text in _given_texts(request) if text]
    if hint or parent:
        base = _by_hint(known, hint, parent)
        if base is not None:
            # An asynchronous sub-agent may begin after its parent has gone on.
            asked = _asking(known, texts, base.agent)
            base, caller = asked or (base, "")
            free = hint and hint != "main" and hint not in known.agents
            name = hint if hint and free else known.fresh_agent()
            return Placement(base, "spawn", "S1:header", name, caller=caller)
    if asked := _asking(known, texts):
        return Placement(asked[0], "spawn", "S2:argument", known.fresh_agent(), caller=asked[1])
    return _inferred(known, request)


def _asking(known: Known, texts: list[str], agent: str | None = None) -> tuple[Seen, str] | None:
    """Return the latest call whose string argument opens a conversation, and its tool call's id.

    With ``agent``, only among that agent's calls.
    """
    for seen in reversed(known.calls):
        if agent is not None and seen.agent != agent:
            continue
        found = _argument_in(seen, texts, whole=bool(seen.heirs))
        if found is not None and not _reads_others(known, seen, texts):
            return seen, found
    return None


def _by_hint(known: Known, hint: str | None, parent: str | None) -> Seen | None:
    if hint in known.named:
        return None
    if parent is not None:
        owner = known.named.get(parent)
        return known.agents.get(owner) if owner else known.agents.get("main")
    waiting = [seen for seen in known.waiting() if seen.agent == "main"]
    return waiting[-1] if waiting else known.agents.get("main")


def _reads_others(known: Known, seen: Seen, texts: list[str]) -> bool:
    """Return whether a text also contains other calls' answers: then it is a rendered history."""
    return any(
        len(part) >= _LONG and _holds(texts, part)
        for other in known.calls
        if other is not seen
        for part in other.evidence
        if part not in seen.evidence
    )


def _argument_in(seen: Seen, texts: list[str], *, whole: bool = False) -> str | None:
    """Return the id of the tool call whose string argument opens this conversation.

    With ``whole`` the argument must be a complete text: finished tools are quoted in many texts.
    """
    taken = {child.caller for child in seen.spawned}
    fallback = None
    for identity, arguments in seen.calls:
        for argument in arguments:
            inside = not whole and len(argument) >= _LONG and _holds(texts, argument)
            if argument in texts or inside:
                if identity not in taken:
                    return identity
                fallback = identity
    return fallback


def _free_caller(base: Seen, request: Request) -> str | None:
    texts = [text for text in _given_texts(request) if text]
    return _argument_in(base, texts)


def _inferred(known: Known, request: Request) -> Placement | None:
    """Exactly one call has open tool calls, and a conversation with tools and a new head begins."""
    if not request.tools or any(seen.head == request.head for seen in known.calls):
        return None
    waiting = known.waiting()
    if len(waiting) == 1:
        return Placement(waiting[0], "spawn", "S3:inferred", known.fresh_agent())
    if waiting:
        return Placement(None, "continue", "O:ambiguous", known.fresh_agent())
    return None


def _root(known: Known, request: Request) -> Placement:
    """A conversation of its own."""
    roots = [seen for seen in known.calls if seen.parent is None]
    same = [seen for seen in roots if seen.head == request.head]
    if same:
        return Placement(None, "continue", "O:same-head", same[0].agent)
    if not any(seen.agent == "main" for seen in known.calls):
        return Placement(None, "continue", "O:first", "main")
    texts = _given_texts(request)
    if any(len(seen.said) >= _LONG and _holds(texts, seen.said) for seen in known.calls):
        return Placement(None, "continue", "O:reads-answer", known.fresh_agent())
    return Placement(None, "continue", "O:other-head", known.fresh_agent())


# T ----------------------------------------------------------------------------------------


def _returning(known: Known, request: Request, place: Placement) -> Iterable[Seen]:
    """Yield the last calls of the sub-agents whose answers the request contains."""
    base = place.base
    assert base is not None
    heads = list(_open_spawns(known, base))
    if not heads:
        return
    new = request.messages[len(base.prints) :] if place.edge == "continue" else request.messages
    results: dict[str, str] = {}
    texts: list[str] = []
    for message in new:
        text = squeeze(" ".join(text_parts(message)))
        if message.get("role") in {"tool", "function"}:
            results[str(message.get("tool_call_id") or message.get("id") or "")] = text
        elif message.get("role") in {"user", "system", "developer"}:
            texts.append(text)
    used: set[str] = set()
    for head in heads:
        last = known.agents.get(head.agent)
        if last is None or not last.answered:
            continue
        where = _where(head, last, results, texts, used)
        if where is not None:
            used.add(where)
            yield last


def _open_spawns(known: Known, base: Seen) -> Iterable[Seen]:
    """Yield the first calls of agents that were spawned on this path and have not returned."""
    if not known.spawns:
        return
    path = {id(base)}
    link: Seen | None = base
    while link is not None:
        path.add(id(link))
        link = link.parent if link.edge != "spawn" else None
    for seen in known.spawns:
        if id(seen.parent) in path and seen.agent not in base.returned:
            yield seen


def _where(
    head: Seen, last: Seen, results: dict[str, str], texts: list[str], used: set[str]
) -> str | None:
    """Return the id of the tool result (or ``text:AGENT``) that contains an agent's last answer."""
    evidence = last.evidence
    if head.caller in results and head.caller not in used:
        if any(part in results[head.caller] for part in evidence):
            return head.caller
    elif not head.caller:
        for identity, text in results.items():
            if identity not in used and any(
                part == text or (len(part) >= _LONG and part in text) for part in evidence
            ):
                return identity
    for part in evidence:
        if any(part == text or (len(part) >= _LONG and part in text) for text in texts):
            return f"text:{head.agent}"
    return None
