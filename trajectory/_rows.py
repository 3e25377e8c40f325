"""Training rows: from a session tree to the arrays that every trainer starts from.

Everything is unshifted: index ``t`` of every array speaks of ``input_ids[t]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trajgym.trajectory._errors import InvalidRow
from trajgym.trajectory._messages import blob_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trajgym.trajectory._messages import Message
    from trajgym.trajectory._records import Attempt, Turn
    from trajgym.trajectory._tokens import FloatArray, ImageRef, IntArray, TurnTokens
    from trajgym.trajectory._tree import SessionTree

__all__ = [
    "Dropped",
    "RowSpan",
    "Rows",
    "Stamp",
    "TrainingRow",
    "UnsupportedModality",
    "attempt_turns",
    "build_rows",
    "validate_row",
]

_LOGPROB_SLACK = 1e-3


class UnsupportedModality(InvalidRow):
    """Images or sounds where they can't be trained on.

    An exact turn was shown one whose tokens are not recorded, or a row with images is to go where
    its pixels can't follow: placeholders without pixels must never train.
    """


class Stamp(NamedTuple):
    """Where per-token values come from."""

    deriver: str
    settings: dict[str, Any]
    group: str | None = None
    """The group whose statistics are in them."""


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
    """Something that was left out, and why. ``attempt`` is None for a whole session."""

    session: str
    attempt: int | None
    reason: str


@dataclass(slots=True, kw_only=True, eq=False)
class TrainingRow:
    """One sequence with what a trainer needs to learn from it.

    Args:
        session: id of the session.
        group: id of its group, if it has one.
        attempt: the first scored attempt that the row's last turn belongs to.
        turns: indices of the turns trained here, in order.
        input_ids: int32 ``[T]``, as the engine was given and sampled them.
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
        spans: the trained turns' tool calls, reasoning and the like, where values over spans go.
        weight: this row's share of its session's trained tokens; the rows of a session add up to
            1. A loss that averages per sequence multiplies each row's mean by it and divides by
            the sum of weights: then every session counts once, into however many rows it was cut.
            Losses that average over tokens need no weight.
        temperature: what all its turns were sampled with; None if unrecorded or mixed.
        logprob_mode: what ``logprobs`` mean, see `Sampling`; ``unknown`` if mixed.
        synthetic: some of the ids come from a fake engine: train nothing real with this row.
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
    """What became of a session: its rows, and by name what has none."""

    rows: list[TrainingRow]
    dropped: list[Dropped]


def attempt_turns(tree: SessionTree, attempt: Attempt) -> list[int]:
    """Return the turns of an attempt in order: its path, and sub-agents that never returned."""
    turns = {turn.index for turn in tree.trajectory(attempt)}
    turns.update(turn.index for turn in tree.turns if turn.attempt == attempt.index)
    return sorted(turns)


def build_rows(tree: SessionTree, *, images: bool = False) -> Rows:
    """Return the training rows of a session's scored attempts.

    A turn goes on in its base's row if its prompt keeps the base's whole sequence, and starts a
    row otherwise (a rewritten context, a sub-agent, a rival branch). Tokens that rival attempts
    share are trained in the first of their rows only; inserted ids never; a row ends at its last
    trained token. Attempts without a score (failed, interrupted, cancelled, running) and turns
    without a sampled token are named in ``dropped``.

    Args:
        tree: the session.
        images: the caller hands over the pixels of ``row.images`` with each row. Without them
            placeholders must not train: a session that shows images is then refused.

    Raises:
        InvalidRow: a turn of a scored attempt is a text turn.
        UnsupportedModality: such a turn was shown images and ``images`` is False, other images
            than its ids stand for, or something that is neither text nor image.
        InvalidSession: a token delta does not fit its base.
    """
    owners, dropped = _owners(tree)
    rows: list[TrainingRow] = []
    for chain in _chains(tree, owners, images=images):
        row = _assemble(tree, chain, owners[chain[-1].index])
        if row is not None:
            rows.append(row)
        if row is None or len(row.turns) != len(chain):
            dropped += _unsampled(tree, chain, owners)
    if len(rows) > 1:
        _share_weight(rows)
    return Rows(rows, dropped)


def _owners(tree: SessionTree) -> tuple[list[int], list[Dropped]]:
    """Return for each turn the first scored attempt that holds it (-1: none), and who has none."""
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


def _chains(tree: SessionTree, owners: list[int], *, images: bool) -> list[list[Turn]]:
    """Return the turns that share a row, for each row, in order of the rows' first turns."""
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
        if _shown_media(turn, base) or tokens.images or (base and base.index in pictured):
            _check_media(tree, turn, allowed=images)
            pictured.add(index)
        chain = None
        if base is not None and tokens.prompt_kept == sizes[base.index]:
            chain = ends_at.pop(base.index, None)
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(turn)
        ends_at[index] = chain
        sizes[index] = tokens.prompt_kept + tokens.prompt_ids.size + tokens.response_ids.size
    return chains


def _shown_media(turn: Turn, base: Turn | None) -> bool:
    """Return whether something other than text was new to the policy at this turn."""
    new = turn.context if base is None else [*base.observation, *turn.context]
    return any(
        part.get("type") != "text"
        for message in new
        if type(message.get("content")) is list
        for part in message["content"]
    )


def _check_media(tree: SessionTree, turn: Turn, *, allowed: bool) -> None:
    """Refuse a turn whose ids do not stand for exactly the images that its messages show."""
    where = f"session {tree.record.id}: turn {turn.index}"
    context = tree.context(turn)
    for part in _media(context):
        if part.get("type") != "image_url":
            raise UnsupportedModality(
                f"{where} was shown a {part.get('type')!r} part, which no row can hold; export the "
                "session as sft or preference data",
            )
    shown, held = list(blob_hashes(context)), [image.blob for image in tree.images(turn)]
    if len(shown) != sum(1 for _ in _media(context)) or (shown and not held):
        raise UnsupportedModality(
            f"{where} was shown an 'image_url' part; which ids stand for it is not recorded, so it "
            "has no training row; sample with a VisionRenderer, or export the session as sft or "
            "preference data",
        )
    if shown != held:
        raise UnsupportedModality(
            f"{where} was shown {len(shown)} images ({_short(shown)}), but its ids stand for "
            f"{len(held)} ({_short(held)}): they must be the same, in the same order",
        )
    if held and not allowed:
        raise UnsupportedModality(
            f"{where} was shown {len(held)} images, and their pixels do not go along here: their "
            "placeholders must not train without them",
        )


def _media(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if type(message.get("content")) is list:
            yield from (part for part in message["content"] if part.get("type") != "text")


def _short(blobs: Sequence[str]) -> str:
    return ", ".join(blob[:12] for blob in blobs[:4]) + (", ..." if len(blobs) > 4 else "")


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


def _share_weight(rows: list[TrainingRow]) -> None:
    trained = [int(np.count_nonzero(row.loss_mask)) for row in rows]
    total = sum(trained)
    for row, count in zip(rows, trained, strict=True):
        row.weight = count / total


_DTYPES = (
    ("input_ids", np.int32),
    ("loss_mask", np.bool_),
    ("logprobs", np.float32),
    ("version_low", np.int32),
    ("version_high", np.int32),
    ("turn_ids", np.int32),
    ("reward", np.float32),
    ("advantage", np.float32),
)


def validate_row(row: TrainingRow) -> None:
    """Refuse a row that a trainer would take and silently mangle.

    Raises:
        InvalidRow: arrays of other shapes or dtypes; nothing masked at the start or something
            masked at the end; log-probs, versions, turn ids or spans that disagree with the mask;
            a reward off its turn's or span's last sampled token; values that are not finite or
            have no stamp.
    """
    try:
        _check_shapes(row)
        _check_ids(row)
        _check_mask(row)
        _check_spans(row)
        _check_behaviour(row)
        _check_values(row)
    except InvalidRow as error:
        raise InvalidRow(f"row of session {row.session}, turns {list(row.turns)}: {error}") from (
            None
        )


def _require(ok: bool | np.bool_, message: str) -> None:
    if not ok:
        raise InvalidRow(message)


def _check_shapes(row: TrainingRow) -> None:
    shape = (row.input_ids.size,)
    _require(shape[0] >= 2, "a row needs a prompt token and a trained one")
    for name, dtype in _DTYPES:
        array = getattr(row, name)
        if array is None and name in {"reward", "advantage"}:
            continue
        _require(
            isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == shape,
            f"{name} must be {np.dtype(dtype).name} of shape {shape}, got "
            f"{getattr(array, 'dtype', type(array).__name__)} {getattr(array, 'shape', '')}",
        )


def _check_ids(row: TrainingRow) -> None:
    _require(row.input_ids.min() >= 0, "input_ids holds a negative id")
    _require(np.isfinite(row.weight) and row.weight > 0, f"weight is {row.weight}; use (0, 1]")
    end = 0
    for image in row.images:
        _require(
            end <= image.start < image.end <= len(row),
            f"image {image.blob[:12]} spans [{image.start}, {image.end}) of {len(row)} tokens, the "
            f"image before it ends at {end}",
        )
        _require(
            not row.loss_mask[image.start : image.end].any(),
            f"image {image.blob[:12]}: placeholders at [{image.start}, {image.end}) are trained",
        )
        end = image.end


def _check_mask(row: TrainingRow) -> None:
    mask = row.loss_mask
    _require(not mask[0], "loss_mask[0] is set: a first token has nothing to be predicted from")
    _require(mask[-1], "ends on a masked token: cut it after its last trained token")
    _require(
        np.array_equal(row.turn_ids >= 0, mask) and row.turn_ids.min() >= -1,
        "turn_ids must be a turn index where loss_mask is set and -1 elsewhere",
    )
    trained = row.turn_ids[row.turn_ends]
    _require(
        trained.tolist() == list(row.turns) and len(set(row.turns)) == len(row.turns),
        f"turns are {list(row.turns)} but turn_ids hold {trained.tolist()}",
    )


def _check_spans(row: TrainingRow) -> None:
    for span in row.spans:
        _require(
            0 <= span.start < span.end <= len(row) and span.turn in row.turns,
            f"{span} does not lie in a trained turn of {len(row)} tokens",
        )


def _check_behaviour(row: TrainingRow) -> None:
    mask = row.loss_mask
    low, high = row.version_low, row.version_high
    _require(np.isfinite(row.logprobs).all(), "logprobs are not all finite")
    _require(row.logprobs.max() <= _LOGPROB_SLACK, "a log-prob is above 0")
    _require(not row.logprobs[~mask].any(), "logprobs must be 0.0 where loss_mask is not set")
    _require(
        np.array_equal(low >= 0, mask) and np.array_equal(high >= 0, mask),
        "versions must be >= 0 exactly where loss_mask is set",
    )
    _require((low <= high).all(), "version_low is above version_high")
    _require(min(low.min(), high.min()) >= -1, "versions are -1 where loss_mask is not set")


def _check_values(row: TrainingRow) -> None:
    for name in ("reward", "advantage"):
        array, stamp = getattr(row, name), getattr(row, f"{name}_stamp")
        _require((array is None) == (stamp is None), f"{name} and {name}_stamp go together")
        _require(array is None or np.isfinite(array).all(), f"{name} is not all finite")
    if row.reward is not None:
        elsewhere = row.reward.copy()
        elsewhere[row.turn_ends] = 0.0
        elsewhere[[row.last_trained(span) for span in row.spans]] = 0.0
        _require(
            not elsewhere.any(),
            f"reward at token {int(np.argmax(elsewhere != 0))}: the reward of a turn or span sits "
            "on its last sampled token",
        )
    if row.advantage is not None:
        _require(not row.advantage[~row.loss_mask].any(), "advantage on an untrained token")
