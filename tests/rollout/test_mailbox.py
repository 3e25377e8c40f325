"""Messages between a fleet and its actors, over calls that fail and are repeated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trajgym.rollout.fleet.ray._mailbox import Mailbox

CALLS = st.lists(st.sampled_from(["send", "fetch", "fetch, reply lost", "put", "put twice"]))


@given(CALLS)
def test_each_message_arrives_once_and_in_order(calls: list[str]) -> None:
    """Whatever calls are repeated because their replies were lost, in both directions."""
    box = Mailbox()
    sent = put = 0
    arrived: list[int] = []
    for call in [*calls, "fetch"]:
        if call == "send":
            sent += 1
            box.send(sent)
        elif call.startswith("fetch"):
            found, closed = box.fetch(len(arrived), 0.0)
            assert not closed
            arrived += found if call == "fetch" else []
        else:
            put += 1
            for _ in range(1 + (call == "put twice")):
                box.put(put, put)
    assert arrived == list(range(1, sent + 1))
    box.lose()
    assert list(box.messages()) == list(range(1, put + 1))


def test_a_closed_box_is_read_to_its_end() -> None:
    """What was sent before the end is fetched with it, and again if that reply was lost."""
    box = Mailbox()
    box.send("last")
    box.close()
    assert box.fetch(0, 10.0) == (["last"], True)
    assert box.fetch(0, 10.0) == (["last"], True)
    assert box.fetch(1, 10.0) == ([], True)
