"""Training rows: from a session tree to the arrays that every trainer starts from.

Everything is unshifted: index ``t`` of every array describes ``input_ids[t]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trajgym.trajectory._errors import InvalidRow
from trajgym.trajectory._media import check_media, shown_media

if TYPE_CHECKING:
    from trajgym.trajectory._records import Attempt, Turn
    from trajgym.trajectory._tokens import FloatArray, ImageRef, IntArray, TurnTokens
    from trajgym.trajectory._tree import SessionTree

__all__ = [
    "Dropped",
    "RowSpan",
    "Rows",
    "Stamp",
    "TrainingRow",
    "attempt_turns",
    "build_rows",
    "share_weight",
]


class Stamp(NamedTuple):
    """The deriver, settings and group that per-token values come from."""

    deriver: str
    settings: dict[str, Any]
    group: str | None = None
    """The group whose statistics the values depend on."""


class RowSpan(NamedTuple):
    """A span of a trained turn, at the tokens ``[start, end)`` of the row.

    A span that reaches past the row's last trained token is cut there, and left out if it starts
    after it.
    """

    turn: int
    number: int
    """Position among the turn's own spans, from 0."""
    kind: str
    start: int
    end: int


class Dropped(NamedTuple):
    """Data that no row was built from, and why; ``attempt`` is None for a whole session."""

    session: str
    attempt: int | None
    reason: str


@dataclass(slots=True, kw_only=True, eq=False)
class TrainingRow:
    """One token sequence with the arrays that a trainer needs.

    Args:
        session: id of the session.
        group: id of its group, if it has one.
        attempt: the first scored attempt that the row's last turn belongs to.
        turns: indices of the turns trained here, in order.
        input_ids: int32 ``[T]``, exactly the ids that the engine received and sampled.
        loss_mask: bool ``[T]``, True where a sampled token is trained in this row.
        logprobs: float32 ``[T]``, behaviour log-probs (nats), 0.0 where not trained.
        version_low: int32 ``[T]``, oldest policy version that can have sampled the token; -1 where
            not trained.
        version_high: int32 ``[T]``, newest such version; -1 where not trained.
        turn_ids: int32 ``[T]``, index of the turn trained there; -1 elsewhere.
        reward: float32 ``[T]`` or None; nonzero only on the last sampled token of a turn or span.
        advantage: float32 ``[T]`` or None; nonzero only on trained tokens.
        reward_stamp: which deriver made ``reward``; there if and only if ``reward`` is.
        advantage_stamp: the same for ``advantage``.
        images: which token spans stand for which images, in order; they are never trained.
        spans: tool calls, reasoning and other spans of the trained turns.
        weight: this row's share of its session's trained tokens; the weights of a session's rows
            add up to 1. A loss that averages per sequence multiplies each row's mean by it and
            divides by the sum of weights, so that each session counts once, however many rows it
            has. Losses that average over tokens need no weight.
        temperature: the temperature of all its turns; None if unrecorded or mixed.
        logprob_mode: the distribution of ``logprobs``, see `Sampling`; ``unknown`` if mixed.
        synthetic: some of the ids come from a fake engine; do not train a real model on this row.
    """

    session: str
    group: str | None
    attempt: int
    turns: tuple[int, ...]
    input_ids: IntArray
    loss_mask: npt.NDArray[np.bool_]
    logprobs: FloatArray
    version_low: IntArray
    version_high: IntArray
    turn_ids: IntArray
    reward: FloatArray | None = None
    advantage: FloatArray | None = None
    reward_stamp: Stamp | None = None
    advantage_stamp: Stamp | None = None
    images: tuple[ImageRef, ...] = ()
    spans: tuple[RowSpan, ...] = ()
    weight: float = 1.0
    temperature: float | None = None
    logprob_mode: Literal["processed", "raw", "unknown"] = "unknown"
    synthetic: bool = False

    @property
    def turn_ends(self) -> npt.NDArray[np.intp]:
        """Positions of each trained turn's last sampled token, in the order of ``turns``."""
        trained = np.flatnonzero(self.turn_ids >= 0)
        turns = self.turn_ids[trained]
        last = np.ones(trained.size, dtype=np.bool_)
        last[:-1] = turns[1:] != turns[:-1]
        return trained[last]

    def last_trained(self, span: RowSpan) -> int:
        """Return the position of a span's last sampled token; its turn's last if it has none."""
        own = np.flatnonzero(self.loss_mask[span.start : span.end])
        if own.size:
            return span.start + int(own[-1])
        return int(np.flatnonzero(self.turn_ids == span.turn)[-1])

    def __len__(self) -> int:
        return self.input_ids.size


class Rows(NamedTuple):
    """The rows of a session, and the parts of it that have none."""

    rows: list[TrainingRow]
    dropped: list[Dropped]


def attempt_turns(tree: SessionTree, attempt: Attempt) -> list[int]:
    """Return the turns of an attempt in order, including sub-agents that never returned.

    Turns of simulated users are not among them.
    """
    turns = {turn.index for turn in tree.trajectory(attempt)}
    turns.update(turn.index for turn in tree.turns if turn.attempt == attempt.index)
    return sorted(index for index in turns if not tree.turns[index].simulated)


def build_rows(tree: SessionTree, *, images: bool = False, sides: bool = False) -> Rows:
    """Return the training rows of a session's scored attempts.

    A turn continues its base's row if its prompt keeps the base's whole sequence; otherwise (a
    rewritten context, a sub-agent, a rival branch) it starts a new row. Tokens that rival attempts
    share are trained in the first of their rows only, and inserted ids in none. A row ends at its
    last trained token. ``dropped`` lists attempts without a score (failed, interrupted, cancelled,
    running), responses that never reached the agent, side calls, and turns without a sampled token.
    Turns of simulated users never have rows, and are not listed.

    Args:
        tree: the session.
        images: the caller passes the pixels of ``row.images`` on with each row. If False, a
            session that shows images is refused, because placeholders must not be trained
            without their pixels.
        sides: also build rows from side calls (titles, summaries).

    Raises:
        InvalidRow: a turn of a scored attempt is a text turn. One for which nothing was sampled
            only ends a row.
        UnsupportedModality: such a turn was shown images while ``images`` is False, images other
            than those that its ids stand for, or content that is neither text nor image.
        InvalidSession: a token delta does not fit its base.
    """
    owners, dropped = _owners(tree)
    dropped += _leave_out(tree, owners, sides=sides)
    rows: list[TrainingRow] = []
    for chain in _chains(tree, owners, images=images):
        row = _assemble(tree, chain, owners[chain[-1].index])
        if row is not None:
            rows.append(row)
        if row is None or len(row.turns) != len(chain):
            dropped += _unsampled(tree, chain, owners)
    if len(rows) > 1:
        share_weight(rows)
    return Rows(rows, dropped)


def _owners(tree: SessionTree) -> tuple[list[int], list[Dropped]]:
    """Return the first scored attempt that contains each turn (-1: none), and what is dropped."""
    owners = [-1] * len(tree.turns)
    dropped: list[Dropped] = []
    for attempt in tree.attempts:
        if not attempt.status.scored:
            cause = f": {attempt.cause}" if attempt.cause else ""
            reason = f"not scored ({attempt.status}{cause})"
            dropped.append(Dropped(tree.record.id, attempt.index, reason))
        elif len(tree.attempts) == 1:
            owners = [0] * len(tree.turns)
        else:
            for index in attempt_turns(tree, attempt):
                if owners[index] < 0:
                    owners[index] = attempt.index
    return owners, dropped


def _leave_out(tree: SessionTree, owners: list[int], *, sides: bool) -> list[Dropped]:
    """Remove turns that no row is built from from their owners; return them with the reason."""
    dropped: list[Dropped] = []
    for turn in tree.turns:
        if turn.simulated:
            owners[turn.index] = -1
            continue
        if turn.delivery == "orphan":
            reason = "its answer never reached the agent"
        elif turn.role != "main" and not sides:
            reason = f"a call for {turn.role}"
        elif turn.empty:
            reason = "the model sampled nothing"
        else:
            continue
        if owners[turn.index] >= 0:
            reason = f"turn {turn.index}: {reason}"
            dropped.append(Dropped(tree.record.id, owners[turn.index], reason))
            owners[turn.index] = -1
    return dropped


def _chains(tree: SessionTree, owners: list[int], *, images: bool) -> list[list[Turn]]:
    """Return the turns of each row, in the order of the rows' first turns."""
    chains: list[list[Turn]] = []
    ends_at: dict[int, list[Turn]] = {}
    sizes = [0] * len(tree.turns)
    pictured: set[int] = set()
    for turn in tree.turns:
        index = turn.index
        if owners[index] < 0:
            continue
        tokens = turn.tokens
        if tokens is None:
            raise InvalidRow(
                f"session {tree.record.id}: turn {index} is a text turn (policy "
                f"{turn.policy or 'unknown'!r}): it has no sampled ids and log-probs, and RL rows "
                "never re-tokenise text; export it as sft or preference data",
            )
        base = tree.base(turn)
        if shown_media(turn, base) or tokens.images or (base and base.index in pictured):
            check_media(tree, turn, allowed=images)
            pictured.add(index)
        chain = None
        if base is not None and tokens.prompt_kept == sizes[base.index]:
            chain = ends_at.pop(base.index, None)
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(turn)
        ends_at[index] = chain
        sizes[index] = tokens.end
    return chains


class _Run(NamedTuple):
    """Sampled tokens ``[start, stop)`` of a row that belong to one segment of a turn."""

    start: int
    stop: int
    low: int
    high: int
    turn: int


def _assemble(tree: SessionTree, chain: list[Turn], attempt: int) -> TrainingRow | None:
    pieces: list[IntArray] = []
    runs: list[tuple[_Run, FloatArray]] = []
    spans: list[RowSpan] = []
    images: list[ImageRef] = []
    end = 0
    for turn in chain:
        tokens = turn.tokens
        assert tokens is not None
        prompt = tokens.prompt_ids if pieces else tree.prompt(turn)
        if tokens.images or not pieces:
            images += [i.moved(end) for i in tokens.images] if pieces else tree.images(turn)
        pieces += (prompt, tokens.response_ids)
        if tokens.spans:
            spans += _place_spans(tokens, turn.index, end + prompt.size)
        end = _collect_runs(tokens, turn.index, end + prompt.size, runs)
    if not runs:
        return None
    size = runs[-1][0].stop
    ids = np.concatenate(pieces)[:size]
    marks = np.empty((3, size), dtype=np.int32)
    marks.fill(-1)
    low, high, turn_ids = marks
    logprobs = np.zeros(size, dtype=np.float32)
    for (start, stop, oldest, newest, index), values in runs:
        low[start:stop] = oldest
        high[start:stop] = newest
        turn_ids[start:stop] = index
        logprobs[start:stop] = values
    temperature, mode = _sampled_with(chain)
    turns = tuple(dict.fromkeys([run.turn for run, _ in runs]))
    return TrainingRow(
        session=tree.record.id,
        group=tree.record.group,
        attempt=attempt,
        turns=turns,
        input_ids=ids,
        loss_mask=turn_ids >= 0,
        logprobs=logprobs,
        version_low=low,
        version_high=high,
        turn_ids=turn_ids,
        images=tuple(image for image in images if image.end <= size),
        spans=_cut_spans(spans, turns, size),
        temperature=temperature,
        logprob_mode=mode,
        synthetic=any(turn.synthetic for turn in chain),
    )


def _collect_runs(
    tokens: TurnTokens, turn: int, start: int, runs: list[tuple[_Run, FloatArray]]
) -> int:
    """Append the sampled runs of a response that starts at ``start``; return where it ends."""
    offset = 0
    for length, low, high, sampled in tokens.segments:
        if sampled:
            values = tokens.logprobs[offset : offset + length]
            runs.append((_Run(start + offset, start + offset + length, low, high, turn), values))
        offset += length
    return start + offset


def _place_spans(tokens: TurnTokens, turn: int, start: int) -> list[RowSpan]:
    return [
        RowSpan(turn, number, span.kind, start + span.start, start + span.end)
        for number, span in enumerate(tokens.spans)
    ]


def _cut_spans(spans: list[RowSpan], turns: tuple[int, ...], size: int) -> tuple[RowSpan, ...]:
    return tuple(
        span if span.end <= size else span._replace(end=size)
        for span in spans
        if span.start < size and span.turn in turns
    )


def _sampled_with(
    chain: list[Turn],
) -> tuple[float | None, Literal["processed", "raw", "unknown"]]:
    first = chain[0].sampling
    if first is None:
        return None, "unknown"
    temperature, mode = first.temperature, first.logprob_mode
    for turn in chain:
        found = turn.sampling
        if found is first:
            continue
        if found is None:
            return None, "unknown"
        if found.temperature != temperature:
            temperature = None
        if found.logprob_mode != mode:
            mode = "unknown"
    return temperature, mode


def _unsampled(tree: SessionTree, chain: list[Turn], owners: list[int]) -> list[Dropped]:
    return [
        Dropped(tree.record.id, owners[turn.index], f"turn {turn.index} has no sampled token")
        for turn in chain
        if turn.tokens is not None and not any(s.sampled for s in turn.tokens.segments)
    ]


def share_weight(rows: list[TrainingRow]) -> None:
    """Set the weights of a session's rows to their shares of its trained tokens."""
    trained = [int(np.count_nonzero(row.loss_mask)) for row in rows]
    total = sum(trained)
    for row, count in zip(rows, trained, strict=True):
        row.weight = count / total
