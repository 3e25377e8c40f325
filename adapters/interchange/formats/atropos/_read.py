"""Reading Atropos' groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters.interchange._incoming import (
    Draft,
    ImportedMessage,
    need,
    outcome_of,
    turns_of,
)
from trajgym.adapters.interchange._own import OWN, restore_session, restored_turn
from trajgym.adapters.interchange.formats._openai_chat import opening_id
from trajgym.trajectory import InvalidInput, Sampling, Segment, TurnTokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.adapters.interchange._incoming import Source
    from trajgym.trajectory import Message

__all__ = ["MASKED", "read_atropos"]

MASKED = -100
"""The mask of an id that is not trained; other ids have themselves as mask."""

_PARALLEL = ("masks", "scores", "messages", "inference_logprobs", "advantages", "ref_logprobs")
_SIGNALS = ("advantages", "ref_logprobs")


def read_atropos(source: Source) -> Iterator[Draft]:
    """Yield the rows of each group."""
    for where, line in source.lines():
        rows = need(line, "tokens", list, where)
        for name in _PARALLEL:
            if line.get(name) is not None and len(line[name]) != len(rows):
                raise InvalidInput(
                    f"{where}: {len(rows)} rows of tokens and {len(line[name])} of {name}"
                )
        for name in ("masks", "scores"):
            need(line, name, list, where)
        _note_losses(source, line)
        own = (line.get(OWN) or {}).get("rows")
        for index in range(len(rows)):
            row = {name: line[name][index] for name in _PARALLEL if line.get(name) is not None}
            row |= {"tokens": rows[index]}
            place = f"{where}: row {index + 1}"
            draft = (
                _restored(source, row, own[index], place)
                if own
                else _Row(source, row, line.get("generation_params") or {}, place).draft()
            )
            draft.group = where
            yield draft


def _note_losses(source: Source, line: dict[str, Any]) -> None:
    source.lose("distillation", bool(line.get("distill_token_ids")))
    source.lose("images", bool(line.get("images")))
    group = {k: v for k, v in (line.get("group_overrides") or {}).items() if k != "group_size"}
    source.lose("overrides", bool(group or any(line.get("overrides") or ())))


def _restored(source: Source, row: dict[str, Any], own: dict[str, Any], where: str) -> Draft:
    """Return the session of a row that an export of ours wrote."""
    turns = {one["message"]: one for one in own["turns"]}
    messages = []
    for number, message in enumerate(need(row, "messages", list, where)):
        plain = {key: value for key, value in message.items() if key != "reward"}
        mine = turns.get(number)
        fields = None if mine is None else _own_fields(row, mine)
        messages.append(ImportedMessage(source.message(plain, where), fields))
    draft = Draft(task="", turns=turns_of(messages))
    restore_session(draft, own)
    return draft


def _own_fields(row: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    start, end = own["start"], own["end"]
    sampled = np.array(row["masks"][start:end]) != MASKED
    tokens = TurnTokens.from_json(
        own["tokens"]
        | {
            "prompt_kept": 0,
            "prompt_ids": np.array(row["tokens"][:start], np.int32),
            "response_ids": np.array(row["tokens"][start:end]),
            "logprobs": np.where(sampled, row["inference_logprobs"][start:end], 0.0),
        }
    )
    return restored_turn(own["turn"]) | {"tokens": tokens}


class _Row:
    """A row of another writer: ids, a mask, and usually messages and log-probs."""

    def __init__(
        self, source: Source, row: dict[str, Any], params: dict[str, Any], where: str
    ) -> None:
        self._source, self._row, self._where = source, row, where
        self._ids = np.array(row["tokens"], np.int32)
        self._sampled = np.array(row["masks"]) != MASKED
        if self._sampled.shape != self._ids.shape:
            raise InvalidInput(
                f"{where}: {self._ids.size} ids and {self._sampled.size} values of the mask"
            )
        self._sampling = Sampling(
            temperature=params.get("temperature"),
            top_p=params.get("top_p"),
            max_tokens=params.get("max_tokens"),
        )

    def draft(self) -> Draft:
        """Return the row's session."""
        rewards, messages = self._messages()
        answers = [n for n, one in enumerate(messages) if one["role"] == "assistant"]
        runs = self._runs()
        fields: list[dict[str, Any]] = []
        if not answers:
            messages, rewards = [{"role": "assistant", "content": ""} for _ in runs], []
            answers = list(range(len(runs)))
            self._source.lose("text")
            fields = self._tokens(runs)
            if not fields:
                raise InvalidInput(
                    f"{self._where}: neither messages nor log-probs of sampled ids; save groups "
                    "with include_messages"
                )
        elif len(runs) > len(answers):
            self._source.lose("unmatched ids")
        else:
            fields = self._tokens(runs)
        turns = answers[len(answers) - len(fields) :] if fields else answers
        known = dict(zip(turns, fields, strict=False))
        imported = []
        for number, message in enumerate(messages):
            turn = None
            if number in turns:
                turn = {"policy": "imported:atropos"} | known.get(number, {})
                if rewards and rewards[number] is not None:
                    turn["reward"] = float(rewards[number])
            imported.append(ImportedMessage(message, turn))
        return Draft(
            task=opening_id("atropos", imported),
            turns=turns_of(imported),
            outcome=outcome_of(self._row["scores"], self._where),
        )

    def _messages(self) -> tuple[list[Any], list[Message]]:
        found = self._row.get("messages") or []
        rewards, messages = [], []
        for message in found:
            if not isinstance(message, dict):
                raise InvalidInput(f"{self._where}: a message is {type(message).__name__}")
            rewards.append(message.get("reward"))
            plain = {key: value for key, value in message.items() if key != "reward"}
            messages.append(self._source.message(plain, self._where))
        return rewards, messages

    def _runs(self) -> list[tuple[int, int]]:
        """Return the parts ``[start, end)`` that were sampled."""
        padded = np.concatenate([[False], self._sampled, [False]]).astype(np.int8)
        edges = np.flatnonzero(np.diff(padded)).tolist()
        return list(zip(edges[::2], edges[1::2], strict=True))

    def _tokens(self, runs: list[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return the fields of each sampled part; none without log-probs."""
        logprobs = self._row.get("inference_logprobs")
        if logprobs is None:
            self._source.lose("ids without log-probs")
            return []
        if len(logprobs) != self._ids.size:
            raise InvalidInput(
                f"{self._where}: {self._ids.size} ids and {len(logprobs)} inference_logprobs"
            )
        self._source.lose("policy versions")
        return [self._fields(logprobs, start, end) for start, end in runs]

    def _fields(self, logprobs: list[float], start: int, end: int) -> dict[str, Any]:
        signals = {}
        for name in _SIGNALS:
            values = self._row.get(name)
            if values is not None:
                whole = values if isinstance(values, list) else [values] * self._ids.size
                signals[name] = whole[start:end]
        return {
            "signals": signals,
            "sampling": self._sampling,
            "tokens": TurnTokens(
                prompt_kept=0,
                prompt_ids=self._ids[:start],
                response_ids=self._ids[start:end],
                logprobs=np.array(logprobs[start:end], np.float32),
                segments=(Segment(end - start, 0, 0),),
            ),
        }
