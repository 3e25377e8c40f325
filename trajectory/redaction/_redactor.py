"""Replacing what the rules find by placeholders, and counting it."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from trajgym.trajectory._errors import InvalidInput
from trajgym.trajectory.redaction._rules import (
    Found,
    default_rules,
    find,
    names_a_secret,
    secret_value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.trajectory.redaction._rules import Rule

__all__ = ["Finding", "RedactionReport", "Redactor"]

_PLACES = 5
"""Places that a finding lists."""
_FINDINGS = 100_000
"""Findings that a report lists; more are only counted."""
_CONTEXT = 40
"""Characters around a finding that its context shows, on each side."""
_CACHED = 200_000
"""Longest text whose finds are remembered (characters)."""
_NAMED_KEY = "assigned-secret"

_JSON: TypeAlias = Any


@dataclass(slots=True, kw_only=True)
class Finding:
    """One secret or personal datum, without its value.

    Args:
        id: of the value, the same in all texts that are redacted with the same key.
        rule: that found it.
        placeholder: what replaces it.
        length: of the value (characters).
        count: how often it was found.
        context: the text around the first place, with everything that was found replaced.
        places: where it was found first: ``session ID turn 3 observation.0.content``.
        kept: a decision keeps it: it was not replaced.
    """

    id: str
    rule: str
    placeholder: str
    length: int
    count: int = 0
    context: str = ""
    places: list[str] = field(default_factory=list)
    kept: bool = False


@dataclass(slots=True)
class RedactionReport:
    """What was found and replaced; it contains no value.

    Args:
        findings: by id, in the order of finding; at most 100,000.
        rules: number of replaced places by rule.
        kept: number of places that decisions kept, by rule.
        unlisted: places whose value is not among ``findings`` because there are too many.
        sessions: sessions in which something was replaced.
        turns_without_ids: turns whose token ids were left out, because they or ids before them
            spell a text that was replaced.
        sessions_without_ids: sessions that have such turns.
        unexamined: stored images and other binary data, which are not searched, by media type.
    """

    findings: dict[str, Finding] = field(default_factory=dict)
    rules: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    unlisted: int = 0
    sessions: int = 0
    turns_without_ids: int = 0
    sessions_without_ids: int = 0
    unexamined: Counter[str] = field(default_factory=Counter)

    @property
    def replaced(self) -> int:
        """Number of replaced places."""
        return self.rules.total()


class Redactor:
    """Replaces secrets and personal data by placeholders such as ``[EMAIL-3f9c1a07de]``.

    Equal values get equal placeholders. A placeholder is a keyed digest (HMAC-SHA256, 40 bits), so
    that without the key nobody can confirm a guess, for example of a phone number.

    Args:
        rules: the rules, the most specific first; `default_rules` if None.
        key: of the digests; a new one by default, so that placeholders of two calls differ.
        decisions: ``redact`` or ``keep`` by finding id; others are redacted. Ids depend on the key.

    Raises:
        InvalidInput: a decision is neither of the two.
    """

    def __init__(
        self,
        rules: Sequence[Rule] | None = None,
        *,
        key: bytes | None = None,
        decisions: Mapping[str, str] | None = None,
    ) -> None:
        self.rules = tuple(default_rules() if rules is None else rules)
        self.key = key or secrets.token_bytes(16)
        self.decisions = dict(decisions or {})
        self.report = RedactionReport()
        if bad := [one for one in self.decisions.values() if one not in {"redact", "keep"}]:
            raise InvalidInput(f"redaction: decision {bad[0]!r}; use 'redact' or 'keep'")
        self._by_key = any(rule.name == _NAMED_KEY for rule in self.rules)
        self._find = lru_cache(maxsize=256)(self._find_all)

    def text(self, text: str, where: str = "") -> str:
        """Return a text with everything that was found replaced.

        Args:
            text: any text. JSON in it is searched as the values that it stands for.
            where: for the report.
        """
        if text[:1] in {"{", "["} and "\\" in text and (found := _parsed(text)) is not None:
            changed = self.value(found, where)
            return text if changed == found else json.dumps(changed, ensure_ascii=False)
        finds = self._find(text) if len(text) <= _CACHED else self._find_all(text)
        return self._replace(text, finds, where) if finds else text

    def value(self, value: _JSON, where: str = "") -> _JSON:
        """Return a JSON value with all its texts replaced, keys of objects included.

        A text under a key that names a secret, such as ``password``, is replaced as a whole.
        """
        if isinstance(value, str):
            return self.text(value, where)
        if isinstance(value, list):
            return [self.value(one, f"{where}.{n}") for n, one in enumerate(value)]
        if not isinstance(value, dict):
            return value
        changed = {}
        for key, one in value.items():
            name = self.text(key, f"{where} (key)")
            changed[name] = self._member(key, one, f"{where}.{name}")
        return changed

    def masked(self, name: str) -> str:
        """Return a name for a report's places: what is found in it is replaced, and not counted."""
        parts, end = [], 0
        for start, stop, rule in self._find(name):
            parts += [name[end:start], f"[{rule.upper()}]"]
            end = stop
        return "".join([*parts, name[end:]])

    def _member(self, key: str, value: _JSON, where: str) -> _JSON:
        if isinstance(value, str) and self._by_key and names_a_secret(key) and secret_value(value):
            finds = self._find(value)
            if [(one.start, one.end) for one in finds] != [(0, len(value))]:
                finds = [Found(0, len(value), _NAMED_KEY)]
            return self._replace(value, finds, where)
        return self.value(value, where)

    def _find_all(self, text: str) -> list[Found]:
        return find(text, self.rules)

    def _replace(self, text: str, finds: list[Found], where: str) -> str:
        parts, end, shown = [], 0, []
        for start, stop, rule in finds:
            finding = self._known(rule, text[start:stop])
            shown.append((start, stop, finding))
            parts += [text[end:start], text[start:stop] if finding.kept else finding.placeholder]
            end = stop
        parts.append(text[end:])
        for start, stop, finding in shown:
            self._count(finding, where)
            if not finding.context:
                finding.context = _context(text, start, stop, shown)
        return "".join(parts)

    def _known(self, rule: str, value: str) -> Finding:
        digest = hmac.new(
            self.key, f"{rule}\0{value}".encode("utf-8", "surrogatepass"), hashlib.sha256
        )
        name = digest.hexdigest()[:10]
        known = self.report.findings.get(name)
        if known is not None:
            return known
        kept = self.decisions.get(name) == "keep"
        placeholder = f"[{rule.upper()}-{name}]"
        made = Finding(id=name, rule=rule, placeholder=placeholder, length=len(value), kept=kept)
        if len(self.report.findings) < _FINDINGS:
            self.report.findings[name] = made
        return made

    def _count(self, finding: Finding, where: str) -> None:
        (self.report.kept if finding.kept else self.report.rules)[finding.rule] += 1
        self.report.unlisted += finding.id not in self.report.findings
        finding.count += 1
        if len(finding.places) < _PLACES and where not in finding.places:
            finding.places.append(where)


def _parsed(text: str) -> _JSON | None:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _context(text: str, start: int, stop: int, finds: list[tuple[int, int, Finding]]) -> str:
    """Return the text around a find, with every find in it replaced."""
    low, high = max(0, start - _CONTEXT), min(len(text), stop + _CONTEXT)
    parts, end = [], low
    for begin, close, finding in finds:
        if close <= low or begin >= high:
            continue
        parts += [text[end:begin], finding.placeholder]
        end = close
    parts.append(text[end:high])
    return " ".join("".join(parts).split())
