"""Choices that several commands share."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["SandboxKind"]


class SandboxKind(StrEnum):
    """Kinds of sandbox, for the command line."""

    auto = "auto"
    docker = "docker"
    embedded = "embedded"
