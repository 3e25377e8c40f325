"""Writing verifiers' episodes."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters.exports._files import JsonLines
from trajgym.adapters.interchange._outgoing import cleaned, content_of, tracks
from trajgym.adapters.interchange._own import OWN, own_session, own_turn
from trajgym.adapters.interchange.formats.verifiers._format import FORMAT
from trajgym.trajectory import InvalidInput, attempt_turns, text_of, tool_calls_of

if TYPE_CHECKING:
    from trajgym.adapters.exports._stream import Export
    from trajgym.adapters.interchange._outgoing import Include, Track
    from trajgym.trajectory import IntArray, Message, Turn

__all__ = ["export_verifiers"]

_FINISH = {"stop", "length", "tool_calls"}


def export_verifiers(export: Export, *, include: Include = "all") -> None:
    """Write ``traces.jsonl``, verifiers' file of episodes: one of one trace for each attempt.

    The ids of a path through the trace's message graph are those of the engine. What a trace has
    no field for is kept under ``info.trajgym``.

    Args:
        export: what to write.
        include: ``all`` attempts with turns, ``scored`` or ``passed`` ones.
    """
    with JsonLines(export.file("traces.jsonl")) as sink:
        for track in tracks(export, FORMAT, include):
            try:
                sink.write(_episode(export, track))
            except InvalidInput as error:
                export.report.drop(track.tree.record.id, track.attempt.index, str(error))
            else:
                export.report.count(synthetic=track.leaf.synthetic)


def _episode(export: Export, track: Track) -> dict[str, Any]:
    record, attempt = track.tree.record, track.attempt
    data: dict[str, Any] = {"id": record.task}
    if track.task is not None:
        data |= {"info": track.task.data}
        data |= {"prompt": track.task.prompt} if track.task.prompt is not None else {}
    task = {"type": "Task", "data": data, "key": record.task}
    ok = attempt.status.kind == "completed"
    errors = []
    if not attempt.status.scored:
        error = {"type": str(attempt.status), "message": attempt.cause}
        errors.append(error | ({"traceback": attempt.error} if attempt.error else {}))
    graph = _Graph(export, track)
    model = track.leaf.policy.partition(":")[2] or track.leaf.policy or "unknown"
    trace: dict[str, Any] = {
        "version": 1,
        "id": track.id,
        "verifiers": {"version": f"trajgym {version('trajgym')}"},
        "task": task,
        "agent": {"config": {"model": model}, "name": "agent"},
        "tools": [_tool(one) for one in record.tools],
        "nodes": graph.nodes,
        "calls": graph.calls,
        "info": {OWN: own_session(track) | {"turns": graph.turns}},
        "is_completed": attempt.status.ended,
        "ok": ok or attempt.status.scored,
        "is_timeout": attempt.status.detail == "seconds",
        "stop_condition": _stop(track),
        "errors": errors,
        "timing": {"start": record.created_at},
    }
    if attempt.outcome is not None:
        trace["rewards"] = {OWN: {"score": attempt.outcome.score, "weight": 1.0}}
    episode = {
        "id": track.id,
        "env": {"id": record.env_id},
        "task": task,
        "ok": trace["ok"],
        "traces": [trace],
    }
    return episode | ({"group": {"id": record.group}} if record.group else {})


def _stop(track: Track) -> str:
    status = track.attempt.status
    if status.kind == "truncated":
        return {"turns": "max_turns", "tokens": "max_total_tokens"}.get(
            status.detail, f"{status.detail}_timeout"
        )
    return "agent_completed" if status.scored else "error"


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", **tool["function"]}


class _Graph:
    """The message graph of an attempt: each message once, with the ids that it adds.

    A path whose ids are not a prefix of the next prompt (a rewritten context) is written again
    from the root, without ids, as verifiers does.
    """

    def __init__(self, export: Export, track: Track) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.turns: list[dict[str, Any]] = []
        self._export, self._tree = export, track.tree
        self._ids: list[IntArray] = []
        self._paths: dict[int, list[int]] = {}
        self._place: dict[int, int] = {}
        for index in attempt_turns(track.tree, track.attempt):
            self._add(track.tree.turns[index])

    def _add(self, turn: Turn) -> None:
        base = self._tree.base(turn)
        path = [] if base is None else self._paths[base.index][: turn.kept]
        prompt = np.empty(0, np.int32) if turn.tokens is None else self._tree.prompt(turn)
        held = self._held(path)
        if turn.tokens is not None and not np.array_equal(held, prompt[: held.size]):
            path, held = self._copy(path), held[:0]
        for message in turn.context:
            self._append(path, message)
        context = path[len(path) - len(turn.context) :]
        sampled = self._append(path, turn.message, turn)
        if turn.tokens is not None:
            self._tokens(sampled, turn, prompt[held.size :])
        for message in turn.observation:
            self._append(path, message)
        self._paths[turn.index] = path
        self._place[turn.index] = len(self.turns)
        self._links(turn, self.nodes[sampled])
        self.calls.append(_call(turn, sampled))
        self.turns.append(
            self._own(turn, sampled)
            | {"context": context, "observation": path[path.index(sampled) + 1 :]}
        )

    def _held(self, path: list[int]) -> IntArray:
        return np.concatenate([np.empty(0, np.int32), *(self._ids[node] for node in path)])

    def _copy(self, path: list[int]) -> list[int]:
        copied: list[int] = []
        for node in path:
            fresh = {"message": self.nodes[node]["message"], "timestamp": 0.0}
            self._node(copied, fresh)
        return copied

    def _append(self, path: list[int], message: Message, turn: Turn | None = None) -> int:
        node: dict[str, Any] = {"message": self._message(message)}
        if turn is not None:
            node |= {"sampled": True, "timestamp": turn.started_at + turn.policy_seconds}
        return self._node(path, {"timestamp": 0.0} | node)

    def _node(self, path: list[int], node: dict[str, Any]) -> int:
        if path:
            node["parent"] = path[-1]
        path.append(len(self.nodes))
        self.nodes.append(node)
        self._ids.append(np.empty(0, np.int32))
        return path[-1]

    def _tokens(self, node: int, turn: Turn, added: IntArray) -> None:
        tokens = turn.tokens
        assert tokens is not None
        self._ids[node] = np.concatenate([added, tokens.response_ids])
        mask = tokens.sampled_mask
        self.nodes[node] |= {
            "token_ids": self._ids[node].tolist(),
            "mask": [False] * added.size + mask.tolist(),
            "logprobs": tokens.logprobs[mask].tolist(),
        }

    def _links(self, turn: Turn, node: dict[str, Any]) -> None:
        """Say which turn called a sub-agent, and which sub-agents returned to a turn."""
        kind = {"spawn": "subagent_call", "return": "subagent_return"}.get(turn.edge)
        if kind is None or turn.parent is None:
            return
        node["semantic_parents"] = [
            {"node": self.turns[self._place[one]]["node"], "type": kind}
            for one in (turn.parent, *turn.returns)
            if one in self._place
        ]

    def _own(self, turn: Turn, node: int) -> dict[str, Any]:
        own: dict[str, Any] = {
            "node": node,
            "turn": own_turn(turn),
            "edge": turn.edge,
            "parent": None if turn.parent is None else self._place[turn.parent],
            "agent": turn.agent,
            "kept": turn.kept,
            "returns": [self._place[one] for one in turn.returns if one in self._place],
        }
        if turn.tokens is not None:
            kept = turn.tokens.to_json()
            own["tokens"] = {"segments": kept["segments"], "spans": kept["spans"]}
            own["tokens"]["response"] = turn.tokens.response_ids.size
            if not turn.tokens.sampled_mask.all():
                own["tokens"]["logprobs"] = turn.tokens.logprobs.tolist()
            if images := self._tree.images(turn):
                own["tokens"]["images"] = [list(image) for image in images]
        return own

    def _message(self, message: Message) -> dict[str, Any]:
        message = cleaned(message)
        role = message["role"]
        if role != "assistant":
            content = content_of(self._export, message)
            found = {"role": role, "content": "" if content is None else content}
            if role == "developer":
                return {**found, "role": "system", OWN: role}
            return found | {k: message[k] for k in ("tool_call_id", "name") if k in message}
        if not isinstance(message.get("content") or "", str):
            unfit = [one["type"] for one in message["content"] if one.get("type") != "text"]
            if unfit:
                raise InvalidInput(f"a {unfit[0]!r} part in an answer, which verifiers can't hold")
        found = {"role": role, "content": text_of(message)}
        if message.get("reasoning_content"):
            found["reasoning_content"] = message["reasoning_content"]
        if calls := tool_calls_of(message):
            found["tool_calls"] = [
                {"id": one["id"], "type": "function", **one["function"]} for one in calls
            ]
        return found


def _call(turn: Turn, node: int) -> dict[str, Any]:
    call: dict[str, Any] = {
        "node": node,
        "model": turn.policy.partition(":")[2] or turn.policy or "unknown",
        "time": {"start": turn.started_at, "end": turn.started_at + turn.policy_seconds},
    }
    if turn.finish in _FINISH:
        call["finish_reason"] = turn.finish
    if turn.usage is not None:
        call["usage"] = {
            "prompt_tokens": turn.usage.prompt_tokens - turn.usage.cached_tokens,
            "completion_tokens": turn.usage.completion_tokens,
            "cached_input_tokens": turn.usage.cached_tokens,
            "reasoning_tokens": turn.usage.reasoning_tokens,
        }
    if turn.sampling is not None:
        names = ("temperature", "top_p", "max_tokens")
        values = {name: getattr(turn.sampling, name) for name in names}
        call["sampling"] = {name: value for name, value in values.items() if value is not None}
    return call
