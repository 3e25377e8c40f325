"""A renderer caches texts, which changes nothing but the time."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.rollout.rendering import ByteRenderer
from trajgym.rollout.rendering._text_cache import Rendered, TextCache, conversation_key, place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.trajectory import Message

TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
}
TEXTS = st.sampled_from(["", "a", "ab", "<|end|>", "Well?"])


def conversations() -> st.SearchStrategy[list[Message]]:
    """Conversations of a user and an assistant, some with reasoning, that a user has ended."""
    said = st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": TEXTS},
        optional={"reasoning_content": st.sampled_from(["hm", "so"])},
    )
    asked = st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS})
    pairs = st.lists(st.tuples(said, asked), min_size=1, max_size=3)
    return st.builds(lambda first, rest: [first, *(m for pair in rest for m in pair)], asked, pairs)


@settings(max_examples=150, deadline=None)
@given(
    sessions=st.lists(conversations(), min_size=1, max_size=3),
    edits=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), TEXTS), max_size=6),
    most=st.sampled_from([0, 3000, 1 << 20]),
    strip=st.booleans(),
)
def test_a_warm_renderer_gives_what_a_fresh_one_gives(
    sessions: list[list[Message]], edits: list[tuple[int, int, str]], most: int, strip: bool
) -> None:
    """Interleaved sessions, messages edited in place, tools that come and go: the same ids."""
    warm = ByteRenderer(strip_reasoning=strip)
    warm._prompts = TextCache(most)
    sessions = copy.deepcopy(sessions)
    for which, place, text in [*edits, (0, 0, "the end")]:
        for messages in sessions:
            for tools in ((), (TOOL,)):
                fresh = ByteRenderer(strip_reasoning=strip)
                held = len(messages) - 1
                prefix = fresh.render(messages[: held - 1], tools)
                prefix += fresh.encode_response("x")
                assert warm.render(messages, tools) == fresh.render(messages, tools)
                found = warm.extend(prefix, messages, tools, held=held)
                assert found == fresh.extend(prefix, messages, tools, held=held)
                assert warm.shown(messages, tools) == fresh.shown(messages, tools)
        edited = sessions[which % len(sessions)]
        edited[place % len(edited)]["content"] = text


def test_a_turn_renders_no_old_prompt_again(monkeypatch: Any) -> None:
    """The text of the last turn's prompt is not rendered again when the next turn extends it."""
    renderer = ByteRenderer()
    rendered: list[int] = []
    template: Callable[..., str] = renderer._codec.template

    def counted(messages: list[Message], *rest: Any, **options: Any) -> str:
        rendered.append(len(messages))
        return template(messages, *rest, **options)

    monkeypatch.setattr(renderer._codec, "template", counted)
    messages: list[Message] = [{"role": "user", "content": "Well?"}]
    ids = renderer.render(messages)
    for turn in range(3):
        ids += renderer.encode_response("yes")
        messages = [*messages, {"role": "assistant", "content": "yes"}]
        messages = [*messages, {"role": "user", "content": f"And {turn}?"}]
        rendered.clear()
        extended = renderer.extend(ids, messages, held=len(messages) - 1)
        assert extended is not None
        assert sorted(rendered) == [len(messages) - 1, len(messages)]
        ids = extended


def test_equal_values_of_other_types_are_other_conversations() -> None:
    """Templates write True, 1 and 1.0 differently, and keys in their order."""
    calls: list[Any] = [True, 1, 1.0, 0.0, -0.0, None, "1", [1], (1,), [1.0], {1}]
    calls += [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {1: "a"}, {True: "a"}, {"1": "a"}]
    keys = {conversation_key([{"role": "tool", "value": value}], ()) for value in calls}
    assert len(keys) == len(calls)
    assert conversation_key([], ({"a": 1},)) != conversation_key([{"a": 1}], ())
    first = {"role": "assistant", "tool_calls": [{"id": "x"}]}
    assert conversation_key([first], ()) == conversation_key([copy.deepcopy(first)], ())


def kept(cache: TextCache, said: str, text: str = "x") -> None:
    """Add a conversation of one message."""
    messages = [{"role": "user", "content": said}]
    cache.put(place_of(messages, None), Rendered(messages, list(messages), text))


def holds(cache: TextCache, said: str) -> bool:
    messages = [{"role": "user", "content": said}]
    return cache.get(place_of(messages, None), messages) is not None


def test_it_keeps_no_more_than_it_may() -> None:
    """What was used last stays; what alone takes more than all it may keep is not kept."""
    cache = TextCache(3 * 3000)
    for said in "abc":
        kept(cache, said, "x" * 1000)
    assert holds(cache, "a")
    kept(cache, "d", "y" * 1000)
    assert [holds(cache, said) for said in "abcd"] == [True, False, True, True]
    kept(cache, "b", "z" * 5000)
    assert len(cache) == 3
    assert len(pickle.loads(pickle.dumps(cache))) == 0


def test_a_prompt_whose_conversation_went_on_goes_first() -> None:
    """The prompts that the next turns need stay when there is not enough memory for all."""
    cache = TextCache(3 * 3000)
    for said in "abc":
        kept(cache, said, "x" * 1000)
    cache.expect_less(place_of([{"role": "user", "content": "c"}], None))
    kept(cache, "d", "x" * 1000)
    assert [holds(cache, said) for said in "abcd"] == [True, True, False, True]


def test_it_takes_the_memory_that_it_may() -> None:
    """Its keys count, too: many short messages take more memory than their texts."""
    cache = TextCache(1 << 21)
    tracemalloc.start()
    try:
        for i in range(3000):
            said = [{"role": "user", "content": f"{i} {j}"} for j in range(12)]
            entry = Rendered(said, [dict(one) for one in said], f"{i} " * 60)
            cache.put(place_of(said, None), entry)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cache) > 100
    assert used < 2 * (1 << 21)


def test_a_prompt_shows_no_messages_that_were_changed_in_place() -> None:
    """Values, their types and their order are compared, at every depth."""

    def calling() -> list[Any]:
        function = {"name": "look", "arguments": "{}"}
        calls = [{"id": "c", "type": "function", "function": function}]
        said = {"role": "assistant", "content": "", "tool_calls": calls}
        return [{"role": "user", "content": "Well?"}, said, {"role": "tool", "content": "x"}]

    def reorder(value: dict[str, Any]) -> None:
        for name in list(value)[:-1]:
            value[name] = value.pop(name)

    changes: list[Callable[[Any], Any]] = [
        lambda m: m[0].update(content="Ill?"),
        lambda m: m[0].update(more=True),
        lambda m: m[1]["tool_calls"].append(copy.deepcopy(m[1]["tool_calls"][0])),
        lambda m: m[1]["tool_calls"][0].update(id="d"),
        lambda m: m[1]["tool_calls"][0]["function"].update(name="see"),
        lambda m: reorder(m[2]),
        lambda m: reorder(m[1]["tool_calls"][0]),
        lambda m: m[1]["tool_calls"][0].update(
            function={"arguments": "{}", "name": "look"},
        ),
        lambda m: m[1].pop("tool_calls"),
        lambda m: m.pop(),
    ]
    for extra in (None, True):  # with a value that is not a text, all are compared by their keys
        for change in changes:
            messages = calling()
            if extra is not None:
                messages[2]["extra"] = extra
            entry = Rendered(messages, messages, "", Rendered(messages[:1], messages[:1], ""))
            assert entry.shows(copy.deepcopy(messages))
            change(messages)
            assert not entry.shows(messages)
    odd = calling()
    odd[0]["extra"] = 1
    entry = Rendered(odd, odd, "")
    odd[0]["extra"] = True
    assert not entry.shows(odd)
