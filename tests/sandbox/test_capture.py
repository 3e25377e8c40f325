"""Bounded capture."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.sandbox._capture import Capture, MarkedCapture

MARK = b"0123456789abcdef"


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(2, 200))
def test_head_and_tail(chunks: list[bytes], limit: int) -> None:
    """What is kept are the first and last bytes; kept plus dropped is all, however it is cut."""
    capture = Capture(limit)
    for chunk in chunks:
        capture.feed(chunk)
    data = b"".join(chunks)
    kept, dropped = capture.result()
    assert len(kept) + dropped == len(data)
    if len(data) <= limit:
        assert kept == data
    else:
        assert len(kept) == limit
        head = (limit + 1) // 2
        assert kept == data[:head] + data[len(data) - (limit - head) :]


@given(st.binary(max_size=300), st.binary(max_size=50), st.integers(0, 2**32))
def test_mark_is_found_however_it_is_cut(data: bytes, after: bytes, seed: int) -> None:
    """The bytes before the mark come out whole, the line behind it too, and the rest."""
    rng = random.Random(seed)
    stream = data + MARK + b" 0 1\n" + after
    capture = MarkedCapture(MARK, 10_000)
    while stream:
        size = rng.randint(1, 40)
        capture.feed(stream[:size])
        stream = stream[size:]
    assert capture.ending == b" 0 1"
    assert capture.rest == after
    assert capture.result() == (data, 0)


def test_without_mark_everything_is_kept() -> None:
    """A stream that is cut off before its mark loses nothing."""
    capture = MarkedCapture(MARK, 1000)
    capture.feed(b"abc" + MARK[:7])
    assert capture.ending is None
    assert capture.result() == (b"abc" + MARK[:7], 0)
