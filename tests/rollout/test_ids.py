"""Token ids as lists and arrays, and the shortcuts that find parts of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trajgym.rollout import PolicyGarbage
from trajgym.rollout._ids import as_array, as_list, end_of_last, holds_any
from trajgym.rollout._token_policy import _Response
from trajgym.rollout.engines import Generation
from trajgym.rollout.rendering import ByteRenderer
from trajgym.rollout.rendering._token_text import TokenText
from trajgym.trajectory import Segment

RENDERER = ByteRenderer()
SPECIALS = RENDERER._codec.specials
PIECES = st.sampled_from([*SPECIALS, "a", "bc", " ", "\n", "é", "日", "\U0001f600", "<", "think>"])
TEXTS = st.lists(PIECES, max_size=40).map("".join)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.data())
def test_a_place_in_a_text_is_that_of_the_fewest_ids(text: str, data: st.DataObject) -> None:
    """Wherever the guesses begin: fewer ids do not contain the text up to there, these do."""
    ids = RENDERER._codec.encode(text)
    found = TokenText(ids, RENDERER._codec.decode)
    char = data.draw(st.integers(0, len(found.text)))
    count = found.tokens_until(char)
    starts = [RENDERER._codec.decode(ids[:n])[:char] == found.text[:char] for n in range(count + 1)]
    assert starts[count]
    assert not any(starts[:count])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 256, 257, 1 << 16]), max_size=60),
    st.lists(st.sampled_from([0, 1, 256]), min_size=1, max_size=3),
    st.integers(0, 9000),
)
@example([1 << 16, 1, 0], [1], 0)
def test_the_last_of_a_part_is_found_where_a_slow_search_finds_it(
    ids: list[int], part: list[int], behind: int
) -> None:
    """Also across windows, and not where the bytes of two ids look like one."""
    whole = np.array([*ids, *[7] * behind], dtype=np.int32)
    ends = [at + len(part) for at in range(len(ids)) if ids[at : at + len(part)] == part]
    assert end_of_last(whole, part) == max(ends, default=0)
    assert end_of_last(whole.astype(np.int64), part) == max(ends, default=0)


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_bytes_are_encoded_alike_as_list_and_array(text: str) -> None:
    """Every byte is an id, and every special text another one; it decodes to the same text."""
    ids = RENDERER._codec.encode(text)
    array = RENDERER._codec.encode_array(text)
    assert array.dtype == np.int32
    assert array.tolist() == ids
    assert RENDERER._codec.decode(ids) == text
    rest = text
    for special in SPECIALS:
        rest = rest.replace(special, "\0")
    assert [i if i < 256 else 0 for i in ids] == list(rest.encode())


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_a_prompt_opens_reasoning_as_its_text_does(text: str) -> None:
    """Its last ids show it sooner where they are those that open a turn."""
    for end in ("", "<|assistant|>", "<|assistant|><think>", "<|assistant|><think>\n"):
        ids = RENDERER._codec.encode(text + end)
        shown = RENDERER.decode(ids[-48:]).rstrip().endswith("<think>")
        assert RENDERER._opened(ids) == shown
        assert RENDERER._opened(np.array(ids, dtype=np.int32)) == shown


@given(st.lists(st.integers(0, 9)), st.frozensets(st.integers(0, 9), max_size=4))
def test_few_ids_are_found_among_many(ids: list[int], wanted: frozenset[int]) -> None:
    """In an array, as in a list."""
    assert holds_any(np.array(ids, dtype=np.int32), wanted) == bool(wanted.intersection(ids))


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_open_reasoning_is_seen_by_the_start_of_a_response(text: str) -> None:
    """The head of a response decides only what the whole response would."""
    response = RENDERER._codec.encode(text)
    prefix = np.array([97, *RENDERER.opening_ids, *response], dtype=np.int32)
    start = end_of_last(prefix, RENDERER.opening_ids)
    said = prefix[start:].tolist()
    assert RENDERER._ends_in_reasoning(prefix) == RENDERER.reasoning_is_open(said)


def test_an_array_is_the_callers_own() -> None:
    """An engine may use its buffer again; what is no id is refused."""
    buffer = np.arange(4, dtype=np.int32)
    for given_ids in (buffer, buffer.tolist(), tuple(buffer), buffer.astype(np.int64)):
        made = as_array(given_ids)
        assert made.dtype == np.int32
        assert not np.shares_memory(made, buffer)
        assert as_list(made) == [0, 1, 2, 3]
    with pytest.raises(OverflowError):
        as_array([1 << 40])
    with pytest.raises(TypeError):
        as_array([[1, 2]])  # type: ignore[list-item]


def test_a_response_keeps_nothing_of_the_engine() -> None:
    """Sampled and inserted parts follow each other, whatever happens to the engine's buffers."""
    ids = np.array([5, 6], dtype=np.int32)
    logprobs = np.array([-0.5, -0.25], dtype=np.float32)
    response = _Response()
    response.sampled(Generation(ids, logprobs, (Segment(2, 1, 1),), "length"), 8, frozenset({9}))  # type: ignore[arg-type]
    ids[:], logprobs[:] = 0, 0.0
    response.inserted((7,))
    response.sampled(Generation([9], [-1.0], (Segment(1, 1, 1),), "stop"), 8, frozenset({9}))
    assert response.size == 4
    assert response.ids.tolist() == [5, 6, 7, 9]
    assert response.logprobs.tolist() == [-0.5, -0.25, 0.0, -1.0]
    assert [segment.length for segment in response.segments] == [2, 1, 1]
    past = Generation(np.array([9, 5], np.int32), [-1.0, -1.0], (Segment(2, 1, 1),), "stop")  # type: ignore[arg-type]
    with pytest.raises(PolicyGarbage, match="past a stop id"):
        _Response().sampled(past, 8, frozenset({9}))
