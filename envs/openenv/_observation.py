"""Observations of OpenEnv servers as the content of messages."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from trajgym.envs._errors import EnvironmentFault, ToolError
from trajgym.envs._tools import Image, InvalidArguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs._tools import Content

__all__ = ["observed", "tool_content"]

_ENVELOPE = frozenset({"done", "reward", "metadata"})
"""Fields of every observation that are not part of what the agent sees."""


def observed(
    observation: dict[str, Any], fields: Sequence[str], images: Sequence[str], where: str
) -> Content:
    """Return what the agent sees of an observation.

    A single text is shown as it is, other fields as JSON.

    Args:
        observation: fields by name.
        fields: those that are shown, in order; all of them if empty.
        images: fields whose values are base64 or ``data:`` URLs of images.
        where: the server, for errors.

    Raises:
        EnvironmentFault: a field is missing, or is not an image.
    """
    for name in [*fields, *images]:
        if name not in observation:
            raise EnvironmentFault(
                "env", f"{where}: no field {name!r} in the observation; it has {list(observation)}"
            )
    names = fields or [name for name in observation if name not in _ENVELOPE]
    shown = {name: observation[name] for name in names if name not in images}
    values = list(shown.values())
    text = values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(shown)
    found = [_image(observation[name], f"{where}: field {name!r}") for name in images]
    if not found:
        return text
    return [text, *found] if shown else found


def tool_content(observation: dict[str, Any], where: str) -> Content:
    """Return the result of a tool call, of which servers send MCP's ``CallToolResult``.

    Raises:
        ToolError: the tool reports an error.
        InvalidArguments: the arguments are not valid.
        EnvironmentFault: the server could not reach the tool.
    """
    error = observation.get("error")
    if isinstance(error, dict):
        message = str(error.get("message"))
        if error.get("error_type") == "transport_error":
            raise EnvironmentFault("env", f"{where}: {message}")
        if error.get("error_type") == "invalid_args":
            raise InvalidArguments(message)
        raise ToolError(message)
    result = observation.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("content"), list):
        return result if isinstance(result, str) else json.dumps(result)
    content = [_part(part, where) for part in result["content"]]
    if result.get("is_error") or result.get("isError"):
        raise ToolError("\n".join(part for part in content if isinstance(part, str)))
    if all(isinstance(part, str) for part in content):
        return "\n".join(part for part in content if isinstance(part, str))
    return content


def _part(part: Any, where: str) -> str | Image:
    if isinstance(part, dict) and part.get("type") == "text":
        return str(part.get("text"))
    if isinstance(part, dict) and part.get("type") == "image":
        kind = str(part.get("mimeType") or part.get("mime_type") or "image/png")
        return Image(_bytes(part.get("data"), where), kind)
    return json.dumps(part)


def _image(value: Any, where: str) -> Image:
    kind = "image/png"
    if isinstance(value, str) and value.startswith("data:"):
        head, _, value = value.partition(",")
        kind = head.removeprefix("data:").partition(";")[0]
    return Image(_bytes(value, where), kind)


def _bytes(value: Any, where: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, binascii.Error) as error:
        raise EnvironmentFault("env", f"{where}: not an image in base64") from error
