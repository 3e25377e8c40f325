"""MCP tools as tools of an environment."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from trajgym.envs import Image, InvalidArguments, Tool, ToolError, ToolResult

if TYPE_CHECKING:
    from trajgym.envs.mcp._env import McpEnv

__all__ = ["adopt"]

_SHOWN = 300


class _Any(BaseModel):
    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class _McpTool(Tool):
    """A tool that a server executes; a JSON schema describes its arguments."""

    def parse(self, arguments: str) -> dict[str, Any]:
        """Return the arguments as one dictionary, validated against the server's schema.

        Raises:
            InvalidArguments: they are not a JSON object, or violate the schema.
        """
        import jsonschema

        try:
            given = json.loads(arguments or "{}")
            if not isinstance(given, dict):
                raise InvalidArguments(
                    f"invalid arguments for {self.name}: expected an object, got "
                    f"{type(given).__name__}"
                )
            jsonschema.validate(given, self.schema["function"]["parameters"])
        except jsonschema.ValidationError as error:
            where = ".".join(map(str, error.absolute_path)) or "arguments"
            text = error.message[:_SHOWN]
            raise InvalidArguments(f"invalid arguments for {self.name}: {where}: {text}") from error
        except (ValueError, RecursionError) as error:
            if isinstance(error, InvalidArguments):
                raise
            raise InvalidArguments(
                f"invalid arguments for {self.name}: not JSON: {error}"
            ) from error
        return {"arguments": given}


def adopt(number: int, prefix: str, tool: Any) -> Tool:
    """Return a tool of an environment that calls a tool of an MCP server.

    Args:
        number: index of the server among those of the environment.
        prefix: prepended to the tool's name.
        tool: the SDK's description of the tool.
    """
    import mcp

    own = str(tool.name)

    async def call(env: McpEnv, arguments: dict[str, Any]) -> ToolResult:
        try:
            result = await env.connections[number].call(own, arguments)
        except mcp.MCPError as error:  # the server rejected the call
            raise ToolError(str(error)) from error
        if result.is_error:
            raise ToolError(_text(result) or "the tool reported an error")
        return ToolResult(content=_content(result))

    name = prefix + own
    schema = {
        "type": "function",
        "function": {
            "name": name,
            "description": tool.description or tool.title or "",
            "parameters": dict(tool.input_schema),
        },
    }
    return _McpTool(
        name=name,
        function=call,
        arguments=_Any,
        schema=schema,
        concurrent=False,
        parameters=("arguments",),
        is_async=True,
    )


def _content(result: Any) -> list[str | Image] | str:
    parts: list[str | Image] = []
    for part in result.content:
        if part.type == "text":
            parts.append(part.text)
        elif part.type == "image":
            parts.append(Image(base64.b64decode(part.data), part.mime_type))
        elif part.type == "resource" and getattr(part.resource, "text", None) is not None:
            parts.append(part.resource.text)
        else:
            parts.append(f"[{part.type} content is not shown]")
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content)
    if all(isinstance(part, str) for part in parts):
        return "\n".join(map(str, parts))
    return parts


def _text(result: Any) -> str:
    return "\n".join(part.text for part in result.content if part.type == "text")
