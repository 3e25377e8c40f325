"""Anthropic's Messages: requests to chat form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.server._errors import Refused
from trajgym.server.dialects._base import ClientCall, as_list, as_text, new_id, read_signature

if TYPE_CHECKING:
    from trajgym.trajectory import Message

__all__ = ["parse_messages"]

_SAME = ("model", "temperature", "top_p", "top_k", "stream", "seed", "min_p")


def parse_messages(body: dict[str, Any]) -> ClientCall:
    """Return a Messages request in chat form.

    Raises:
        Refused: the request has no conversation.
    """
    signatures: list[str] = []
    messages = _system(body.get("system"))
    given = as_list(body.get("messages"), "messages")
    for message in given:
        if not isinstance(message, dict):
            raise Refused(400, "messages must be a list of messages")
        messages += _message(message, signatures)
    if not given:
        raise Refused(400, "messages must not be empty")
    tools = [tool for tool in map(_tool, body.get("tools") or ()) if tool is not None]
    chat: dict[str, Any] = {name: body[name] for name in _SAME if body.get(name) is not None}
    chat["messages"] = messages
    if body.get("max_tokens") is not None:
        chat["max_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if tools:
        chat["tools"] = tools
        _choose(chat, body.get("tool_choice"))
    form = _format(body)
    if form is not None:
        chat["response_format"] = form
    return ClientCall(
        dialect="messages",
        name=new_id("msg_"),
        body=chat,
        messages=messages,
        tools=tools,
        stream=bool(body.get("stream")),
        signatures=signatures,
        extras=[form],
        given=body,
    )


def _system(system: Any) -> list[Message]:
    if not system:
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": system}]
    parts = [_text(block["text"]) for block in system if block.get("text")]
    return [{"role": "system", "content": parts}] if parts else []


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _message(message: dict[str, Any], signatures: list[str]) -> list[Message]:
    role, content = message.get("role"), message.get("content")
    if isinstance(content, str) or content is None:
        return [{"role": role, "content": content or ""}]
    blocks = [block for block in content if isinstance(block, dict)]
    if role == "assistant":
        return [_assistant(blocks, signatures)]
    results = [_result(b) for b in blocks if b.get("type") == "tool_result"]
    parts = [p for b in blocks if b.get("type") != "tool_result" for p in _parts(b)]
    return [*results, {"role": role, "content": _folded(parts)}] if parts else results


def _folded(parts: list[dict[str, Any]]) -> Any:
    if len(parts) == 1 and parts[0].get("type") == "text":
        return parts[0]["text"]
    return parts


def _assistant(blocks: list[dict[str, Any]], signatures: list[str]) -> Message:
    message: Message = {"role": "assistant", "content": ""}
    texts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts += [_text(block["text"])] if block.get("text") else []
        elif kind in {"thinking", "redacted_thinking"}:
            thoughts += [block["thinking"]] if block.get("thinking") else []
            if name := read_signature(block.get("signature") or block.get("data")):
                signatures.append(name)
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": str(block.get("name")), "arguments": arguments}
            calls.append({"id": str(block.get("id")), "type": "function", "function": function})
        else:
            texts += _parts(block)
    if texts:
        message["content"] = _folded(texts)
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _result(block: dict[str, Any]) -> Message:
    content = block.get("content")
    if isinstance(content, list):
        content = _folded([p for b in content if isinstance(b, dict) for p in _parts(b)])
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id")), "content": content or ""}


def _parts(block: dict[str, Any]) -> list[dict[str, Any]]:
    kind = block.get("type")
    if kind == "text":
        return [_text(block["text"])] if block.get("text") else []
    source = block.get("source") or {}
    if kind == "image":
        url = source.get("url")
        if source.get("type") == "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return [{"type": "image_url", "image_url": {"url": url}}]
    if kind == "document" and source.get("type") == "text":
        return [_text(str(source.get("data") or ""))]
    plain = {k: v for k, v in block.items() if k != "cache_control"}
    text = as_text(block.get("content")) or json.dumps(plain, ensure_ascii=False, sort_keys=True)
    return [_text(text)]


def _tool(tool: Any) -> dict[str, Any] | None:
    """Return a tool in chat form; None for tools that the service itself would run."""
    if not isinstance(tool, dict) or "input_schema" not in tool:
        return None
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choose(chat: dict[str, Any], choice: Any) -> None:
    if not isinstance(choice, dict):
        return
    kind = choice.get("type")
    if kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in {"auto", "any", "none"}:
        chat["tool_choice"] = "required" if kind == "any" else kind
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False


def _format(body: dict[str, Any]) -> dict[str, Any] | None:
    config = body.get("output_config")
    form = body.get("output_format") or (config.get("format") if isinstance(config, dict) else None)
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": form.get("schema")},
        }
    return None
