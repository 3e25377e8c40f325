"""How verifiers says that an attempt ended."""

from __future__ import annotations

from typing import Any

from trajgym.trajectory import Status

__all__ = ["ended"]

_LIMITS = {
    "max_turns": "turns",
    "max_turns_reached": "turns",
    "max_input_tokens": "tokens",
    "max_output_tokens": "tokens",
    "max_total_tokens": "tokens",
    "max_total_completion_tokens_reached": "tokens",
    "prompt_too_long": "tokens",
    "compaction_failed": "tokens",
    "timeout_reached": "seconds",
}
_PARTS = {"provider": "policy", "harness": "agent", "sandbox": "sandbox"}


def ended(record: dict[str, Any]) -> tuple[Status, str, str]:
    """Return status, cause and traceback of a trace or a rollout.

    A trace that has errors and is ``ok`` was tried again: the errors are of earlier tries.
    """
    stop = record.get("stop_condition") or ""
    errors = record.get("errors") or []
    if errors and not record.get("ok"):
        last = errors[-1]
        boundary = str(last.get("type", "")).removesuffix("Error").lower()
        cause = f"{last.get('type')}: {last.get('message')}"
        status = Status("failed", _PARTS.get(boundary, "env"))
        return status, cause, last.get("traceback") or ""
    if record.get("is_timeout"):
        return Status("truncated", "seconds"), stop, ""
    if stop in _LIMITS:
        return Status("truncated", _LIMITS[stop]), stop, ""
    if record.get("is_truncated"):
        return Status("truncated", "tokens"), stop, ""
    if not record.get("is_completed"):
        return Status("interrupted"), "the record is not complete", ""
    return Status("completed"), "", ""
