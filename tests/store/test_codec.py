"""Turns of any content come back equal from the form that the store keeps."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.records import turn
from trajgym.trajectory import (
    CallResult,
    CallStatus,
    Edge,
    InvalidInput,
    Sampling,
    Segment,
    Span,
    Try,
    Turn,
    TurnTokens,
    Usage,
    Wire,
)
from trajgym.trajectory._codec import (
    decode_turn,
    encode,
    encode_turn,
)

ids = st.lists(st.integers(0, 2**31 - 1), max_size=8)


text = st.text(st.characters(codec="utf-8"), max_size=20)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def tokens(draw: st.DrawFn) -> TurnTokens:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    segments = tuple(
        Segment(n, -1, -1, False) if forced else Segment(n, low, low + more)
        for n in lengths
        for low, more, forced in [
            draw(st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans()))
        ]
    )
    n = sum(lengths)
    logprobs = draw(st.lists(st.floats(-1e4, 0, width=32), min_size=n, max_size=n))
    end = draw(st.integers(1, n))
    return TurnTokens(
        prompt_kept=draw(st.integers(0, 2**31)),
        prompt_ids=draw(ids),  # type: ignore[arg-type]
        response_ids=draw(st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n)),  # type: ignore[arg-type]
        logprobs=logprobs,  # type: ignore[arg-type]
        segments=segments,
        spans=draw(st.sampled_from([(), (Span("answer", 0, end, "c"),)])),
    )


@settings(max_examples=200, deadline=None)
@given(st.none() | tokens(), st.dictionaries(text, json_values, max_size=3), text)
def test_any_turn_survives_the_codec(
    given_tokens: TurnTokens | None, signals: dict[str, Any], content: str
) -> None:
    """Turns of any content come back equal from the form that the store keeps."""
    original = turn(0, content)
    original.tokens = given_tokens
    original.signals = signals
    again = decode_turn(*encode_turn(original))
    assert (again.message, again.signals) == (original.message, signals)
    if given_tokens is not None:
        assert again.tokens is not None
        assert again.tokens.to_json() == given_tokens.to_json()


_DRAWN = {
    "index": st.integers(0, 9),
    "parent": st.none() | st.integers(0, 9),
    "edge": st.sampled_from(get_args(Edge)),
    "attempt": st.integers(0, 3),
    "agent": st.sampled_from(["main", "helper"]),
    "kept": st.none() | st.integers(0, 3),
    "context": st.lists(st.just({"role": "user", "content": "go"}), max_size=2),
    "observation": st.lists(st.just({"role": "user", "content": "saw"}), max_size=2),
    "calls": st.lists(
        st.builds(
            CallResult,
            call_id=text,
            name=text,
            status=st.sampled_from(get_args(CallStatus)),
            reward=st.none() | st.floats(-1, 1),
            seconds=st.floats(0, 9),
        ),
        max_size=2,
    ),
    "reward": st.none() | st.floats(-1, 1),
    "done": st.booleans(),
    "signals": st.dictionaries(text, json_values, max_size=2),
    "finish": st.sampled_from(["stop", "length"]),
    "usage": st.none()
    | st.builds(
        Usage,
        prompt_tokens=st.integers(0, 9),
        completion_tokens=st.integers(0, 1),
        reasoning_tokens=st.integers(0, 1),
        cached_tokens=st.integers(0, 1),
    ),
    "sampling": st.none()
    | st.builds(
        Sampling,
        temperature=st.none() | st.floats(0, 2),
        top_p=st.none() | st.floats(0, 1),
        top_k=st.none() | st.integers(0, 2),
        max_tokens=st.none() | st.integers(0, 2),
        seed=st.none() | st.integers(0, 2),
        logprob_mode=st.sampled_from(["processed", "raw", "unknown"]),
    ),
    "policy": text,
    "synthetic": st.booleans(),
    "snapshot": st.none() | text,
    "started_at": st.floats(0, 2e9),
    "policy_seconds": st.floats(0, 9),
    "env_seconds": st.floats(0, 9),
    "returns": st.lists(st.integers(0, 9), max_size=2),
    "delivery": st.sampled_from(["delivered", "open", "orphan"]),
    "role": st.sampled_from(["main", "side:title"]),
    "role_reason": text,
    "wire": st.none()
    | st.builds(Wire, call=text, dialect=text, tries=st.just([Try(1.0, 2.0, "lost")])),
}


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries(_DRAWN))
def test_turns_are_written_as_the_general_encoder_would(drawn: dict[str, Any]) -> None:
    """The written-out encoder of turns leaves out no field, whichever of them are set."""
    original = Turn(message={"role": "assistant", "content": "so"}, **drawn)
    assert {field.name for field in fields(Turn)} == {*_DRAWN, "message", "tokens"}
    body, _ = encode_turn(original)
    assert json.loads(body) == json.loads(encode(original, exclude={"tokens"}))


@given(st.binary(max_size=60))
def test_damaged_tokens_never_pass(data: bytes) -> None:
    """Bytes that are not packed tokens are refused, not misread."""
    body, packed = encode_turn(turn(0))
    assert packed is None
    with pytest.raises(InvalidInput, match="tokens"):
        decode_turn(body, data)
