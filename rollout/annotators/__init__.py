"""Annotators: judges and tools that add the signals that derivers read."""

from trajgym.rollout.annotators._annotate import Annotated, AnnotateReport, Annotator, annotate
from trajgym.rollout.annotators._certificate import (
    Analysis,
    Certificate,
    Citation,
    Counterexample,
    ErrorRates,
    Premise,
    Trace,
    TraceStep,
    check_certificate,
)
from trajgym.rollout.annotators._certificate_judge import CertificateCase, CertificateJudge
from trajgym.rollout.annotators._hint_judge import HintJudge
from trajgym.rollout.annotators._rubric_judge import RubricJudge
from trajgym.rollout.annotators._vote_judge import VoteJudge, majority

__all__ = [
    "Analysis",
    "AnnotateReport",
    "Annotated",
    "Annotator",
    "Certificate",
    "CertificateCase",
    "CertificateJudge",
    "Citation",
    "Counterexample",
    "ErrorRates",
    "HintJudge",
    "Premise",
    "RubricJudge",
    "Trace",
    "TraceStep",
    "VoteJudge",
    "annotate",
    "check_certificate",
    "majority",
]
