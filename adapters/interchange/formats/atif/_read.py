"""Reading ATIF."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters.interchange._incoming import (
    Draft,
    ImportedMessage,
    call_of,
    need,
    outcome_of,
    tools_of,
    turns_of,
)
from trajgym.adapters.interchange._own import OWN, restore_session, restored_turn
from trajgym.trajectory import (
    InvalidInput,
    Sampling,
    Segment,
    Status,
    TurnTokens,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trajgym.adapters.interchange._incoming import Source
    from trajgym.trajectory import Message, Turn

__all__ = ["read_atif"]


def read_atif(source: Source) -> Iterator[Draft]:
    """Yield the trajectory of each file."""
    for path, document in source.json():
        version = document.get("schema_version")
        if not str(version).startswith("ATIF-v1."):
            raise InvalidInput(f"{path}: schema_version is {version!r}; expected ATIF-v1.x")
        yield _draft(source, path, document)


def _draft(source: Source, path: Path, document: dict[str, Any]) -> Draft:
    where = str(path)
    agent = need(document, "agent", dict, where)
    _note_losses(source, document, agent)
    reader = _Reader(source, path)
    turns = reader.turns(document)
    opening = next(
        (step for step in document["steps"] if step.get("source") == "user"), {"message": ""}
    )
    draft = Draft(
        task=document.get("session_id") or path.parent.name,
        turns=turns,
        session=document.get("session_id") or document.get("trajectory_id") or "",
        tools=tools_of(agent.get("tool_definitions"), where),
        labels={"agent": f"{agent.get('name')} {agent.get('version')}"},
        started=turns[0].started_at if turns else 0.0,
        prompt=opening["message"] if isinstance(opening["message"], str) else None,
    )
    own = (document.get("extra") or {}).get(OWN)
    if own:
        restore_session(draft, own)
    else:
        _trial(source, draft, path)
    return draft


def _note_losses(source: Source, document: dict[str, Any], agent: dict[str, Any]) -> None:
    source.lose("notes", bool(document.get("notes")))
    source.lose("final metrics", bool(document.get("final_metrics")))
    source.lose("continuations", bool(document.get("continued_trajectory_ref")))
    for extra in (document.get("extra"), agent.get("extra")):
        source.lose("extra", bool(set(extra or {}) - {OWN}))


def _trial(source: Source, draft: Draft, path: Path) -> None:
    """Take task, reward and exception from the trial that a trajectory is part of."""
    file = path.parent.parent / "result.json"
    if path.parent.name != "agent" or not file.is_file():
        return
    result = json.loads(file.read_bytes())
    draft.task = result.get("task_name") or draft.task
    draft.session = result.get("trial_name") or draft.session
    source.lose_keys(
        "result", result, ("task_name", "trial_name", "verifier_result", "exception_info")
    )
    if exception := result.get("exception_info"):
        draft.cause = f"{exception['exception_type']}: {exception['exception_message']}"
        draft.error = exception.get("exception_traceback") or ""
        limit = "Timeout" in exception["exception_type"]
        draft.status = Status("truncated", "seconds") if limit else Status("failed", "agent")
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    if rewards and draft.status.scored:
        score = rewards["reward"] if "reward" in rewards else next(iter(rewards.values()))
        draft.outcome = outcome_of(score, str(file), {"rewards": rewards})


class _Reader:
    """Reads the steps of one file, with those of its sub-agents."""

    def __init__(self, source: Source, path: Path) -> None:
        self._source, self._path = source, path

    def turns(
        self,
        document: dict[str, Any],
        *,
        start: int = 0,
        parent: int | None = None,
        agent: str = "main",
    ) -> list[Turn]:
        """Return the turns of a trajectory; sub-agents follow the turn that spawned them."""
        model = document["agent"].get("model_name") or document["agent"].get("name") or "unknown"
        subs = {one["trajectory_id"]: one for one in document.get("subagent_trajectories") or ()}
        groups = self._split(document, model)
        turns: list[Turn] = []
        returning: list[int] = []
        last = parent
        for collected, refs in groups:
            index = start + len(turns)
            edge = "return" if returning else "continue"
            if index == start and parent is not None:
                edge = "spawn"
            before = returning[-1] if returning else last
            (turn,) = turns_of(collected, start=index, parent=before, agent=agent, edge=edge)
            turn.returns = returning[:-1]
            _restore_edit(turn)
            turns.append(turn)
            last, returning = turn.index, []
            for ref in refs:
                sub = subs.get(ref)
                if sub is None:
                    self._source.lose("linked sub-agents")
                    continue
                own = self.turns(sub, start=start + len(turns), parent=last, agent=ref)
                turns += own
                returning += [one.index for one in own[-1:]]
        return turns

    def _split(
        self, document: dict[str, Any], model: str
    ) -> Iterator[tuple[list[ImportedMessage], list[str]]]:
        """Yield the messages of each turn, and the sub-agents that it spawned."""
        collected: list[ImportedMessage] = []
        refs: list[str] = []
        answered = False
        for number, step in enumerate(document.get("steps") or (), 1):
            where = f"{self._path}: step {number}"
            turn = _is_turn(step)
            if answered and (turn or "context" in _own(step)):
                yield collected, refs
                collected, refs, answered = [], [], False
            messages, found = self._step(step, where, model)
            collected += messages
            refs += found
            answered = answered or turn
        if answered:
            yield collected, refs
        elif collected:
            raise InvalidInput(
                f"{self._path}: no step of the agent after {len(collected)} messages"
            )

    def _step(
        self, step: dict[str, Any], where: str, model: str
    ) -> tuple[list[ImportedMessage], list[str]]:
        source = step.get("source")
        message: Message = {"content": self._content(step.get("message"), where)}
        results, refs = self._results(step, where)
        if source == "agent":
            message = self._answer(step, {"role": "assistant", **message}, where)
            turn = self._turn(step, model) if _is_turn(step) else None
            return [ImportedMessage(message, turn), *results], refs
        if source not in {"system", "user"}:
            raise InvalidInput(f"{where}: source is {source!r}; expected system, user or agent")
        message["role"] = _own(step).get("role", source)
        return [ImportedMessage(message), *results], refs

    def _answer(self, step: dict[str, Any], message: Message, where: str) -> Message:
        if step.get("reasoning_content"):
            message["reasoning_content"] = step["reasoning_content"]
        calls = []
        for call in step.get("tool_calls") or ():
            extra = call.get("extra") or {}
            self._source.lose("extra", bool(set(extra) - {OWN}))
            arguments = extra.get(OWN, {}).get("arguments", call.get("arguments") or {})
            name = need(call, "function_name", str, where)
            calls.append(call_of(name, arguments, need(call, "tool_call_id", str, where)))
        return message | ({"tool_calls": calls} if calls else {})

    def _results(self, step: dict[str, Any], where: str) -> tuple[list[ImportedMessage], list[str]]:
        collected, refs = [], []
        for result in (step.get("observation") or {}).get("results") or ():
            links = result.get("subagent_trajectory_ref") or ()
            refs += [link.get("trajectory_id") or "" for link in links]
            self._source.lose("extra", bool(result.get("extra")))
            if result.get("content") is None:
                continue
            content = self._content(result["content"], where)
            call = result.get("source_call_id")
            tool = {"role": "tool", "tool_call_id": call} if call else {"role": "user"}
            collected.append(ImportedMessage({**tool, "content": content}))
        return collected, refs

    def _content(self, content: Any, where: str) -> Any:
        if not isinstance(content, list):
            return content or ""
        return [self._part(part, where) for part in content]

    def _part(self, part: dict[str, Any], where: str) -> dict[str, Any]:
        if part.get("type") == "text":
            return {"type": "text", "text": part["text"]}
        if part.get("type") == "audio":
            self._source.lose("audio")
            return {"type": "text", "text": f"[audio {part['source']['path']}]"}
        place = need(part, "source", dict, where)
        if "://" in place["path"] or place["path"].startswith("data:"):
            return self._source.image_url(place["path"], where)
        return self._source.image_file(self._path.parent / place["path"], place.get("media_type"))

    def _turn(self, step: dict[str, Any], model: str) -> dict[str, Any]:
        """Return the fields of a turn that a step has."""
        self._source.lose("merged calls", (step.get("llm_call_count") or 0) > 1)
        metrics = step.get("metrics") or {}
        own = _own(step)
        if "turn" in own:
            fields = restored_turn(own["turn"]) | {"tokens": self._tokens(metrics, own)}
            edit = {name: own[name] for name in ("kept", "rewrite") if name in own}
            fields["signals"] = fields.get("signals", {}) | ({OWN: edit} if edit else {})
            return fields
        fields = {"policy": f"imported:{step.get('model_name') or model}"}
        if step.get("timestamp"):
            fields["started_at"] = _seconds(step["timestamp"])
        usage = ("prompt_tokens", "completion_tokens", "cached_tokens")
        if any(metrics.get(name) is not None for name in usage):
            fields["usage"] = Usage(**{name: metrics.get(name) or 0 for name in usage})
        signals = {k: v for k, v in (step.get("extra") or {}).items() if k != OWN}
        if metrics.get("cost_usd") is not None:
            signals["cost_usd"] = metrics["cost_usd"]
        if metrics.get("extra"):
            signals["metrics"] = metrics["extra"]
        if step.get("reasoning_effort") is not None:
            signals["reasoning_effort"] = step["reasoning_effort"]
        fields["tokens"] = self._tokens(metrics, own)
        if fields["tokens"] is not None:
            fields["sampling"] = Sampling()
        return fields | {"signals": signals}

    def _tokens(self, metrics: dict[str, Any], own: dict[str, Any]) -> TurnTokens | None:
        prompt, ids = metrics.get("prompt_token_ids"), metrics.get("completion_token_ids")
        logprobs = metrics.get("logprobs")
        if not prompt or not ids or logprobs is None or len(logprobs) != len(ids):
            return None
        if "tokens" in own:
            return TurnTokens.from_json(
                own["tokens"]
                | {"prompt_kept": 0, "prompt_ids": np.array(prompt), "response_ids": np.array(ids)}
                | {"logprobs": logprobs}
            )
        self._source.lose("policy versions")
        return TurnTokens(
            prompt_kept=0,
            prompt_ids=np.array(prompt),
            response_ids=np.array(ids),
            logprobs=np.array(logprobs, dtype=np.float32),
            segments=(Segment(len(ids), 0, 0),),
        )


def _is_turn(step: dict[str, Any]) -> bool:
    """Return whether a step is a response of the policy here, not copied context."""
    return step.get("source") == "agent" and not step.get("is_copied_context")


def _restore_edit(turn: Turn) -> None:
    """Make a turn an edit of its base's context, if our export says so."""
    edit = turn.signals.pop(OWN, {})
    turn.kept = edit.get("kept")
    if edit.get("rewrite") and turn.edge == "continue":
        turn.edge = "rewrite"


def _own(step: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (step.get("extra") or {}).get(OWN) or {}
    return found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
