"""The tokens of a turn as JSON: ids, texts, log-probs, versions, and which of them are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from trajgym.rollout.rendering import ByteRenderer
from trajgym.trajectory import InvalidInput, TrajgymError, build_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trajgym.trajectory import SessionTree, TurnTokens

__all__ = ["Decode", "describe_tokens", "token_texts"]

Decode: TypeAlias = "Callable[[Sequence[int]], str]"
"""Gives the text of some ids."""

_MOST = 20_000
"""Prompt ids that are sent of one turn; those nearest to the response."""


def describe_tokens(
    tree: SessionTree, index: int, decode: Decode | None = None
) -> dict[str, Any] | None:
    """Return the tokens of a turn; None for a text turn.

    Args:
        tree: the session.
        index: of the turn.
        decode: gives the text of ids; without it, ``texts`` is None.

    Raises:
        InvalidInput: there is no such turn.
    """
    if not 0 <= index < len(tree.turns):
        raise InvalidInput(f"session {tree.record.id!r} has no turn {index}")
    turn = tree.turns[index]
    tokens = turn.tokens
    if tokens is None:
        return None
    if decode is None and turn.synthetic:
        decode = _fake_decode(tokens)
    prompt = tokens.prompt_ids[-_MOST:].tolist()
    response = tokens.response_ids.tolist()
    trained, why = _trained(tree, index)
    return {
        "kept": tokens.prompt_kept,
        "cut": int(tokens.prompt_ids.size) - len(prompt),
        "prompt": prompt,
        "prompt_texts": None if decode is None else token_texts(prompt, decode),
        "response": response,
        "texts": None if decode is None else token_texts(response, decode),
        "logprobs": [round(value, 5) for value in tokens.logprobs.tolist()],
        "low": tokens.version_low.tolist(),
        "high": tokens.version_high.tolist(),
        "sampled": tokens.sampled_mask.tolist(),
        "trained": trained,
        "why": why,
        "spans": [list(span) for span in tokens.spans],
        "synthetic": turn.synthetic,
    }


def _fake_decode(tokens: TurnTokens) -> Decode | None:
    """Return what decodes the ids of a fake engine with the default renderer, if they can be."""
    renderer = ByteRenderer()
    largest = max(int(part.max(initial=0)) for part in (tokens.prompt_ids, tokens.response_ids))
    return renderer.decode if largest < renderer.vocab_size else None


def _trained(tree: SessionTree, index: int) -> tuple[list[bool] | None, str]:
    """Return the loss mask of a turn's response in training rows, and why it is not trained."""
    tokens = tree.turns[index].tokens
    assert tokens is not None
    try:
        rows = build_rows(tree, images=True, sides=False)
    except TrajgymError as error:
        return None, str(error)
    for row in rows.rows:
        here = row.turn_ids == index
        if not here.any():
            continue
        start = int(here.argmax()) - _lead(tokens.sampled_mask.tolist())
        size = tokens.response_ids.size
        mask = row.loss_mask[max(start, 0) : start + size].tolist()
        return [*mask, *[False] * (size - len(mask))], ""
    own = [d for d in rows.dropped if d.attempt in {None, tree.turns[index].attempt}]
    return [False] * tokens.response_ids.size, "; ".join(sorted({d.reason for d in own}))


def _lead(sampled: Sequence[bool]) -> int:
    """Return how many ids were inserted before the first sampled one."""
    return next((at for at, one in enumerate(sampled) if one), 0)


def token_texts(ids: Sequence[int], decode: Decode) -> list[str]:
    """Return the text of each id; joined, they are the text of all.

    A character that several ids share is the text of the last of them; the others have none.
    """
    texts: list[str] = []
    pending: list[int] = []
    for identity in ids:
        pending.append(identity)
        text = decode(pending)
        if text.endswith("\ufffd") and len(pending) < 4:
            texts.append("")
            continue
        texts.append(text)
        pending.clear()
    if pending:
        texts[-1] = decode(pending)
    return texts
