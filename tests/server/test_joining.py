"""The hard cases of joining calls into a tree; numbers are those of the project's list of cases."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.server.story import TOOL, Story, says, system, tool, user
from trajgym.server.joining import Earlier, Request, kept_of, repeat_of
from trajgym.server.joining._atoms import arguments_of, canonical_arguments

LONG = "The user asked for a sum of two numbers, and it was computed."
GO = user("2+3 + 4+5?")
TWO = says("Let me.", ("c1", "add", '{"a": 2, "b": 3}'), ("c2", "add", '{"a": 4, "b": 5}'))
RESULTS = [tool("c1", "5"), tool("c2", "9")]


def earlier(**fields: Any) -> Earlier:
    given = {
        "state": "complete",
        "client": False,
        "delivered": True,
        "followed": False,
        "replayed": False,
        "ended": 0.0,
    }
    return Earlier(**(given | fields))


@pytest.mark.parametrize(
    ("case", "before", "retry", "rule"),
    [
        ("first of its kind", [], False, "new"),
        ("1: after a 5xx", [earlier(state="failed")], False, "R3"),
        ("2: the first still runs, its client left", [earlier(state="running")], False, "R2"),
        (
            "2: a marked retry whose first connection is not seen as closed yet",
            [earlier(state="running", client=True)],
            True,
            "R2",
        ),
        ("3: complete, never delivered", [earlier(delivered=False)], False, "R4"),
        ("3: written, but the client says that it has no answer", [earlier()], True, "R4"),
        ("3: replayed once already", [earlier(delivered=False, replayed=True)], False, "R5"),
        ("3: too old", [earlier(delivered=False, ended=-100.0)], False, "R5"),
        ("3: the agent has it, another call shows", [earlier(followed=True)], True, "R5"),
        ("4: both connected", [earlier(state="running", client=True)], False, "R1"),
        ("5: asked again on purpose", [earlier()], False, "R5"),
    ],
)
def test_the_same_body_again(case: str, before: list[Earlier], retry: bool, rule: str) -> None:
    """Cases 1 to 5: retry, attach, replay, twin and resample are distinguished."""
    assert repeat_of(before, now=10.0, retry=retry).rule == rule, case


def test_twins_are_siblings_and_go_on_apart() -> None:
    """Case 4: two agents with one prompt at one time; later calls are distinguished by call ids."""
    story = Story()
    parent = says("", ("p1", "sub", '{"task": "Say one"}'), ("p2", "sub", '{"task": "Say one"}'))
    story.call([system("main"), user("go")], parent)
    task = [system("sub"), user("Say one")]
    first, second = story.ask(task), story.ask(task)
    story.answer(first, says("", ("x1", "add", "{}")))
    story.answer(second, says("", ("x2", "add", "{}")))
    assert {first.caller, second.caller} == {"p1", "p2"}
    assert first.agent != second.agent
    later = story.ask([*task, says("", ("x2", "add", "{}")), tool("x2", "1")])
    assert later.parent is second
    assert later.agent == second.agent


def test_asking_again_is_a_sibling() -> None:
    """Case 5: the same prompt again is another sample beside the first."""
    story = Story()
    first = story.call([GO], TWO)
    again = story.call([GO], TWO)
    assert again.parent is first.parent is None
    assert story.last.rule == "R5:sibling"


def test_marks_and_blocks_do_not_matter() -> None:
    """Case 6: cache marks move and a block list becomes a string."""
    story = Story()
    marked = [{"type": "text", "text": GO["content"], "cache_control": {"type": "ephemeral"}}]
    first = story.call([user(marked)], says("So."))
    story.ask([GO, says([{"type": "text", "text": "So."}]), user("more")])  # type: ignore[arg-type]
    assert story.last.base is first
    assert story.last[1:3] == ("continue", "C")


def test_results_in_any_order() -> None:
    """Case 7: parallel results come back in the order of completion."""
    story = Story()
    story.call([GO], TWO)
    second = story.call([GO, TWO, *RESULTS], says("", ("c3", "add", "{}")))
    story.ask([GO, TWO, *RESULTS[::-1], says("", ("c3", "add", "{}")), tool("c3", "14")])
    assert story.last.base is second
    assert story.last.edge == "continue"


@pytest.mark.parametrize(
    "echo",
    [
        says("Let me.", ("c1", "add", '{"b":3,"a":2}'), ("c2", "add", '{"b":5,"a":4}')),
        {**TWO, "content": [{"type": "text", "text": "Let me."}]},
        {**TWO, "refusal": None, "audio": None, "reasoning_content": "hm"},
    ],
)
def test_an_echo_in_another_form(echo: Any) -> None:
    """Cases 8 and 17: arguments serialised again, blocks for text, reasoning added or stripped."""
    story = Story()
    first = story.call([GO], TWO)
    story.ask([GO, echo, *RESULTS])
    assert story.last.base is first
    assert story.last.edge == "continue"


def test_text_beside_calls_dropped() -> None:
    """Case 9: the calls come back without the text: continued by their ids, as an edit."""
    story = Story()
    first = story.call([GO], TWO)
    request = [GO, {**TWO, "content": None}, *RESULTS]
    seen = story.ask(request)
    assert story.last[:3] == (first, "rewrite", "C2:echo-edited")
    assert kept_of(first, Request(request)) == 1
    assert seen.agent == "main"


def test_calls_turned_into_text() -> None:
    """Case 10: call ids vanish; what follows the known prompt is a changed answer."""
    story = Story()
    first = story.call([GO], TWO)
    story.ask([GO, says("Calling tools: add(2, 3)"), user("Observation: 5")])
    assert story.last[:3] == (first, "rewrite", "W1:echo-edited")


def test_an_answer_refused() -> None:
    """Case 11: the answer is dropped and an error appended to the prompt before it."""
    story = Story()
    first = story.call([GO], says("Oops, no call."))
    story.ask([GO, user("Format error: call a tool.")])
    assert story.last[:3] == (first, "rewrite", "W2:dropped")
    assert story.roles() == {}


def test_an_answer_refused_in_the_middle() -> None:
    """Case 11: what follows a refused answer is caused by it, though it does not repeat it."""
    story = Story()
    story.call([GO], TWO)
    refused = story.call([GO, TWO, *RESULTS], says("Oops, no call."))
    story.ask([GO, TWO, *RESULTS, user("Format error: call a tool.")])
    assert story.last[:3] == (refused, "rewrite", "W2:dropped")


def test_a_title_beside_the_first_turn() -> None:
    """Case 12: a call with another head that nothing continues is a side call, with a reason."""
    story = Story()
    story.call([system("Title this."), GO], says("Sums"), tools=None)
    story.call([system("You add."), GO], TWO)
    story.call([system("You add."), GO, TWO, *RESULTS], says("14"))
    assert story.places[1].base is None
    assert {number: role.role for number, role in story.roles().items()} == {0: "side:title"}


def test_compaction_by_a_separate_call() -> None:
    """Case 13: the next opening holds the text of a summary: the main agent's context, edited."""
    story = Story()
    story.call([system("You add."), GO], TWO)
    main = story.call([system("You add."), GO, TWO, *RESULTS], says("", ("c3", "add", "{}")))
    rendered = "Summarise: " + json.dumps([GO, TWO, *RESULTS])
    summary = story.call([user(rendered)], says(LONG), tools=None)
    story.call([system("You add."), GO, user(f"So far: {LONG}")], says("14"))
    assert summary.edge == "continue"
    assert story.last.edge == "rewrite"
    assert story.last.agent == "main"
    assert story.last.rule == "W4:compaction"
    assert story.last.base is main
    assert story.last.summary is summary
    assert kept_of(main, Request([system("You add."), GO, user("x")])) == 2
    assert story.roles()[summary.number].role == "side:summary"


def test_compaction_inside_the_conversation() -> None:
    """Case 14: the request for a summary follows the conversation; a new one opens with it."""
    story = Story()
    first = story.call([GO], says("Let me think about the sum for a while."))
    text = f"<analysis>a</analysis><summary>{LONG}</summary>"
    summary = story.call([user([*_block(GO["content"]), *_block("Summarise.")])], says(text))
    assert summary.parent is first
    assert story.last.rule == "W2:dropped"
    story.call([user(f"This session continues. {LONG}"), user("Go on.")], says("14"))
    assert story.last[:3] == (first, "rewrite", "W4:compaction")
    assert story.roles()[summary.number].role == "side:summary"


def test_a_hand_over_in_two_steps() -> None:
    """The summary and the answers to questions about it are both beside the work."""
    story = Story()
    asks = "What else is known about the sum, and where is it written down?"
    more = "The sum is nowhere else; it was only said in the terminal."
    first = story.call([GO], says("Let me think about the sum for a while."))
    told = [GO, says("Let me think about the sum for a while."), user("Summarise.")]
    summary = story.call(told, says(LONG))
    questions = story.call([user(f"You continue. {LONG}")], says(asks))
    answers = story.call([*told, says(LONG), user(f"Questions: {asks}")], says(more))
    story.call(
        [GO, user(f"You continue. {LONG}"), says(asks), user(f"Answers: {more}")], says("14")
    )
    assert questions.parent is first
    assert answers.parent is summary
    assert story.last[:3] == (questions, "rewrite", "W4:compaction")
    assert story.last.summary is answers
    assert {n: role.role for n, role in story.roles().items()} == {
        summary.number: "side:summary",
        answers.number: "side:summary",
    }


def _block(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def test_a_sub_agent_opens_with_a_tool_argument() -> None:
    """Case 15: spawned by the call whose argument it opens with, it returns in its result."""
    story = Story()
    ask = says("", ("h1", "helper", '{"input": "2+3"}'), ("h2", "helper", '{"input": "4+5"}'))
    main = story.call([system("main"), GO], ask)
    one = story.call([system("sub"), user("2+3")], says("5"))
    two = story.call([system("sub"), user("4+5")], says("9"))
    assert [(p.base, p.edge, p.rule) for p in story.places[1:]] == [
        (main, "spawn", "S2:argument"),
        (main, "spawn", "S2:argument"),
    ]
    assert (one.caller, two.caller) == ("h1", "h2")
    story.ask([system("main"), GO, ask, tool("h1", "5"), tool("h2", "9")])
    assert story.last.base is main
    assert story.last.returns == (one, two)
    assert story.roles() == {}


def test_an_asynchronous_sub_agent() -> None:
    """Case 16: the parent continues; the answer comes later, as a reminder from the user."""
    story = Story()
    launch = says("", ("t1", "Task", '{"prompt": "Say one, please, and take your time"}'))
    main = story.call([GO], launch)
    sub = story.call(
        [user("Say one, please, and take your time")],
        says("One, said with all the time in the world."),
        hints={"agent": "a7", "parent_agent": "top"},
    )
    on = story.call([GO, launch, tool("t1", "launched")], says("Meanwhile."))
    assert story.places[1][:3] == (main, "spawn", "S1:header")
    assert sub.agent == "a7"
    assert story.last.returns == ()
    reminder = "<system-reminder>One, said with all the time in the world.</system-reminder>"
    story.ask([GO, launch, tool("t1", "launched"), says("Meanwhile."), user(reminder)])
    assert story.last.base is on
    assert story.last.returns == (sub,)


def test_sub_agents_that_begin_after_their_parent_has_continued() -> None:
    """Case 16: the call that asked for them spawns them, not the parent's latest one."""
    story = Story()
    launch = says(
        "", ("t1", "Task", '{"prompt": "Say one"}'), ("t2", "Task", '{"prompt": "Say two"}')
    )
    main = story.call([GO], launch)
    launched = [tool("t1", "launched"), tool("t2", "launched")]
    story.call([GO, launch, *launched], says("Meanwhile."))
    two = story.ask([user("Say two")], hints={"agent": "b2"})
    one = story.ask([user("Say one")], hints={"agent": "a1"})
    assert [p[:3] for p in story.places[2:]] == [(main, "spawn", "S1:header")] * 2
    assert (one.caller, two.caller) == ("t1", "t2")
    assert (one.agent, two.agent) == ("a1", "b2")


def test_masked_results() -> None:
    """Case 18: an old result is replaced: the call ids show whose conversation it is."""
    story = Story()
    story.call([GO], TWO)
    second = story.call([GO, TWO, *RESULTS], says("", ("c3", "add", "{}")))
    masked = [GO, TWO, tool("c1", "[old output removed]"), RESULTS[1]]
    request = [*masked, says("", ("c3", "add", "{}")), tool("c3", "14")]
    story.ask(request)
    assert story.last.edge == "rewrite"
    assert story.last.base is not None
    assert kept_of(second, Request(request)) == 2


def test_a_history_rendered_again_in_one_message() -> None:
    """Case 19: no part is shared: roots of the main agent, one after the other."""
    story = Story()
    for text in ("Step 1", "Step 1: add. Step 2", "Step 1: add. Step 2: add. Step 3"):
        story.call([system("ReAct"), user(text)], says("ok"), tools=None)
    assert [p.base for p in story.places] == [None, None, None]
    assert {p.agent for p in story.places} == {"main"}
    assert story.roles() == {}


def test_a_helper_that_reads_an_answer() -> None:
    """Case 20: a commit message is made of the agent's answer: beside it, no compaction."""
    story = Story()
    story.call([system("edit"), GO], says(LONG), tools=None)
    story.call([system("commit messages"), user(f"Diff: {LONG}")], says("feat"), tools=None)
    assert story.last.rule == "O:reads-answer"
    assert story.roles()[1].role == "side:reader"
    story.call([system("commit messages"), user("Another diff.")], says("fix"), tools=None)
    assert story.last.rule == "O:same-head"
    assert story.roles()[2].role == "side:reader"  # though it is the session's last call


def test_turns_that_nobody_sampled() -> None:
    """Case 21: few-shot turns in the agent's request are context; the call continues as usual."""
    story = Story()
    shots = [user("1+1?"), says("2"), user("2+2?"), says("4")]
    first = story.call([*shots, GO], says("14"))
    story.ask([*shots, GO, says("14"), user("thanks")])
    assert story.last[:2] == (first, "continue")


def test_tools_change_midway() -> None:
    """Case 22: another head, the same conversation."""
    story = Story()
    first = story.call([GO], TWO)
    more = [*TOOL, {"type": "function", "function": {"name": "mul", "parameters": {}}}]
    story.ask([GO, TWO, *RESULTS], tools=more)
    assert story.last[:2] == (first, "continue")


def test_previous_response_id_and_a_fork_from_an_older_one() -> None:
    """Case 23: the client names the base; a second child of one base is a fork of the context."""
    story = Story()
    first = story.call([GO], says("14"))
    story.call([GO, says("14"), user("a")], says("A"), previous=first)
    assert story.last[:3] == (first, "continue", "C:previous")
    story.ask([GO, says("14"), user("b")], previous=first)
    assert story.last[:3] == (first, "rewrite", "C:fork")


def test_hidden_calls() -> None:
    """Case 25: the engine hid a sampled call; what the client got is what comes back."""
    story = Story()
    shown = says("", ("c1", "add", "{}"))
    first = story.call([GO], shown)
    story.ask([GO, shown, tool("c1", "5")])
    assert story.last[:2] == (first, "continue")


def test_images_are_known_by_their_bytes() -> None:
    """Case 26: another detail or form, the same bytes."""
    story = Story()
    data = base64.b64encode(b"\x89PNG picture").decode()

    def shown(**more: Any) -> dict[str, Any]:
        image = {"url": f"data:image/png;base64,{data}", **more}
        return user([{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": image}])

    first = story.call([shown(detail="low")], says("A cat."))
    story.ask([shown(detail="high"), says("A cat."), user("sure?")])
    assert story.last[:2] == (first, "continue")


def test_a_process_resumed() -> None:
    """Case 28: the agent's own session id is new and its head differs: the texts show the base."""
    story = Story()
    first = story.call([system("date: 1"), GO], says(LONG), hints={"session": "a"})
    story.ask([system("date: 2"), user("Resumed."), says(LONG), user("go on")])
    assert story.last[:2] == (first, "rewrite")


def test_reasoning_names_its_answer() -> None:
    """A signature of ours in the history is evidence, whatever became of the text around it."""
    story = Story()
    first = story.call([GO], says("hm"))
    story.ask([user("other"), says("short"), user("x")], signatures=["c0"])
    assert story.last.base is first


def test_an_agent_with_tools_while_one_call_is_open() -> None:
    """Rule S3 spawns from the only open call; with two of them the root is ambiguous."""
    story = Story()
    main = story.call([system("main"), GO], TWO)
    story.call([system("sub"), user("unrelated words")], says("", ("z", "add", "{}")))
    assert story.last[:3] == (main, "spawn", "S3:inferred")
    story.ask([system("third"), user("other words")])
    assert story.last[:3] == (None, "continue", "O:ambiguous")


@pytest.mark.parametrize("depth", [900, 5_000])
def test_deeply_nested_arguments_are_compared_as_text(depth: int) -> None:
    """Calls whose arguments no parser accepts are the same calls if their texts are equal."""
    arguments = '{"n": ' + "[" * depth + "]" * depth + "}"
    call = {"id": "c", "function": {"name": "run", "arguments": arguments}}
    assert canonical_arguments(arguments) == canonical_arguments(arguments)
    assert arguments_of({"role": "assistant", "tool_calls": [call]})[0][0] == "c"
