"""OpenEnv's training trace: the calls of an agent with the engine's ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters.interchange._features import FEATURES
from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange._incoming import (
    Draft,
    ImportedMessage,
    need,
    segments_of,
    tools_of,
    turns_of,
)
from trajgym.adapters.interchange._outgoing import (
    cleaned,
    content_of,
    write_documents,
)
from trajgym.adapters.interchange._own import (
    OWN,
    own_session,
    own_turn,
    restore_session,
    restored_turn,
)
from trajgym.adapters.interchange.formats._openai_chat import opening_id
from trajgym.trajectory import InvalidInput, Sampling, TurnTokens, attempt_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.adapters.exports._stream import Export
    from trajgym.adapters.interchange._incoming import Source
    from trajgym.adapters.interchange._outgoing import Include, Track
    from trajgym.trajectory import Message, SessionTree, Turn

__all__ = ["FORMAT", "export_openenv"]


def _read(source: Source) -> Iterator[Draft]:
    for path, document in source.json():
        if document.get("schema_version", 1) != 1:
            raise InvalidInput(
                f"{path}: schema_version is {document['schema_version']!r}; expected 1"
            )
        calls = need(document, "turns", list, str(path))
        if not calls:
            raise InvalidInput(f"{path}: a trace without turns")
        turns: list[Turn] = []
        shown: list[Message] = []
        for index, call in enumerate(calls):
            where = f"{path}: turn {index + 1}"
            if not isinstance(call, dict):
                raise InvalidInput(f"{where} is {type(call).__name__}; expected an object")
            shown = _add(source, turns, shown, call, where)
        opening = [ImportedMessage(one) for one in turns[0].context]
        tools = (calls[0].get("request") or {}).get("tools")
        draft = Draft(
            task=opening_id("openenv", opening),
            turns=turns,
            tools=tools_of(tools, str(path)),
            started=turns[0].started_at,
        )
        own = ((calls[0].get("metadata") or {}).get(OWN) or {}).get("session")
        if own:
            restore_session(draft, own)
        yield draft


def _add(
    source: Source, turns: list[Turn], shown: list[Message], call: dict[str, Any], where: str
) -> list[Message]:
    """Add a call as a turn; return the conversation up to its answer."""
    restored = OWN in (call.get("metadata") or {})
    request = call.get("request") or {}
    prompt = [source.message(one, where) for one in request.get("messages") or ()]
    message = _answer(source, call, where)
    shared = 0
    while shared < min(len(shown), len(prompt)) and shown[shared] == prompt[shared]:
        shared += 1
    fields = _fields(source, call, where)
    index = len(turns)
    if not turns:
        fields["context"] = prompt
    elif shared < len(shown):
        fields |= {"edge": "rewrite", "kept": shared, "context": prompt[shared:]}
    else:
        last = turns[-1]
        answered = [ImportedMessage(one) for one in prompt[shared:]]
        (whole,) = turns_of([ImportedMessage(last.message, {}), *answered])
        last.observation = whole.observation
        if not restored:
            last.calls = whole.calls
    turns += turns_of(
        [ImportedMessage(message, fields)], start=index, parent=index - 1 if index else None
    )
    return [*prompt, message]


def _answer(source: Source, call: dict[str, Any], where: str) -> Message:
    choices = (call.get("response") or {}).get("choices") or [{}]
    message = choices[0].get("message")
    if not message:
        source.lose("text")
        return {"role": "assistant", "content": ""}
    return source.message(message, where)


def _fields(source: Source, call: dict[str, Any], where: str) -> dict[str, Any]:
    ids = need(call, "completion_token_ids", list, where)
    logprobs = need(call, "per_token_logps", list, where)
    prompt = need(call, "prompt_token_ids", list, where)
    mask = need(call, "loss_mask", list, where)[len(prompt) :]
    if not len(ids) == len(logprobs) == len(mask):
        raise InvalidInput(
            f"{where}: {len(ids)} ids, {len(logprobs)} log-probs and {len(mask)} values of the "
            "mask after the prompt"
        )
    metadata = call.get("metadata") or {}
    own = metadata.get(OWN)
    whole: dict[str, Any] = {
        "prompt_kept": 0,
        "prompt_ids": np.array(prompt, np.int32),
        "response_ids": np.array(ids, np.int32),
        "logprobs": np.array(logprobs, np.float32),
    }
    if own:
        return restored_turn(own["turn"]) | {"tokens": TurnTokens.from_json(own["tokens"] | whole)}
    source.lose("policy versions")
    known = ("node_id", "index", "model", "n_tools", "sampling_params")
    source.lose_keys("metadata", metadata, known)
    sampling = metadata.get("sampling_params") or {}
    finish = ((call.get("response") or {}).get("choices") or [{}])[0].get("finish_reason")
    trained = np.array(mask, dtype=np.bool_)
    fields = {
        "policy": f"imported:{metadata.get('model') or 'unknown'}",
        "sampling": Sampling(temperature=sampling.get("temperature"), top_p=sampling.get("top_p")),
        "tokens": TurnTokens(**whole, segments=segments_of(trained, 0, 0)) if ids else None,
    }
    return fields | ({"finish": finish} if finish else {})


FORMAT = Format(
    name="openenv",
    about="OpenEnv's training trace (TrainingTrace, version 1)",
    files=("training_trace.json", "*.training_trace.json"),
    read=_read,
    holds=frozenset(FEATURES)
    - {"forks", "group", "native parts", "other roles", "rewrites", "sub-agents"},
    drops={
        "policy versions": "version 0 is recorded for ids of other writers, which state none",
        "metadata": "metadata of a call besides model and sampling parameters",
        "text": "calls without a response: their turns have ids and no text",
    },
    note=(
        "A call whose messages continue those of the call before is its next turn; others are "
        "rewrites of the context. Completion ids with mask 0 are not trained. An export needs "
        "exact turns; what a call has no field for is in its `metadata.trajgym`. A trace has no "
        "reward: OpenEnv takes it from the environment."
    ),
)


def export_openenv(export: Export, *, include: Include = "all") -> None:
    """Write ``SESSION.training_trace.json``, OpenEnv's training trace, one per attempt.

    Args:
        export: what to write.
        include: ``all`` attempts with turns, ``scored`` or ``passed`` ones.
    """
    write_documents(export, FORMAT, include, _path, _document)


def _path(name: str) -> str:
    return f"{name}.training_trace.json"


def _document(export: Export, track: Track) -> dict[str, Any]:
    tree = track.tree
    turns = [tree.turns[index] for index in attempt_turns(tree, track.attempt)]
    calls = [_call(export, tree, turn) for turn in turns if turn.role == "main"]
    if calls:
        calls[0]["metadata"][OWN]["session"] = own_session(track)
    return {"schema_version": 1, "turns": calls}


def _call(export: Export, tree: SessionTree, turn: Turn) -> dict[str, Any]:
    tokens = turn.tokens
    if tokens is None:
        raise InvalidInput(f"turn {turn.index} is a text turn; OpenEnv's trace needs ids")
    prompt, kept = tree.prompt(turn).tolist(), tokens.to_json()
    own: dict[str, Any] = {
        "turn": own_turn(turn),
        "tokens": {"segments": kept["segments"], "spans": kept["spans"]},
    }
    if images := tree.images(turn):
        own["tokens"]["images"] = [list(image) for image in images]
    metadata: dict[str, Any] = {OWN: own, "index": turn.index}
    metadata["model"] = turn.policy.partition(":")[2] or turn.policy or "unknown"
    finish = {"finish_reason": turn.finish}
    return {
        "node_id": f"{tree.record.id}-{turn.index}",
        "prompt_token_ids": prompt,
        "completion_token_ids": tokens.response_ids.tolist(),
        "per_token_logps": tokens.logprobs.tolist(),
        "loss_mask": [0] * len(prompt) + tokens.sampled_mask.astype(int).tolist(),
        "request": {
            "messages": [_message(export, one) for one in tree.context(turn)],
            "tools": tree.record.tools,
        },
        "response": {"choices": [{"message": _message(export, turn.message), **finish}]},
        "metadata": metadata,
    }


def _message(export: Export, message: Message) -> Message:
    found = dict(cleaned(message))
    if "content" in found:
        found["content"] = content_of(export, found)
    return found
