"""Choices that several commands share."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["SandboxKind"]


class SandboxKind(StrEnum):
    """Kinds of sandbox."""

    auto = "auto"
    docker = "docker"
    embedded = "embedded"
