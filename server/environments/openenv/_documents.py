"""The documents by which an OpenEnv server describes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajgym.envs import EnvSpec

__all__ = ["SCHEMAS", "metadata", "openapi"]

Json = dict[str, Any]


def metadata(name: str, spec: EnvSpec) -> Json:
    about = (spec.resolve().__doc__ or "").strip().partition("\n\n")[0]
    return {
        "name": name,
        "description": " ".join(about.split()) or name,
        "readme_content": None,
        "version": None,
        "author": None,
        "documentation_url": None,
    }


_TEXT: Json = {"type": "string"}
_OBJECT: Json = {"type": "object"}
_REWARD: Json = {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}

_ACTION: Json = {
    "title": "Action",
    "type": "object",
    "description": (
        "call_tool calls a tool by tool_name with arguments; list_tools lists the tools; message "
        "is an answer: its text as content, or a whole assistant message as message."
    ),
    "properties": {
        "type": {"enum": ["call_tool", "list_tools", "message"], "default": "message"},
        "tool_name": _TEXT,
        "arguments": _OBJECT,
        "content": _TEXT,
        "message": _OBJECT,
        "metadata": _OBJECT,
    },
}

_OBSERVATION: Json = {
    "title": "Observation",
    "type": "object",
    "properties": {
        "done": {"type": "boolean", "default": False},
        "reward": _REWARD,
        "text": _TEXT,
        "images": {"type": "array", "items": _TEXT},
        "messages": {"type": "array", "items": _OBJECT},
        "status": _TEXT,
        "outcome": {"anyOf": [_OBJECT, {"type": "null"}]},
        "tools": {"type": "array", "items": _OBJECT},
        "tool_name": _TEXT,
        "result": {},
        "error": {"anyOf": [_OBJECT, {"type": "null"}]},
    },
}

SCHEMAS: Json = {
    "action": _ACTION,
    "observation": _OBSERVATION,
    "state": {
        "title": "State",
        "type": "object",
        "properties": {
            "episode_id": {"anyOf": [_TEXT, {"type": "null"}]},
            "step_count": {"type": "integer", "minimum": 0},
            "task": _TEXT,
            "status": _TEXT,
        },
    },
}


def openapi(name: str) -> Json:
    """Return the document that ``openenv validate --url`` reads.

    OpenEnv calls a server without ``/reset`` and ``/step`` over HTTP, which keep no state between
    requests, one in production mode.
    """
    done = {"responses": {"200": {"description": "Done."}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"trajgym {name}", "version": "1.0.0"},
        "paths": {
            **{f"/{one}": {"get": done} for one in ("health", "metadata", "schema")},
            "/mcp": {"post": done},
        },
    }
