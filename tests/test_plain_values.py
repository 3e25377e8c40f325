"""Values from user code as plain ones."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.envs._plain import plain_values


class Text(str):
    __slots__ = ()


class Table(dict[str, Any]):
    pass


class Items(list[Any]):
    pass


TEXTS = st.sampled_from(["", "a", "b", Text("a"), Text("b")])
LEAVES = st.none() | st.booleans() | st.integers() | st.just(0.5) | TEXTS | st.just((Text("a"),))
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(Items)
        | st.dictionaries(TEXTS, inner, max_size=3)
        | st.dictionaries(TEXTS, inner, max_size=3).map(Table)
    ),
    max_leaves=12,
)


def straightforward(value: Any) -> Any:
    """Build every value anew."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        return {straightforward(key): straightforward(one) for key, one in value.items()}
    return [straightforward(one) for one in value] if isinstance(value, list) else value


def types(value: Any) -> Any:
    """Return the types of a value and of all in it, in their order."""
    if isinstance(value, dict):
        return type(value), [(types(key), types(one)) for key, one in value.items()]
    return type(value), [types(one) for one in value] if isinstance(value, list) else None


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_values_become_plain_and_plain_ones_stay(value: Any) -> None:
    """The values and their order are the same, without subclasses; what is plain is not copied."""
    found, wanted = plain_values(value), straightforward(value)
    assert found == wanted
    assert types(found) == types(wanted)
    assert (found is value) == (types(value) == types(wanted))
