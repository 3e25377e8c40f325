"""Certificates of execution-free verification: the schema and its checks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "Analysis",
    "Certificate",
    "Citation",
    "Counterexample",
    "ErrorRates",
    "Premise",
    "Trace",
    "TraceStep",
    "check_certificate",
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Citation(_Part):
    """A place in the sources.

    Attributes:
        file: path from the root of the sources.
        line: from 1.
        quote: text on that line, if quoted.
    """

    file: str = Field(min_length=1)
    line: int = Field(ge=1)
    quote: str | None = None


class Premise(_Part):
    """A fact that the argument starts from: what a change does, what a test asserts."""

    text: str = Field(min_length=1)
    citations: list[Citation] = Field(min_length=1)


class TraceStep(_Part):
    """One step of an execution trace."""

    text: str = Field(min_length=1)
    at: Citation


class Trace(_Part):
    """What a test does under one of the two changes, and how it ends."""

    steps: list[TraceStep] = Field(min_length=1)
    result: Literal["pass", "fail"]


class Analysis(_Part):
    """One test under both changes."""

    test: str = Field(min_length=1)
    candidate: Trace
    reference: Trace
    claim: Literal["same", "different"]


class Counterexample(_Part):
    """A test on which the two changes differ, and where they differ."""

    test: str = Field(min_length=1)
    candidate: Literal["pass", "fail"]
    reference: Literal["pass", "fail"]
    diverges_at: Citation


class Certificate(_Part):
    """A semi-formal proof that two changes are, or are not, equivalent modulo some tests.

    The parts are those of Agentic Code Reasoning (arXiv 2603.01896), as re-stated by others: the
    paper's appendix could not be read.

    Attributes:
        definitions: definitions of terms, above all of "equivalent".
        premises: facts about the changes and the tests.
        analyses: one for each test in scope.
        counterexample: required if the verdict is ``different``.
        none_exists: why the changes differ on no test, if the verdict is ``equivalent``.
        verdict: the conclusion.
        because: the tests whose claims the verdict follows from.
    """

    definitions: list[str] = Field(min_length=1)
    premises: list[Premise] = Field(min_length=1)
    analyses: list[Analysis] = Field(min_length=1)
    counterexample: Counterexample | None = None
    none_exists: str | None = None
    verdict: Literal["equivalent", "different"]
    because: list[str] = Field(min_length=1)

    def citations(self) -> Iterator[tuple[str, Citation]]:
        """Yield every citation, with the name of the part that contains it."""
        for number, premise in enumerate(self.premises):
            for citation in premise.citations:
                yield f"premise {number}", citation
        for analysis in self.analyses:
            sides = (("candidate", analysis.candidate), ("reference", analysis.reference))
            for side, trace in sides:
                for step in trace.steps:
                    yield f"test {analysis.test}, {side}", step.at
        if self.counterexample is not None:
            yield "counterexample", self.counterexample.diverges_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRates:
    """How often a verifier is wrong; recorded with each of its verdicts.

    The defaults are those reported for semi-formal reasoning with Opus 4.5 on 170 curated pairs
    (arXiv 2603.01896; taken from secondary sources): 82.9% of the different pairs and 93.0% of the
    equivalent ones were recognised. Other models, prompts and code bases have other rates.

    Args:
        false_accept: share of the different pairs that are judged equivalent.
        false_reject: share of the equivalent pairs that are judged different.
        source: where the numbers come from.
    """

    false_accept: float = 0.171
    false_reject: float = 0.070
    source: str = "arXiv 2603.01896, curated pairs, Opus 4.5"


def check_certificate(
    certificate: Certificate, files: Mapping[str, str] | Path, tests: Sequence[str]
) -> list[str]:
    """Return the problems of a certificate, one sentence each; empty if there are none.

    Every citation must name a file and line that exist (with the quoted text on it); every test in
    scope must have exactly one analysis; each claim must follow from its two traces, and the
    verdict from the claims. Whether the traces are correct is not checked, because that would
    require running the code.

    Args:
        certificate: the certificate.
        files: texts by path, or the root directory; symbolic links out of it are not followed.
        tests: names of the tests in scope.
    """
    sources = _Sources(files)
    problems = [
        f"{where} cites {citation.file}:{citation.line}, {wrong}"
        for where, citation in certificate.citations()
        if (wrong := sources.objection(citation))
    ]
    return [*problems, *_scope(certificate, tests), *_claims(certificate), *_verdict(certificate)]


def _scope(certificate: Certificate, tests: Sequence[str]) -> Iterator[str]:
    counts = Counter(analysis.test for analysis in certificate.analyses)
    for test in tests:
        if counts[test] != 1:
            yield f"test {test} is in scope and has {counts[test]} analyses; it needs one"
    for test in counts:
        if test not in tests:
            yield f"test {test} is analysed but not in scope"


def _claims(certificate: Certificate) -> Iterator[str]:
    for analysis in certificate.analyses:
        results = (analysis.candidate.result, analysis.reference.result)
        follows = "same" if results[0] == results[1] else "different"
        if analysis.claim != follows:
            yield (
                f"test {analysis.test} is claimed to be {analysis.claim}, but its traces end in "
                f"{results[0]} and {results[1]}"
            )


def _verdict(certificate: Certificate) -> Iterator[str]:
    claims = {analysis.test: analysis for analysis in certificate.analyses}
    different = [test for test, one in claims.items() if one.claim == "different"]
    for test in certificate.because:
        if test not in claims:
            yield f"the conclusion rests on test {test}, which has no analysis"
    example = certificate.counterexample
    if certificate.verdict == "equivalent":
        if different:
            yield f"the verdict is equivalent, but test {different[0]} is claimed to be different"
        if example is not None:
            yield "the verdict is equivalent, but there is a counterexample"
        if not (certificate.none_exists or "").strip():
            yield "the verdict is equivalent without an argument that no counterexample exists"
        if missing := sorted(set(claims) - set(certificate.because)):
            yield f"the verdict is equivalent, but does not rest on test {missing[0]}"
        return
    if example is None:
        yield "the verdict is different without a counterexample"
        return
    shown = claims.get(example.test)
    if shown is None or shown.claim != "different":
        yield f"the counterexample {example.test} is not claimed to be different"
    elif (example.candidate, example.reference) != (
        shown.candidate.result,
        shown.reference.result,
    ):
        yield f"the counterexample {example.test} has other results than its analysis"


class _Sources:
    """Lines of the cited files; each file is read once."""

    def __init__(self, files: Mapping[str, str] | Path) -> None:
        self._files = files
        self._lines: dict[str, list[str] | None] = {}

    def objection(self, citation: Citation) -> str:
        """Return what is wrong with a citation; empty if it is correct."""
        if citation.file not in self._lines:
            self._lines[citation.file] = self._read(citation.file)
        lines = self._lines[citation.file]
        if lines is None:
            return "a file that does not exist"
        if citation.line > len(lines):
            return f"but the file has {len(lines)} lines"
        if citation.quote is not None and citation.quote.strip() not in lines[citation.line - 1]:
            return f"which does not contain {citation.quote.strip()[:60]!r}"
        return ""

    def _read(self, name: str) -> list[str] | None:
        if not isinstance(self._files, Path):
            text = self._files.get(name)
            return None if text is None else text.splitlines()
        root = self._files.resolve()
        try:
            path = (root / name).resolve()
            if not path.is_relative_to(root) or not path.is_file():
                return None
            return path.read_text(encoding="utf-8", errors="replace").splitlines()
        except (OSError, ValueError):
            return None
