"""Finding and replacing secrets and personal data in recorded texts."""

from trajgym.trajectory.redaction._redactor import Finding, RedactionReport, Redactor
from trajgym.trajectory.redaction._review import read_decisions, write_decisions
from trajgym.trajectory.redaction._rules import Found, Rule, default_rules, find

__all__ = [
    "Finding",
    "Found",
    "RedactionReport",
    "Redactor",
    "Rule",
    "default_rules",
    "find",
    "read_decisions",
    "write_decisions",
]
