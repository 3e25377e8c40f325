"""A judge that must prove its verdict: execution-free verification of an attempt's change."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trajgym.rollout.annotators._annotate import Annotator
from trajgym.rollout.annotators._certificate import Certificate, ErrorRates, check_certificate
from trajgym.rollout.annotators._judging import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trajgym.rollout._policy import Policy
    from trajgym.trajectory import Attempt, SessionTree, Turn

__all__ = ["CertificateCase", "CertificateJudge", "read_certificate"]

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_QUESTION = """You decide, without running anything, whether two changes to the same code are \
equivalent modulo the tests in scope: whether each of these tests ends the same (pass or fail) \
under the candidate as under the reference.

Follow each test by hand through the code, under both changes, step by step. Each step and premise \
cites a file and a line that exist below, as they are numbered there. Conclude only what your \
claims support.

Answer with one JSON object in a ```json block, of this schema:
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateCase:
    """The input of a certificate.

    Args:
        candidate: the attempt's change, as a diff.
        reference: the change that solves the task, as a diff.
        tests: names of the tests in scope.
        files: the sources that citations must refer to: texts by path, or their root directory.
        shown: the texts that the judge is shown, by path; their lines are numbered.
        statement: the problem that the changes are meant to solve.
    """

    candidate: str
    reference: str
    tests: tuple[str, ...]
    files: Mapping[str, str] | Path
    shown: Mapping[str, str]
    statement: str = ""


class CertificateJudge(Annotator):
    """Verifies attempts with certificates (arXiv 2603.01896) instead of running tests.

    The judge writes a :class:`Certificate`; :func:`check_certificate` checks every citation and
    whether the verdict follows. Signals of an attempt's last turn: ``certificate`` (the document;
    None if there is none), ``certificate_score`` (1.0 for ``equivalent``, else 0.0),
    ``certificate_valid`` (1.0 if it has no problems), ``certificate_problems``,
    ``certificate_false_accept``, ``certificate_false_reject`` and ``certificate_rates_from``.

    Args:
        policy: the judge model; closed with the annotator.
        case: returns what an attempt is compared with, or None to skip it. Called in a thread.
        rates: error rates of this verifier.
        source: recorded with the signals; ``certificate:<name of the policy>`` if None.
    """

    def __init__(
        self,
        policy: Policy,
        case: Callable[[SessionTree, Attempt], CertificateCase | None],
        *,
        rates: ErrorRates | None = None,
        source: str | None = None,
    ) -> None:
        self.source = source or f"certificate:{policy.name}"
        self._policy = policy
        self._case = case
        self._rates = rates or ErrorRates()

    def turns(self, tree: SessionTree) -> list[Turn]:
        """Return the last turn of each scored attempt."""
        leaves = {a.leaf for a in tree.attempts if a.status.scored and a.leaf is not None}
        return [tree.turns[leaf] for leaf in sorted(leaves)]

    async def annotate(self, tree: SessionTree, turn: Turn) -> dict[str, Any]:
        """Return the signals; for an attempt without a case only ``certificate``, which is None.

        Raises:
            PolicyError: the judge gave no answer.
        """
        attempt = next(a for a in tree.attempts if a.leaf == turn.index and a.status.scored)
        case = await asyncio.to_thread(self._case, tree, attempt)
        if case is None:
            return {"certificate": None}
        messages = [
            {"role": "system", "content": _QUESTION + json.dumps(Certificate.model_json_schema())},
            {"role": "user", "content": _show(case)},
        ]
        (answer,) = await ask(self._policy, messages, tree, turn, 1)
        certificate, problems = read_certificate(answer)
        if certificate is not None:
            problems = await asyncio.to_thread(
                check_certificate, certificate, case.files, case.tests
            )
        accepted = certificate is not None and certificate.verdict == "equivalent"
        return {
            "certificate": None if certificate is None else certificate.model_dump(mode="json"),
            "certificate_score": float(accepted),
            "certificate_valid": float(not problems),
            "certificate_problems": problems,
            "certificate_false_accept": self._rates.false_accept,
            "certificate_false_reject": self._rates.false_reject,
            "certificate_rates_from": self._rates.source,
        }

    async def close(self) -> None:
        """Close the policy."""
        await self._policy.close()


def read_certificate(answer: str | None) -> tuple[Certificate | None, list[str]]:
    """Return the certificate in a judge's answer, or None and what is wrong with it."""
    blocks = _FENCE.findall(answer or "")
    text = blocks[-1] if blocks else (answer or "")
    try:
        return Certificate.model_validate_json(text), []
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        return None, [f"no certificate: {where}: {first['msg']}"]


def _show(case: CertificateCase) -> str:
    files = "\n\n".join(f"### FILE {name}\n{_numbered(text)}" for name, text in case.shown.items())
    return "\n\n".join(
        [
            f"### PROBLEM\n{case.statement or '(not given)'}",
            "### TESTS IN SCOPE\n" + "\n".join(case.tests),
            f"### CANDIDATE\n{case.candidate}",
            f"### REFERENCE\n{case.reference}",
            files,
        ],
    )


def _numbered(text: str) -> str:
    return "\n".join(f"{number:5} {line}" for number, line in enumerate(text.splitlines(), 1))
