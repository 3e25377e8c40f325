"""Actions of OpenEnv's clients, and the messages that answer them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from trajgym.server._errors import Refused
from trajgym.server._json import loads
from trajgym.trajectory import TrajgymError, blob_hashes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from trajgym.envs import Session
    from trajgym.trajectory import Message

__all__ = ["Json", "body_of", "called", "failure", "listed", "observed", "problem", "rpc", "shown"]

Json = dict[str, Any]


def body_of(action: Json) -> Json:
    """Return the body of a step from an action.

    Raises:
        Refused: it is not an action.
    """
    kind = action.get("type", "message")
    if kind == "call_tool":
        name, arguments = action.get("tool_name"), action.get("arguments", {})
        if not isinstance(name, str) or not name:
            raise Refused(400, "tool_name: expected the name of a tool")
        if not isinstance(arguments, dict):
            raise Refused(400, "arguments: expected an object")
        return {"tool": name, "arguments": arguments}
    given = [key for key in ("content", "message") if action.get(key) is not None]
    if kind != "message" or len(given) != 1:
        raise Refused(
            400,
            "an action is a call of a tool (type call_tool, tool_name, arguments), list_tools, or "
            "a message (type message, and content or message)",
        )
    return {"message": action["message"]} if given == ["message"] else {"text": action["content"]}


_ERRORS = {"invalid": "invalid_args", "timeout": "timeout"}


def called(session: Session, turn: int, name: str, tools: Collection[str]) -> Json:
    """Return the fields of OpenEnv's ``CallToolObservation``.

    Args:
        session: the session.
        turn: index of the turn of the call.
        name: the tool.
        tools: the environment's tools.
    """
    fields: Json = {"tool_name": name, "result": None, "error": None}
    if len(session.turns) <= turn:  # a budget was used up before the call
        return fields
    call, message = session.turns[turn].calls[0], session.turns[turn].observation[0]
    text = _text(message)
    if call.status != "ok":
        kind = _ERRORS.get(call.status, "execution_error")
        fields["error"] = {
            "error_type": kind if name in tools else "tool_not_found",
            "message": text.removeprefix("Error: "),
        }
        return fields
    content: list[Json] = [{"type": "text", "text": text}] if text else []
    for blob in blob_hashes([message]):
        data = session.images[blob]
        encoded = base64.b64encode(data).decode()
        content.append({"type": "image", "data": encoded, "mimeType": _media(data)})
    fields["result"] = {
        "content": content,
        "structured_content": None,
        "data": text,
        "is_error": False,
    }
    return fields


def shown(session: Session, messages: Sequence[Message]) -> Json:
    """Return the fields of an observation: what the agent sees, and how the attempt stands."""
    outcome = session.outcome if session.done else None
    return {
        "text": "\n\n".join(text for message in messages if (text := _text(message))),
        "images": [_data_url(session.images[name]) for name in blob_hashes(messages)],
        "messages": list(messages),
        "status": str(session.status),
        "outcome": None
        if outcome is None
        else {"score": outcome.score, "passed": outcome.passed, "details": outcome.details},
    }


def _text(message: Message) -> str:
    """Return the text of a message, without marks in place of its images."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or ())


def _data_url(data: bytes) -> str:
    return f"data:{_media(data)};base64,{base64.b64encode(data).decode()}"


def _media(data: bytes) -> str:
    return "image/jpeg" if data.startswith(b"\xff\xd8\xff") else "image/png"


def observed(fields: Json, reward: float | None, *, done: bool) -> Json:
    return {"type": "observation", "data": {"observation": fields, "reward": reward, "done": done}}


def failure(code: str, message: str, errors: list[Json] | None = None) -> Json:
    data: Json = {"message": message, "code": code}
    if errors is not None:
        data["errors"] = errors
    return {"type": "error", "data": data}


def problem(message: str) -> Json:
    return {"type": "value_error", "loc": [], "msg": message, "input": None}


def listed(tools: list[Json]) -> Json:
    return {
        "tools": [
            {
                "name": one["name"],
                "description": one["description"],
                "inputSchema": one["input_schema"],
            }
            for one in tools
        ]
    }


async def rpc(raw: bytes, execute: Callable[[str, Json], Awaitable[Json]]) -> Json:
    """Answer a request of JSON-RPC.

    Args:
        raw: the request.
        execute: returns the result for a method and its parameters.
    """
    try:
        request = loads(raw)
    except (ValueError, RecursionError) as error:
        return _rpc_error(None, -32700, f"Parse error: {error}")
    method = request.get("method") if isinstance(request, dict) else None
    if not isinstance(method, str):
        return _rpc_error(None, -32600, "Invalid request: no method")
    params = request.get("params") or {}
    if not isinstance(params, dict):
        return _rpc_error(request.get("id"), -32602, "params: expected an object")
    try:
        result = await execute(method, params)
    except (Refused, TrajgymError) as error:
        return _rpc_error(request.get("id"), -32603, str(error))
    return {"jsonrpc": "2.0", "id": request.get("id"), "result": result}


def _rpc_error(request_id: Any, code: int, message: str) -> Json:
    error = {"code": code, "message": message, "data": None}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}
