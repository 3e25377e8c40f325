"""Choices that several commands share."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["PlotFormat", "SandboxKind", "TrainerName"]


class SandboxKind(StrEnum):
    """Kinds of sandbox."""

    auto = "auto"
    docker = "docker"
    embedded = "embedded"


class PlotFormat(StrEnum):
    """Formats of plots."""

    png = "png"
    svg = "svg"


class TrainerName(StrEnum):
    """Trainers whose needs `trajgym check` knows."""

    trl = "trl"
    verl = "verl"
    areal = "areal"
