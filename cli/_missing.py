"""Signals that sessions lack: which command or annotator records them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["MissingRule", "signal_source"]

MissingRule = Literal["error", "zero"]
"""What `reward` and `export` do if sessions lack signals that a deriver reads."""

_SOURCES = {
    "vote": "Record it with: trajgym annotate RUN --with votes --model NAME.",
    "hint_gaps": "Record it with trajgym.rollout.annotators.HintJudge and a teacher's engine.",
    "certificate_score": "Record it with trajgym.rollout.annotators.CertificateJudge.",
    "expert_action": "Record it with an annotator, or as an outcome detail in verify().",
}
_OWN = (
    "No annotator of trajgym records it: subclass trajgym.rollout.annotators.Annotator and run it "
    "with annotate()."
)


def signal_source(lacking: Collection[str]) -> str:
    """Return a sentence that names what records the signals of `Deriver.missing` texts."""
    named = [source for name, source in _SOURCES.items() if any(f"'{name}'" in t for t in lacking)]
    return " ".join(named) or _OWN
