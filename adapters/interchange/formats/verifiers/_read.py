"""Reading verifiers' episodes; :mod:`._results` reads the rollouts of earlier versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters.interchange._incoming import (
    Draft,
    ImportedMessage,
    call_of,
    need,
    outcome_of,
    segments_of,
    tools_of,
    turns_of,
)
from trajgym.adapters.interchange._own import OWN, restore_session, restored_turn
from trajgym.adapters.interchange.formats.verifiers._ends import ended
from trajgym.adapters.interchange.formats.verifiers._results import read_result
from trajgym.trajectory import InvalidInput, Sampling, TurnTokens, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.adapters.interchange._incoming import Source
    from trajgym.trajectory import Edge, IntArray, Message, Turn

__all__ = ["read_verifiers"]

_STREAMS = (
    "advantages", "reference_logprobs", "trainer_logprobs", "entropies", "loss_weights",
    "is_content",
)  # fmt: skip


def read_verifiers(source: Source) -> Iterator[Draft]:
    """Yield the traces of each episode, and each rollout."""
    for where, line in source.lines():
        if "traces" in line:
            yield from _episode(source, line, where)
        elif "completion" in line:
            yield read_result(source, line, where)
        else:
            raise InvalidInput(f"{where}: neither an episode with traces nor a rollout")


def _episode(source: Source, line: dict[str, Any], where: str) -> Iterator[Draft]:
    traces = need(line, "traces", list, where)
    policy = ((line.get("run") or {}).get("work") or {}).get("policy")
    versions = None if policy is None else (int(policy["start"]), int(policy["end"]))
    source.lose("episode", bool(line.get("run") or line.get("errors")))
    found = 0
    for number, trace in enumerate(traces, 1):
        place = f"{where}: trace {number}"
        if not isinstance(trace, dict):
            raise InvalidInput(f"{place} is {type(trace).__name__}; expected an object")
        turns = _Trace(source, trace, place, versions).turns()
        if not turns:
            continue
        found += 1
        yield _draft(source, line, trace, turns, place)
    source.lose("empty episodes", not found)


def _draft(
    source: Source, episode: dict[str, Any], trace: dict[str, Any], turns: list[Turn], where: str
) -> Draft:
    own = (trace.get("info") or {}).get(OWN)
    tools = [one for one in trace.get("tools") or () if one.get("type", "function") == "function"]
    draft = Draft(
        task=_task_id(episode, trace, where),
        turns=turns,
        session=need(trace, "id", str, where) if trace.get("id") else "",
        group=(episode.get("group") or {}).get("id", ""),
        tools=tools_of(map(_function, tools), where),
        started=float((trace.get("timing") or {}).get("start") or 0.0),
    )
    _note_losses(source, trace)
    if own:
        restore_session(draft, own)
        return draft
    data = dict(trace["task"]["data"])
    prompt = data.pop("prompt", None)
    draft.prompt = prompt if isinstance(prompt, str) else None
    draft.data = data if prompt is draft.prompt else data | {"prompt": prompt}
    agent = trace.get("agent") or {}
    draft.env = {"id": (episode.get("env") or {}).get("id") or "imported:verifiers", "config": {}}
    draft.labels = {"agent": agent.get("name", "agent"), "episode": str(episode.get("id", ""))}
    if not agent.get("trainable", True):
        draft.labels["trainable"] = "false"
    draft.status, draft.cause, draft.error = ended(trace)
    rewards = {k: v for k, v in (trace.get("rewards") or {}).items() if v is not None}
    if rewards and draft.status.scored:
        score = sum(one["score"] * one.get("weight", 1.0) for one in rewards.values())
        metrics = trace.get("metrics") or {}
        details = {"rewards": rewards} | ({"metrics": metrics} if metrics else {})
        draft.outcome = outcome_of(score, where, details)
    return draft


def _task_id(episode: dict[str, Any], trace: dict[str, Any], where: str) -> str:
    task = need(trace, "task", dict, where)
    data = need(task, "data", dict, where)
    name = data.get("id") or data.get("name")
    if name:
        return str(name)
    env = (episode.get("env") or {}).get("id") or "task"
    return f"{env}/{data['idx'] if data.get('idx') is not None else (task.get('key') or '')[:12]}"


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tool.items() if key != "type" and value is not None}


def _note_losses(source: Source, trace: dict[str, Any]) -> None:
    info = set(trace.get("info") or {})
    timing = trace.get("timing") or {}
    source.lose("metadata", bool(info - {OWN}))
    source.lose("interceptions", bool(trace.get("request_rewrites")))
    source.lose("interceptions", bool(trace.get("response_rewrites")))
    spans = (timing.get(name) or {} for name in ("boot", "setup", "finalize", "scoring"))
    source.lose("bounds", any(span.get("end") for span in spans))
    agent = trace.get("agent") or {}
    source.lose("agent", OWN not in info and bool(agent.get("config") or agent.get("runtime")))
    calls = [one for one in trace.get("calls") or () if one.get("node") is None]
    source.lose("other calls", bool(calls or trace.get("extra_usage")))
    custom = any(one.get("type", "function") != "function" for one in trace.get("tools") or ())
    source.lose("provider state", custom)


@dataclass(slots=True)
class _Place:
    """A sampled message in the graph, as a turn."""

    node: int
    agent: str
    shown: list[int]
    context: list[int]
    edge: Edge = "continue"
    parent: int | None = None
    kept: int | None = None
    observation: list[int] = field(default_factory=list)
    returns: list[int] = field(default_factory=list)

    def observe(self, nodes: list[int]) -> None:
        """Add messages that answer this one."""
        self.observation += nodes
        self.shown = [*self.shown, *nodes]


class _Trace:
    """Reads the message graph of a trace."""

    def __init__(
        self,
        source: Source,
        trace: dict[str, Any],
        where: str,
        versions: tuple[int, int] | None,
    ) -> None:
        self._source, self._where, self._versions = source, where, versions
        self._nodes = need(trace, "nodes", list, where) if "nodes" in trace else []
        self._calls = {call["node"]: call for call in trace.get("calls") or () if "node" in call}
        self._own = ((trace.get("info") or {}).get(OWN) or {}).get("turns")
        agent = (trace.get("agent") or {}).get("config") or {}
        self._model = agent.get("model") or "unknown"
        self._check()
        self._messages = [self._message(number) for number in range(len(self._nodes))]

    def _check(self) -> None:
        for number, node in enumerate(self._nodes):
            parent = node.get("parent")
            if parent is not None and not 0 <= parent < number:
                raise InvalidInput(
                    f"{self._where}: node {number} has parent {parent}; expected an earlier node"
                )

    def turns(self) -> list[Turn]:
        """Return a turn for each sampled message, in order."""
        if self._own is not None:
            return [self._restored(index, own) for index, own in enumerate(self._own)]
        return self._found()

    def _restored(self, index: int, own: dict[str, Any]) -> Turn:
        node = own["node"]
        fields = restored_turn(own["turn"]) | {"tokens": self._own_tokens(node, own.get("tokens"))}
        (turn,) = turns_of(
            [ImportedMessage(self._messages[node], fields)],
            start=index,
            parent=own["parent"],
            edge=own["edge"],
            agent=own["agent"],
            kept=own["kept"],
            returns=own["returns"],
            context=[self._messages[one] for one in own["context"]],
            observation=[self._messages[one] for one in own["observation"]],
        )
        return turn

    def _found(self) -> list[Turn]:
        """Follow the graph: what each sampled message adds to the turn before it."""
        sampled = [number for number, node in enumerate(self._nodes) if node.get("sampled")]
        places: list[_Place] = []
        agents: dict[int, str] = {}
        for node in sampled:
            path = self._path(node)
            calls, returns = self._links(node, agents)
            above = [agents[one] for one in path[:-1] if one in agents]
            if calls and not above:
                agent = f"agent-{len(set(agents.values()))}"
                place = _Place(node, agent, path, path[:-1], "spawn", sampled.index(calls[0]))
            else:
                agent = above[-1] if above else "main"
                place = self._after(places, node, agent, path)
            if returns and place.parent is not None:
                *place.returns, place.parent = [sampled.index(one) for one in returns]
                place.edge = "return"
            places.append(place)
            agents[node] = agent
        self._trailing(places)
        return [self._turn(index, place) for index, place in enumerate(places)]

    def _after(self, places: list[_Place], node: int, agent: str, path: list[int]) -> _Place:
        """Return a turn after the last of its agent, whose observation a continuation gives."""
        parent = max((i for i, one in enumerate(places) if one.agent == agent), default=None)
        if parent is None:
            return _Place(node, agent, path, path[:-1])
        base = places[parent]
        shared = 0
        while shared < min(len(base.shown), len(path) - 1) and base.shown[shared] == path[shared]:
            shared += 1
        if shared < len(base.shown):
            return _Place(node, agent, path, path[shared:-1], "rewrite", parent, shared)
        base.observe(path[shared:-1])
        return _Place(node, agent, path, [], "continue", parent)

    def _trailing(self, places: list[_Place]) -> None:
        """Add the messages after the last call to the turns that they follow."""
        used = {node for place in places for node in place.shown}
        ends: dict[int | None, _Place] = {place.shown[-1]: place for place in places}
        lost = 0
        for number, node in enumerate(self._nodes):
            if number in used:
                continue
            place = ends.pop(node.get("parent"), None)
            if place is None:
                lost += 1
                continue
            place.observe([number])
            ends[number] = place
        self._source.lose("other calls", bool(lost and places))

    def _turn(self, index: int, place: _Place) -> Turn:
        messages = [ImportedMessage(self._messages[one]) for one in place.observation]
        answer = ImportedMessage(self._messages[place.node], self._fields(place.node))
        (turn,) = turns_of(
            [answer, *messages],
            start=index,
            parent=place.parent,
            edge=place.edge,
            agent=place.agent,
            kept=place.kept,
            returns=place.returns,
            context=[self._messages[one] for one in place.context],
        )
        return turn

    def _links(self, node: int, known: dict[int, str]) -> tuple[list[int], list[int]]:
        """Return the turns that called this sub-agent, and those that returned to this turn."""
        calls, returns = [], []
        for link in self._nodes[node].get("semantic_parents") or ():
            if link["type"] == "subagent_call" and link["node"] in known:
                calls.append(link["node"])
            elif link["type"] == "subagent_return" and known.get(link["node"], "main") != "main":
                returns.append(link["node"])
            else:
                self._source.lose("semantic links")
        return calls, returns

    def _path(self, node: int | None) -> list[int]:
        path = []
        while node is not None:
            path.append(node)
            node = self._nodes[node].get("parent")
        return path[::-1]

    def _fields(self, node: int) -> dict[str, Any]:
        """Return the fields of a turn that a node and its call have."""
        call = self._calls.get(node) or {}
        time = call.get("time") or {}
        start, end = float(time.get("start") or 0.0), float(time.get("end") or 0.0)
        fields: dict[str, Any] = {
            "policy": f"imported:{call.get('model') or self._model}",
            "started_at": start or float(self._nodes[node].get("timestamp") or 0.0),
            "policy_seconds": max(0.0, end - start) if start else 0.0,
            "tokens": self._tokens(node),
        }
        if call.get("finish_reason"):
            fields["finish"] = call["finish_reason"]
        if usage := call.get("usage"):
            cached = usage.get("cached_input_tokens") or 0
            fields["usage"] = Usage(
                prompt_tokens=usage["prompt_tokens"] + cached,
                completion_tokens=usage["completion_tokens"],
                reasoning_tokens=usage.get("reasoning_tokens") or 0,
                cached_tokens=cached,
            )
        sampling = call.get("sampling") or {}
        if sampling or fields["tokens"] is not None:
            fields["sampling"] = Sampling(
                temperature=sampling.get("temperature"),
                top_p=sampling.get("top_p"),
                top_k=sampling.get("top_k"),
                max_tokens=sampling.get("max_tokens"),
                seed=sampling.get("seed"),
            )
        return fields

    def _tokens(self, node: int) -> TurnTokens | None:
        """Return the ids of a sampled message; its mask says which of them were sampled."""
        content = self._nodes[node]
        self._source.lose("token streams", any(content.get(name) for name in _STREAMS))
        ids, mask = content.get("token_ids") or [], content.get("mask") or []
        if not ids or not any(mask):
            return None
        logprobs = content.get("logprobs") or []
        if len(mask) != len(ids) or len(logprobs) != sum(mask):
            raise InvalidInput(
                f"{self._where}: node {node} has {len(ids)} ids, {len(mask)} mask values, "
                f"{sum(mask)} of them true, and {len(logprobs)} log-probs"
            )
        low, high = self._versions or (0, 0)
        self._source.lose("policy versions", self._versions is None)
        response = np.array(mask[mask.index(True) :])
        return TurnTokens(
            prompt_kept=0,
            prompt_ids=self._prompt(node, response.size),
            response_ids=np.array(ids[-response.size :]),
            logprobs=_spread(logprobs, response),
            segments=segments_of(response, low, high),
        )

    def _own_tokens(self, node: int, own: dict[str, Any] | None) -> TurnTokens | None:
        if own is None:
            return None
        content, size = self._nodes[node], own["response"]
        response = np.array(content["mask"][-size:])
        return TurnTokens.from_json(
            {
                "prompt_kept": 0,
                "prompt_ids": self._prompt(node, size),
                "response_ids": np.array(content["token_ids"][-size:]),
                "logprobs": _spread(content["logprobs"], response),
            }
            | {name: value for name, value in own.items() if name != "response"}
        )

    def _prompt(self, node: int, response: int) -> IntArray:
        """Return the ids before a response: those along the path to it."""
        ids = [
            np.array(self._nodes[one].get("token_ids") or [], np.int32) for one in self._path(node)
        ]
        whole: IntArray = np.concatenate(ids)
        return whole[: whole.size - response]

    def _message(self, number: int) -> Message:
        place = f"{self._where}: node {number}"
        message = dict(need(self._nodes[number], "message", dict, place))
        if message.get("role") == "system":
            message["role"] = message.pop(OWN, "system")
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [
                call_of(need(one, "name", str, place), one.get("arguments") or "", one["id"])
                for one in calls
            ]
            unheld = any(one.get("namespace") or one.get("type") == "custom" for one in calls)
            self._source.lose("provider state", unheld)
        self._source.lose("provider state", bool(message.pop("provider_state", None)))
        return self._source.message(message, place)


def _spread(logprobs: list[float], sampled: Any) -> Any:
    found = np.zeros(sampled.size, np.float32)
    found[sampled] = logprobs
    return found
