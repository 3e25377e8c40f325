"""Execution-free verification: certificates that hold, certificates that don't, and verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.server import completion, endpoint, said
from tests.rollout.test_annotators import recorded, trees
from trajgym.rewards import CertificateReward
from trajgym.rollout import OpenAIPolicy, annotate
from trajgym.rollout.annotators import (
    Certificate,
    CertificateCase,
    CertificateJudge,
    ErrorRates,
    check_certificate,
)
from trajgym.trajectory import Attempt, InvalidInput, SessionTree

FILES = {
    "src/add.py": "def add(a, b):\n    return a + b\n",
    "tests/test_add.py": "from add import add\n\ndef test_add():\n    assert add(1, 2) == 3\n",
}
TESTS = ("tests/test_add.py::test_add",)
RETURN = {"file": "src/add.py", "line": 2, "quote": "return a + b"}
ASSERT = {"file": "tests/test_add.py", "line": 4, "quote": "add(1, 2) == 3"}


def trace(result: str = "pass") -> dict[str, Any]:
    return {
        "steps": [{"text": "adds", "at": RETURN}, {"text": "compares", "at": ASSERT}],
        "result": result,
    }


def equivalent() -> dict[str, Any]:
    return {
        "definitions": ["Equivalent: every test in scope ends the same under both changes."],
        "premises": [{"text": "The test asserts the sum.", "citations": [ASSERT]}],
        "analyses": [
            {"test": TESTS[0], "candidate": trace(), "reference": trace(), "claim": "same"}
        ],
        "none_exists": "The only test in scope ends the same.",
        "verdict": "equivalent",
        "because": [TESTS[0]],
    }


def different() -> dict[str, Any]:
    analysis = {"test": TESTS[0], "candidate": trace("fail"), "reference": trace()}
    return equivalent() | {
        "analyses": [analysis | {"claim": "different"}],
        "none_exists": None,
        "counterexample": {
            "test": TESTS[0],
            "candidate": "fail",
            "reference": "pass",
            "diverges_at": RETURN,
        },
        "verdict": "different",
    }


def problems(document: dict[str, Any], files: Any = FILES, tests: Any = TESTS) -> list[str]:
    return check_certificate(Certificate.model_validate(document), files, tests)


@pytest.mark.parametrize("make", [equivalent, different])
def test_certificates_that_hold(make: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    """Both verdicts pass when all is there, over texts and over a directory alike."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert problems(make()) == problems(make(), tmp_path) == []


def changed(make: Callable[[], dict[str, Any]], path: str, value: Any) -> dict[str, Any]:
    """Return the document with the value at a dotted path replaced."""
    document = json.loads(json.dumps(make()))
    *steps, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    place = document
    for step in steps:
        place = place[step]
    place[last] = value
    return document


AT = "analyses.0.candidate.steps.0.at"


@pytest.mark.parametrize(
    ("make", "path", "value", "wrong"),
    [
        (equivalent, f"{AT}.file", "src/sub.py", "a file that does not exist"),
        (equivalent, f"{AT}.file", "../outside.py", "a file that does not exist"),
        (equivalent, f"{AT}.file", "src", "a file that does not exist"),
        (equivalent, f"{AT}.file", "a\0b", "a file that does not exist"),
        (equivalent, f"{AT}.line", 3, "but the file has 2 lines"),
        (equivalent, f"{AT}.quote", "return a - b", "which does not contain 'return a - b'"),
        (equivalent, "premises.0.citations.0.line", 99, "premise 0 cites tests/test_add.py:99"),
        (different, "counterexample.diverges_at.line", 9, "counterexample cites src/add.py:9"),
        (equivalent, "analyses.0.test", "other", "is in scope and has 0 analyses"),
        (equivalent, "analyses.0.claim", "different", "its traces end in pass and pass"),
        (equivalent, "analyses.0.candidate.result", "fail", "its traces end in fail and pass"),
        (equivalent, "none_exists", " ", "without an argument"),
        (equivalent, "because", ["no such test"], "which has no analysis"),
        (different, "verdict", "equivalent", "is claimed to be different"),
        (different, "counterexample", None, "different without a counterexample"),
        (different, "counterexample.test", "other", "is not claimed to be different"),
        (different, "counterexample.candidate", "pass", "other results than its analysis"),
    ],
)
def test_what_is_wrong_is_said(
    make: Callable[[], dict[str, Any]], path: str, value: Any, wrong: str, tmp_path: Path
) -> None:
    """A citation that does not exist, a test left out, a step that does not follow: each named."""
    root = tmp_path / "root"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "outside.py").write_text("secret\nsecret\n")
    document = changed(make, path, value)
    for files in (FILES, root):
        assert any(wrong in problem for problem in problems(document, files))


def test_a_link_out_of_the_sources_is_not_followed(tmp_path: Path) -> None:
    """A citation can't reach the host's files through a link in the sources."""
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.py").write_text("one\ntwo\n")
    (tmp_path / "root" / "add.py").symlink_to(tmp_path / "secret.py")
    document = changed(equivalent, "premises.0.citations.0", {"file": "add.py", "line": 1})
    found = problems(document, tmp_path / "root")
    assert "premise 0 cites add.py:1, a file that does not exist" in found


def test_a_test_analysed_twice_or_out_of_scope_is_named() -> None:
    """Every test in scope has exactly one analysis, and no other test has one."""
    document = equivalent()
    document["analyses"] *= 2
    assert any("has 2 analyses" in problem for problem in problems(document))
    assert any("not in scope" in problem for problem in problems(equivalent(), tests=()))


def case(tree: SessionTree, attempt: Attempt) -> CertificateCase | None:
    if tree.record.task == "t1":
        return None
    return CertificateCase(
        candidate="--- a\n+++ b",
        reference="--- a\n+++ c",
        tests=TESTS,
        files=FILES,
        shown=FILES,
        statement="Add numbers.",
    )


async def judged(out: Path, *answers: str, rates: ErrorRates | None = None) -> list[dict[str, Any]]:
    """Return the questions that the endpoint was asked."""
    async with endpoint(*(completion(said(answer)) for answer in answers)) as server:
        async with CertificateJudge(
            OpenAIPolicy("m", base_url=server.url), case, rates=rates
        ) as judge:
            report = await annotate(out, judge, concurrency=1)
            assert report.failed == {}
    return server.requests


def fenced(document: dict[str, Any]) -> str:
    return f"I followed the test.\n```json\n{json.dumps(document)}\n```"


async def test_a_verdict_becomes_a_reward_with_its_error_rates(tmp_path: Path) -> None:
    """The judge sees numbered sources; its verdict, checks and known error rates are signals."""
    await recorded(tmp_path, tasks=2)
    rates = ErrorRates(false_accept=0.25, false_reject=0.25, source="our own 40 pairs")
    (asked,) = await judged(tmp_path, fenced(equivalent()), rates=rates)
    question = asked["messages"][1]["content"]
    for text in ("Add numbers.", TESTS[0], "+++ b", "### FILE src/add.py\n    1 def add(a, b):"):
        assert text in question
    first, second = trees(tmp_path)
    signals = first.turns[-1].signals
    assert signals["certificate"]["verdict"] == "equivalent"
    assert (signals["certificate_valid"], signals["certificate_problems"]) == (1.0, [])
    assert signals["certificate_rates_from"] == "our own 40 pairs"
    assert second.turns[-1].signals["certificate"] is None
    deriver = CertificateReward()
    table = deriver.table([], [first, second])
    assert deriver.derive(table).values.tolist() == [0, 0, 1.0, 0, 0, 0]
    unbiased = CertificateReward(debias=True).derive(table).values.tolist()
    assert unbiased == [0, 0, 1.5, 0, 0, 0]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (fenced(changed(equivalent, f"{AT}.line", 77)), "src/add.py:77"),
        ("They look alike to me.", "no certificate: the answer: Invalid JSON"),
        (fenced(equivalent() | {"premises": []}), "no certificate: premises"),
        (fenced({"verdict": "equivalent"}), "no certificate: definitions: Field required"),
    ],
)
async def test_a_verdict_without_proof_earns_nothing(
    tmp_path: Path, answer: str, problem: str
) -> None:
    """An acceptance whose certificate does not hold gets the reward of an invalid one."""
    await recorded(tmp_path)
    await judged(tmp_path, answer)
    (tree,) = trees(tmp_path)
    signals = tree.turns[-1].signals
    assert signals["certificate_valid"] == 0.0
    assert any(problem in one for one in signals["certificate_problems"])
    deriver = CertificateReward(invalid=-0.5)
    assert deriver.derive(deriver.table([], [tree])).values.tolist() == [0, 0, -0.5]


async def test_a_rejection_is_zero_and_debiased_below(tmp_path: Path) -> None:
    """A proven difference earns 0, or, unbiased by the known rates, less than 0."""
    await recorded(tmp_path)
    await judged(tmp_path, fenced(different()))
    (tree,) = trees(tmp_path)
    table = CertificateReward().table([], [tree])
    assert CertificateReward().derive(table).values.tolist() == [0, 0, 0]
    unbiased = CertificateReward(debias=True).derive(table).values[-1]
    assert unbiased == pytest.approx(-0.171 / (1 - 0.171 - 0.070))


async def test_debiasing_needs_rates_that_tell_something(tmp_path: Path) -> None:
    """A verifier that is wrong as often as right can't be corrected: that is an error."""
    await recorded(tmp_path)
    rates = ErrorRates(false_accept=0.5, false_reject=0.5)
    await judged(tmp_path, fenced(equivalent()), rates=rates)
    table = CertificateReward().table([], trees(tmp_path))
    with pytest.raises(InvalidInput, match="add up to less than 1"):
        CertificateReward(debias=True).derive(table)
