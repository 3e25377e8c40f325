"""The JSON form of the results and exceptions of remote environments' methods."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from trajgym.envs._errors import EnvironmentFault, ToolError, Truncate
from trajgym.envs._plain import plain_message, plain_text
from trajgym.envs._results import as_outcome, as_result
from trajgym.envs._tools import Image, InvalidArguments, ToolResult
from trajgym.envs.faults import fault_of, message_of
from trajgym.trajectory import Outcome

if TYPE_CHECKING:
    from trajgym.envs._tools import Content

__all__ = [
    "opening_from_json",
    "opening_to_json",
    "outcome_from_json",
    "outcome_to_json",
    "raised_from_json",
    "raised_to_json",
    "result_from_json",
    "result_to_json",
]


def result_to_json(value: object, where: str) -> dict[str, Any]:
    """Return the JSON form of a result of a tool or ``respond``; default fields are left out.

    Raises:
        EnvironmentFault: the value is not a tool result, or it spawns a sub-agent.
    """
    result = as_result(value, where)
    if result.spawn is not None:
        raise EnvironmentFault("env", f"{where}: a remote environment can't spawn sub-agents")
    body: dict[str, Any] = {"content": _content_to_json(result.content)}
    if result.reward is not None:
        body["reward"] = result.reward
    if result.done:
        body["done"] = True
    if result.truncated:
        body["truncated"] = result.truncated
    if result.signals:
        body["signals"] = result.signals
    return body


def result_from_json(body: dict[str, Any]) -> ToolResult:
    """Reverse :func:`result_to_json`."""
    return ToolResult(**{**body, "content": _content_from_json(body["content"])})


def opening_to_json(value: object) -> dict[str, Any]:
    """Return the JSON form of the result of ``reset``: text, messages, or a tool result.

    Raises:
        InvalidInput: a message is malformed.
    """
    if isinstance(value, ToolResult):
        return {"result": result_to_json(value, "reset()")}
    if isinstance(value, list):
        return {"prompt": [plain_message(message, "reset()") for message in value]}
    return {"prompt": plain_text(value) if isinstance(value, str) else value}


def opening_from_json(body: dict[str, Any]) -> Any:
    """Reverse :func:`opening_to_json`."""
    return result_from_json(body["result"]) if "result" in body else body["prompt"]


def outcome_to_json(verdict: object) -> dict[str, Any]:
    """Return the JSON form of the result of ``verify``.

    Raises:
        EnvironmentFault: the value is not a valid outcome.
    """
    outcome = as_outcome(verdict)
    return {"score": outcome.score, "passed": outcome.passed, "details": outcome.details}


def outcome_from_json(body: dict[str, Any]) -> Outcome:
    """Reverse :func:`outcome_to_json`."""
    return Outcome(**body)


def raised_to_json(error: Exception) -> dict[str, Any]:
    """Return the JSON form of an exception that an environment's method raised."""
    if isinstance(error, Truncate):
        return {"kind": "truncate", "budget": str(error.budget), "message": message_of(error)}
    if isinstance(error, InvalidArguments):
        return {"kind": "invalid", "message": message_of(error)}
    if isinstance(error, ToolError | ValueError):
        return {"kind": "refused", "message": message_of(error)}
    part, cause, _ = fault_of(error)
    return {"kind": "fault", "part": part, "message": cause}


def raised_from_json(body: dict[str, Any]) -> Exception:
    """Reverse :func:`raised_to_json`."""
    message = str(body.get("message"))
    kind = body.get("kind")
    if kind == "truncate":
        return Truncate(str(body.get("budget")), message)
    if kind == "invalid":
        return InvalidArguments(message)
    if kind == "refused":
        return ToolError(message)
    return EnvironmentFault(str(body.get("part") or "env"), message)


def _content_to_json(content: Content) -> Any:
    if isinstance(content, str):
        return content
    return [
        part
        if isinstance(part, str)
        else {"image": base64.b64encode(part.data).decode(), "media_type": part.media_type}
        for part in content
    ]


def _content_from_json(content: Any) -> Content:
    if isinstance(content, str):
        return content
    return [
        part
        if isinstance(part, str)
        else Image(base64.b64decode(part["image"]), part["media_type"])
        for part in content
    ]
