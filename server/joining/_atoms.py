"""Canonical atoms: the units by which requests are compared.

Atoms are used for matching only; what is stored and forwarded is unchanged. They leave out cache
marks, ids and states of items, null fields, empty text, reasoning and signatures. A string equals
one text block, a run of white space one space, ``developer`` equals ``system``; arguments are
compared as JSON; the results of one round are sorted by call id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trajgym.trajectory import Message

__all__ = [
    "Atom",
    "Reading",
    "arguments_of",
    "atoms_of",
    "canonical_arguments",
    "chain",
    "head_of",
    "leading_system",
    "print_of",
    "read",
    "squeeze",
    "text_parts",
    "tools_digest",
]


class Atom(NamedTuple):
    """The smallest unit of a conversation that is compared."""

    role: str
    kind: str
    """``text``, ``call``, ``result`` or ``image``."""
    key: object
    """Key by which the content is compared."""
    id: str = ""
    """Id of the call, for ``call`` and ``result``."""

    @property
    def token(self) -> object:
        """Key by which atoms are equal: calls by id where they have one."""
        if self.kind == "call" and self.id:
            return (self.role, self.kind, self.id)
        return self


def squeeze(text: str) -> str:
    """Return the text with runs of white space as one space."""
    return " ".join(text.split())


def atoms_of(messages: Sequence[Message]) -> list[Atom]:
    """Return the atoms of a conversation, without its leading system messages."""
    return read(messages).atoms


class Reading(NamedTuple):
    """A conversation as joining compares it."""

    messages: Sequence[Message]
    atoms: list[Atom]
    """Of the messages after the leading system messages."""
    prints: tuple[int, ...]
    """The fingerprint of every message."""
    chain: list[int]
    """Digests of all prefixes of the atoms, the empty one first."""
    ends: list[int]
    """For every message, the number of atoms up to its end; -1 if later messages can change them:
    in the leading system messages, and in a round of results, which is sorted."""


def read(messages: Sequence[Message], before: Reading | None = None) -> Reading:
    """Return atoms and fingerprints of a conversation, in one pass.

    Args:
        messages: the conversation.
        before: another conversation; what follows their common beginning is read only.
    """
    atoms: list[Atom] = []
    prints: list[int] = []
    digests = [0]
    ends: list[int] = []
    known = 0 if before is None else _common(messages, before)
    if before is not None and known:
        size = before.ends[known - 1]
        atoms, digests = before.atoms[:size], before.chain[: size + 1]
        prints, ends = list(before.prints[:known]), before.ends[:known]
        messages = [*before.messages[:known], *messages[known:]]  # keeps the history once in memory
    start = 0 if known else leading_system(messages)
    results: list[Atom] = []
    for i in range(known, len(messages)):
        message = messages[i]
        role = message.get("role")
        if _is_plain(message):
            spoken, fingerprint = _plain(str(role), message["content"])
        else:
            spoken, fingerprint = None, print_of(message)
        prints.append(fingerprint)
        if i < start:
            ends.append(-1)
        elif role in {"tool", "function"}:
            results.append(_result(message))
            ends.append(-1)
        else:
            if results:
                atoms += sorted(results, key=_call_id)
                results = []
            atoms += _speech(message) if spoken is None else spoken
            ends.append(len(atoms))
    atoms += sorted(results, key=_call_id)
    digests += chain(atoms[len(digests) - 1 :], digests[-1])[1:]
    return Reading(messages, atoms, tuple(prints), digests, ends)


def _common(messages: Sequence[Message], before: Reading) -> int:
    """Return how many leading messages are the same and can be read as before."""
    others = before.messages
    count = min(len(messages), len(others))
    try:
        if messages[:count] != others[:count]:
            count = next(i for i in range(count) if messages[i] != others[i])
    except RecursionError:  # nested too deeply to be compared
        return 0
    while count and before.ends[count - 1] < 0:
        count -= 1
    return count


def leading_system(messages: Sequence[Message]) -> int:
    """Return the number of leading system messages."""
    for i, message in enumerate(messages):
        if message.get("role") not in {"system", "developer"}:
            return i
    return len(messages)


def chain(atoms: Iterable[Atom], start: int = 0) -> list[int]:
    """Return the digests of all prefixes, the empty one first."""
    digests = [start]
    for atom in atoms:
        start = hash((start, atom.token))
        digests.append(start)
    return digests


def _call_id(atom: Atom) -> str:
    return atom.id


def _result(message: Message) -> Atom:
    identity = message.get("tool_call_id") or message.get("id") or ""
    parts = tuple(_keys(message.get("content")))
    return Atom("tool", "result", parts, str(identity))


_PLAIN_CHARS = 1 << 15
"""Longer texts are not cached, which bounds the cache's memory."""


@lru_cache(maxsize=8192)
def _plain(role: str, content: str) -> tuple[list[Atom], int]:
    """Return atoms and fingerprint of a message that is all text; cached, as histories repeat."""
    role = "system" if role == "developer" else role
    atoms = [Atom(role, kind, key) for kind, key in _keys(content)]
    return atoms, hash((role, (content,) if content else (), (), "", ""))


def _is_plain(message: Message) -> bool:
    content = message.get("content")
    return len(message) == 2 and isinstance(content, str) and len(content) <= _PLAIN_CHARS


def _speech(message: Message) -> list[Atom]:
    role = str(message.get("role"))
    role = "system" if role == "developer" else role
    atoms = [Atom(role, kind, key) for kind, key in _keys(message.get("content"))]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        key = (function.get("name"), canonical_arguments(function.get("arguments")))
        atoms.append(Atom(role, "call", key, str(call.get("id") or "")))
    return atoms


def _keys(content: Any) -> Iterable[tuple[str, object]]:
    """Yield kind and key of every part with content."""
    if isinstance(content, str):
        if said := squeeze(content):
            yield "text", said if len(said) <= 64 else hash(said)
        return
    for part in content or ():
        if not isinstance(part, dict):
            continue
        text = part.get("text")
        if isinstance(text, str):
            if said := squeeze(text):
                yield "text", said if len(said) <= 64 else hash(said)
        elif part.get("type") == "image_url":
            yield "image", _image_key(part)
        elif part.get("type") not in {"thinking", "redacted_thinking", "reasoning"}:
            kept = {k: v for k, v in part.items() if k != "cache_control" and v is not None}
            yield "text", hash(json.dumps(kept, sort_keys=True, default=str))


def _image_key(part: dict[str, Any]) -> str:
    image = part.get("image_url")
    url = str(image.get("url", "")) if isinstance(image, dict) else str(image)
    if url.startswith("blob:"):
        return url[5:]
    if url.startswith("data:"):
        try:
            data = base64.b64decode(url.partition(",")[2], validate=False)
        except (binascii.Error, ValueError):
            data = url.encode("utf-8", "surrogatepass")
        return hashlib.sha256(data).hexdigest()
    return url


def canonical_arguments(arguments: Any) -> str:
    """Return a call's arguments as canonical JSON; text that is not JSON is unchanged."""
    values = arguments
    try:
        if isinstance(arguments, str):
            values = json.loads(arguments) if arguments.strip() else {}
        return json.dumps(values, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):  # nested as deeply as a model that repeats itself writes
        return str(arguments)


def arguments_of(message: Message) -> list[tuple[str, tuple[str, ...]]]:
    """Return id and string arguments of every call of a message."""
    found = []
    for call in message.get("tool_calls") or ():
        arguments = (call.get("function") or {}).get("arguments")
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else arguments
            texts = tuple(_strings(value))
        except (ValueError, RecursionError):
            texts = (str(arguments),)
        found.append((str(call.get("id") or ""), texts))
    return found


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        if text := squeeze(value):
            yield text
    elif isinstance(value, dict):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)


def text_parts(message: Message) -> Iterable[str]:
    """Yield the texts of a message unchanged."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
        return
    for part in content or ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def print_of(message: Message) -> int:
    """Return a fingerprint, equal for messages that need to be stored only once.

    Unlike atoms it includes white space and reasoning.
    """
    if _is_plain(message):
        return _plain(str(message.get("role")), message["content"])[1]
    content = message.get("content")
    said: list[object] = []
    if isinstance(content, str):
        said = [content] if content else []
    else:
        for part in content or ():
            if isinstance(part, dict) and part.get("type") == "text":
                said += [part["text"]] if part.get("text") else []
            elif isinstance(part, dict) and part.get("type") == "image_url":
                said.append(_image_key(part))
            else:
                said.append(json.dumps(part, sort_keys=True, default=str))
    calls = tuple(
        (c.get("id"), f.get("name"), canonical_arguments(f.get("arguments")))
        for c in message.get("tool_calls") or ()
        for f in [c.get("function") or {}]
    )
    role = message.get("role")
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    identity = message.get("tool_call_id") or message.get("id") or ""
    role = "system" if role == "developer" else role
    return hash((role, tuple(said), calls, reasoning, identity))


def head_of(messages: Sequence[Message], tools: Any, extras: Sequence[Any] = ()) -> str:
    """Return the digest (hex) of system text, tools, template settings and response format."""
    said = [
        text for message in messages[: leading_system(messages)] for text in text_parts(message)
    ]
    further = [tools if isinstance(tools, str) else tools_digest(tools)]
    if any(extra is not None for extra in extras):
        further.append(json.dumps(list(extras), sort_keys=True, default=str))
    return _head(tuple(said), tuple(further))


@lru_cache(maxsize=256)
def _head(said: tuple[str, ...], further: tuple[str, ...]) -> str:
    parts = [*map(squeeze, said), "", *further]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def tools_digest(tools: Any) -> str:
    """Return the digest (hex) of tool schemas, independent of their order."""
    listed = sorted(json.dumps(tool, sort_keys=True, default=str) for tool in tools or ())
    return hashlib.sha256("\0".join(listed).encode("utf-8", "surrogatepass")).hexdigest()[:32]
