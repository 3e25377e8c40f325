"""Writing ATIF."""

from __future__ import annotations

import json
import mimetypes
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from trajgym.adapters.exports._conversation import base_chain, read_arguments
from trajgym.adapters.exports._images import write_image
from trajgym.adapters.interchange._outgoing import file_name, tracks, write_json
from trajgym.adapters.interchange._own import OWN, own_session, own_turn
from trajgym.adapters.interchange.formats.atif._format import FORMAT
from trajgym.trajectory import InvalidInput, attempt_turns, tool_calls_of

if TYPE_CHECKING:
    from trajgym.adapters.exports._stream import Export
    from trajgym.adapters.interchange._outgoing import Include, Track
    from trajgym.trajectory import Message, SessionTree, Turn

__all__ = ["export_atif"]

VERSION = "ATIF-v1.8"
_MEDIA = {"image/jpeg", "image/png", "image/gif", "image/webp"}


def export_atif(export: Export, *, include: Include = "all") -> None:
    """Write ``SESSION/trajectory.json`` in ATIF v1.8, Harbor's format, one per attempt.

    What ATIF has no field for is kept under ``extra.trajgym``.

    Args:
        export: what to write.
        include: ``all`` attempts with turns, ``scored`` or ``passed`` ones.
    """
    for track in tracks(export, FORMAT, include):
        name = f"{file_name(track.id)}/trajectory.json"
        path = export.out / name
        try:
            write_json(path, _Writer(export, track).document())
        except InvalidInput as error:
            export.report.drop(track.tree.record.id, track.attempt.index, str(error))
        else:
            export.file(name)
            export.report.count(synthetic=any(turn.synthetic for turn in track.tree.turns))


class _Writer:
    def __init__(self, export: Export, track: Track) -> None:
        self._export, self._track = export, track
        self._folder = export.out / file_name(track.id)
        self._turns = [track.tree.turns[i] for i in attempt_turns(track.tree, track.attempt)]

    def document(self) -> dict[str, Any]:
        """Return the attempt's trajectory, its sub-agents embedded."""
        return {
            "schema_version": VERSION,
            "session_id": self._track.id,
            "trajectory_id": self._track.id,
            **self._trajectory(self._track.tree, self._track.leaf),
            "extra": {OWN: own_session(self._track)},
        }

    def _trajectory(self, tree: SessionTree, leaf: Turn) -> dict[str, Any]:
        chain = base_chain(tree, leaf)
        subs: dict[int, list[Turn]] = {}
        for turn in self._turns:
            if turn.edge == "spawn" and turn.parent is not None:
                mine = [one for one in self._turns if one.agent == turn.agent]
                subs.setdefault(turn.parent, []).append(mine[-1])
        steps: list[dict[str, Any]] = []
        embedded = []
        for turn in chain:
            self._context(steps, turn)
            steps.append(self._agent_step(tree, turn))
            self._messages(steps, turn.observation)
            for last in subs.get(turn.index, ()):
                _add_reference(steps[_last_agent(steps)], last.agent)
                embedded.append({"trajectory_id": last.agent, **self._trajectory(tree, last)})
        for number, step in enumerate(steps, 1):
            step["step_id"] = number
        model = chain[-1].policy.partition(":")[2] or "unknown"
        agent: dict[str, Any] = {
            "name": "trajgym",
            "version": version("trajgym"),
            "model_name": model,
        }
        if tree.record.tools:
            agent["tool_definitions"] = tree.record.tools
        subagents = {"subagent_trajectories": embedded} if embedded else {}
        return {"agent": agent, "steps": steps, **subagents}

    def _context(self, steps: list[dict[str, Any]], turn: Turn) -> None:
        """Write the messages that a turn adds to its base; the first of them is marked."""
        before = len(steps)
        self._messages(steps, turn.context)
        if before and len(steps) > before:
            _own_of(steps[before])["context"] = True

    def _messages(self, steps: list[dict[str, Any]], messages: list[Message]) -> None:
        for message in messages:
            role = message["role"]
            content = self._content(message.get("content"))
            if role == "tool":
                self._result(steps, message, content)
                continue
            source = {"user": "user", "assistant": "agent"}.get(role, "system")
            step: dict[str, Any] = {"step_id": 0, "source": source, "message": content}
            if role == "assistant":
                step["is_copied_context"] = True
                self._calls(step, message)
            elif role == "developer":
                _own_of(step)["role"] = role
            steps.append(step)

    def _result(self, steps: list[dict[str, Any]], message: Message, content: Any) -> None:
        """Put a tool's result into the step that called it."""
        call = message.get("tool_call_id")
        for step in reversed(steps):
            if any(one["tool_call_id"] == call for one in step.get("tool_calls") or ()):
                results = step.setdefault("observation", {"results": []})["results"]
                results.append({"source_call_id": call, "content": content})
                return
        raise InvalidInput(f"a result for call {call!r}, which no turn made")

    def _agent_step(self, tree: SessionTree, turn: Turn) -> dict[str, Any]:
        message = turn.message
        step: dict[str, Any] = {
            "step_id": 0,
            "source": "agent",
            "message": self._content(message.get("content")),
            "model_name": turn.policy.partition(":")[2] or turn.policy or "unknown",
            "llm_call_count": 1,
        }
        if turn.started_at:
            step["timestamp"] = datetime.fromtimestamp(turn.started_at, UTC).isoformat()
        self._calls(step, message)
        if metrics := _metrics(tree, turn):
            step["metrics"] = metrics
        own = _own_of(step)
        own["turn"] = own_turn(turn)
        if turn.kept is not None:
            own |= {"kept": turn.kept, "rewrite": turn.edge == "rewrite"}
        if turn.tokens is not None:
            kept = turn.tokens.to_json()
            own["tokens"] = {"segments": kept["segments"], "spans": kept["spans"]}
            if images := tree.images(turn):
                own["tokens"]["images"] = [list(image) for image in images]
        return step

    def _calls(self, step: dict[str, Any], message: Message) -> None:
        if message.get("reasoning_content"):
            step["reasoning_content"] = message["reasoning_content"]
        if calls := [_call(call) for call in tool_calls_of(message)]:
            step["tool_calls"] = calls

    def _content(self, content: Any) -> Any:
        if not isinstance(content, list):
            return content or ""
        return [self._part(part) for part in content]

    def _part(self, part: dict[str, Any]) -> dict[str, Any]:
        if part.get("type") == "text":
            return {"type": "text", "text": part.get("text", "")}
        if part.get("type") != "image_url":
            raise InvalidInput(f"a {part.get('type')!r} part, which ATIF can't hold")
        url = part["image_url"]["url"]
        path, media = url, mimetypes.guess_type(url)[0]
        if url.startswith("blob:"):
            if self._export.blobs is None:
                raise InvalidInput("the session has images; pass blobs=run.blob to export")
            name = url[len("blob:") :]
            media = self._export.blobs(name).media_type
            self._folder.mkdir(parents=True, exist_ok=True)
            path = write_image(self._folder, name, self._export.blobs)
        if media not in _MEDIA:
            raise InvalidInput(f"an image of type {media}, which ATIF can't hold")
        return {"type": "image", "source": {"media_type": media, "path": path}}


def _own_of(step: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = step.setdefault("extra", {}).setdefault(OWN, {})
    return own


def _last_agent(steps: list[dict[str, Any]]) -> int:
    return max(i for i, step in enumerate(steps) if "llm_call_count" in step)


def _add_reference(step: dict[str, Any], agent: str) -> None:
    results = step.setdefault("observation", {"results": []})["results"]
    if not results:
        results.append({"content": None})
    results[-1].setdefault("subagent_trajectory_ref", []).append({"trajectory_id": agent})


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    text = function["arguments"]
    try:
        arguments = read_arguments(text)
    except ValueError:
        arguments = None
    plain = arguments if isinstance(arguments, dict) else {}
    found = {"tool_call_id": call["id"], "function_name": function["name"], "arguments": plain}
    if json.dumps(arguments, ensure_ascii=False) != text:
        found["extra"] = {OWN: {"arguments": text}}
    return found


def _metrics(tree: SessionTree, turn: Turn) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if turn.usage is not None:
        names = ("prompt_tokens", "completion_tokens", "cached_tokens")
        found |= {name: getattr(turn.usage, name) for name in names}
    if turn.tokens is not None:
        found["prompt_token_ids"] = tree.prompt(turn).tolist()
        found["completion_token_ids"] = turn.tokens.response_ids.tolist()
        found["logprobs"] = turn.tokens.logprobs.tolist()
    if "cost_usd" in turn.signals:
        found["cost_usd"] = turn.signals["cost_usd"]
    return found
