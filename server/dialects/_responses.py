"""OpenAI's Responses: requests to chat form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.server._errors import Refused
from trajgym.server.dialects._base import ClientCall, as_text, new_id, read_signature

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.server.dialects._base import Resolve
    from trajgym.trajectory import Message

__all__ = ["parse_responses"]

_SAME = ("model", "temperature", "top_p", "stream", "parallel_tool_calls", "seed", "user")
_CALLS = {"function_call", "custom_tool_call"}
_OUTPUTS = {"function_call_output", "custom_tool_call_output"}


def parse_responses(body: dict[str, Any], resolve: Resolve) -> ClientCall:
    """Return a Responses request in chat form.

    Raises:
        Refused: the request has no input, or continues an answer that is not ours.
    """
    signatures: list[str] = []
    messages: list[Message] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": as_text(body["instructions"])})
    previous = body.get("previous_response_id")
    if previous:
        before = resolve(str(previous))
        if before is None:
            raise Refused(404, f"previous_response_id: no response {previous!r} in this session")
        # Instructions are not inherited: those of this request replace the earlier ones.
        while before and before[0].get("role") == "system" and messages:
            before = before[1:]
        messages += before
    messages += _items(body.get("input"), signatures)
    tools, custom, namespaces = _tools(body.get("tools"))
    form = _format(body.get("text"))
    chat = _settings(body, tools, form)
    chat["messages"] = messages
    return ClientCall(
        dialect="responses",
        name=new_id("resp_"),
        body=chat,
        messages=messages,
        tools=tools,
        stream=bool(body.get("stream")),
        previous=str(previous) if previous else None,
        signatures=signatures,
        extras=[form],
        given=body,
        custom=custom,
        namespaces=namespaces,
    )


def _settings(
    body: dict[str, Any], tools: list[dict[str, Any]], form: dict[str, Any] | None
) -> dict[str, Any]:
    chat: dict[str, Any] = {name: body[name] for name in _SAME if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort"):
        chat["reasoning_effort"] = reasoning["effort"]
    if tools:
        chat["tools"] = tools
        choice = body.get("tool_choice")
        if isinstance(choice, str):
            chat["tool_choice"] = choice
        elif isinstance(choice, dict) and choice.get("name"):
            chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    else:
        chat.pop("parallel_tool_calls", None)
    if form is not None:
        chat["response_format"] = form
    return chat


def _items(given: Any, signatures: list[str]) -> list[Message]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise Refused(400, "input must be a string or a list of items")
    messages: list[Message] = []
    spoken: Message | None = None
    for item in given:
        if not isinstance(item, dict):
            raise Refused(400, "input must be a list of items")
        kind = item.get("type") or "message"
        if kind in {"reasoning", *_CALLS} or (
            kind == "message" and item.get("role") == "assistant"
        ):
            if spoken is None:
                spoken = {"role": "assistant", "content": ""}
                messages.append(spoken)
            _speak(spoken, kind, item, signatures)
            continue
        spoken = None
        if (message := _heard(kind, item)) is not None:
            messages.append(message)
    return messages


def _speak(message: Message, kind: str, item: dict[str, Any], signatures: list[str]) -> None:
    if kind == "reasoning":
        if name := read_signature(item.get("encrypted_content")):
            signatures.append(name)
        thought = as_text(item.get("content")) or as_text(item.get("summary"))
        if thought:
            message["reasoning_content"] = message.get("reasoning_content", "") + thought
    elif kind in _CALLS:
        arguments = item.get("arguments")
        if kind == "custom_tool_call":
            arguments = json.dumps({"input": item.get("input")}, ensure_ascii=False)
        call = {
            "id": str(item.get("call_id") or item.get("id") or ""),
            "type": "function",
            "function": {"name": _chat_name(item), "arguments": str(arguments or "")},
        }
        message.setdefault("tool_calls", []).append(call)
    else:
        message["content"] += as_text(item.get("content"))


def _heard(kind: str, item: dict[str, Any]) -> Message | None:
    if kind in _OUTPUTS:
        identity = str(item.get("call_id") or "")
        return {"role": "tool", "tool_call_id": identity, "content": _content(item.get("output"))}
    if kind == "message":
        return {"role": item.get("role") or "user", "content": _content(item.get("content"))}
    if kind in {"item_reference", "compaction_trigger"}:
        return None
    # Items without an equivalent in a chat are passed to the model as JSON.
    return {"role": "user", "content": json.dumps(item, ensure_ascii=False, sort_keys=True)}


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content if isinstance(content, str) else "" if content is None else str(content)
    parts: list[dict[str, Any]] = []
    for part in content:
        if not isinstance(part, dict):
            continue
        if part.get("type") == "input_image":
            image = {"url": part.get("image_url")}
            if part.get("detail"):
                image["detail"] = part["detail"]
            parts.append({"type": "image_url", "image_url": image})
        elif isinstance(part.get("text"), str):
            parts.append({"type": "text", "text": part["text"]})
        else:
            parts.append({"type": "text", "text": json.dumps(part, sort_keys=True)})
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _chat_name(tool: dict[str, Any], namespace: object = None) -> str:
    """Return the name under which the engine knows a tool or a call's tool."""
    namespace = namespace or tool.get("namespace")
    return f"{namespace}__{tool.get('name')}" if namespace else str(tool.get("name"))


def _tools(
    given: Any,
) -> tuple[list[dict[str, Any]], frozenset[str], dict[str, tuple[str, str]]]:
    """Return tools in chat form, the names of those with free-text input, and namespaces.

    A chat has no namespaces: their tools are listed with the others, under longer names.
    """
    tools: list[dict[str, Any]] = []
    custom: set[str] = set()
    namespaces: dict[str, tuple[str, str]] = {}
    for namespace, tool in _flat(given):
        name = _chat_name(tool, namespace)
        if namespace:
            namespaces[name] = (namespace, str(tool["name"]))
        function: dict[str, Any] = {"name": name}
        if tool.get("description"):
            function["description"] = tool["description"]
        if tool.get("type") == "custom":
            custom.add(name)
            function["parameters"] = {
                "type": "object",
                "properties": {"input": {"type": "string"}},
                "required": ["input"],
            }
        else:
            function["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
            if tool.get("strict") is not None:
                function["strict"] = tool["strict"]
        tools.append({"type": "function", "function": function})
    return tools, frozenset(custom), namespaces


def _flat(given: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield namespace and definition of every tool that the client runs itself."""
    for tool in given or ():
        if not isinstance(tool, dict) or not tool.get("name"):
            continue  # a tool that the service itself would run
        if tool.get("type") != "namespace":
            yield "", tool
            continue
        for inner in tool.get("tools") or ():
            if isinstance(inner, dict) and inner.get("name"):
                yield str(tool["name"]), inner


def _format(text: Any) -> dict[str, Any] | None:
    form = text.get("format") if isinstance(text, dict) else None
    if not isinstance(form, dict) or form.get("type") in {None, "text"}:
        return None
    if form["type"] != "json_schema":
        return dict(form)
    schema = {k: v for k, v in form.items() if k != "type"}
    return {"type": "json_schema", "json_schema": schema}
