"""Dialogue environments: the simulated user is a policy; data and messages are verified."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs import EnvSpec, Session
from trajgym.envs.dialogue import (
    DialogueRecord,
    RentalEnv,
    ScriptedUser,
    User,
    UserTurn,
)
from trajgym.trajectory import InvalidInput, Usage

SPEC = EnvSpec(id="trajgym.envs.dialogue:RentalEnv")
TASKS = {task.id.removeprefix("trajgym-rental-"): task for task in RentalEnv.load_tasks("builtin")}


@pytest.mark.parametrize("name", TASKS)
async def test_each_task_is_solved_by_its_actions_and_by_nothing_less(name: str) -> None:
    """The demonstration passes; without its last action, or unsaid, it does not."""
    passed = []
    for sample in (0, 1):
        async with Session(SPEC, TASKS[name]) as session:
            for message in RentalEnv.script(TASKS[name], sample):
                if not session.done:
                    await session.step(message)
        assert str(session.status) == "completed", session.attempt
        assert session.outcome is not None
        passed.append(session.outcome.passed)
    assert passed == [True, False]


async def test_the_user_is_recorded_as_another_policy_and_trains_nothing() -> None:
    """Each answer has its author; the agent's turns are only its own messages."""
    async with Session(SPEC, TASKS["cancel-early"]) as session:
        system, opening = session.messages
        assert system["role"] == "system"
        assert "bicycle rental" in str(system["content"])
        assert opening == {"role": "user", "content": "Hello, I must cancel my booking."}
        for message in RentalEnv.script(TASKS["cancel-early"], 0):
            await session.step(message)
    first = session.turns[0]
    users = [turn for turn in session.tree.turns if turn.simulated]
    assert {(turn.agent, turn.policy) for turn in users} == {("user", "scripted:user")}
    assert users[1].message["content"] == "It is ines@example.org."
    assert users[1].context == [{"role": "user", "content": first.message["content"]}]
    assert first.message["role"] == "assistant"
    assert first.observation == [{"role": "user", "content": "It is ines@example.org."}]
    assert len(users) == 4
    assert session.turns[-1].done


async def test_tools_keep_to_the_data_and_a_fork_goes_on_from_its_turn() -> None:
    """A refused call is answered, changes nothing, and rivals do not see each other's changes."""

    def call(name: str, **arguments: Any) -> dict[str, Any]:
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls = [{"id": "c", "type": "function", "function": function}]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    for every in (0, 1):
        async with Session(SPEC, TASKS["swap"], snapshot_every=every) as session:
            await session.step("Your address, please?")
            async with await session.fork(session.turns[0].index) as rival:
                await rival.step(call("swap_bike", booking="R1", bike="B4"))
                await rival.step("The price is 78 now.")
                await rival.step("Goodbye.")
                assert rival.outcome is not None
                assert rival.outcome.passed
            for wrong in (
                call("swap_bike", booking="R1", bike="B9"),
                call("move_booking", booking="R1", first="2025-05-01", last="2025-05-02"),
                call("cancel_booking", booking="R1", credit=500),
                call("find_customer", email="nobody@example.org"),
            ):
                shown = await session.step(wrong)
                assert (
                    "there is no" in str(shown.observation)
                    or "Error" in str(shown.observation)
                    or "must" in str(shown.observation)
                    or "begins" in str(shown.observation)
                    or ("no customer" in str(shown.observation))
                )
            await session.step("The price is 78 now.")
            await session.step("Goodbye.")
        assert session.outcome is not None
        assert session.outcome.details["data_right"] is False


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An OpenAI-compatible endpoint that plays a user."""
    seen: list[dict[str, Any]] = []
    says = ["I'd like to cancel R1.", "ines@example.org", "Yes.", "###STOP###"]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen.append(request)
            text = says[len(seen) - 1] if len(seen) <= len(says) else ""
            body = json.dumps({
                "id": "x", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "finish_reason": "stop",
                             "message": {"role": "assistant", "content": text}}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
            }).encode()  # fmt: skip
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", seen
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_model_plays_the_user_with_the_roles_turned_round(
    endpoint: tuple[str, list[dict[str, Any]]],
) -> None:
    """The user gets its wishes, and the agent's messages as user messages, not tools or policy."""
    url, seen = endpoint
    spec = EnvSpec(id=SPEC.id, config={"user": {"base_url": url, "model": "m", "seed": 3}})
    task = TASKS["cancel-early"]
    async with Session(spec, task) as session:
        for message in RentalEnv.script(task, 0):
            if not session.done:
                await session.step(message)
    assert session.outcome is not None
    assert session.outcome.passed
    first = session.tree.turns[0]
    assert (first.agent, first.policy) == ("user", "openai:m")
    assert first.message["content"] == "I'd like to cancel R1."
    assert first.usage == Usage(prompt_tokens=7, completion_tokens=2)
    assert first.sampling is not None
    assert (first.sampling.seed, first.sampling.temperature) == (3, 0.7)
    users = [turn for turn in session.tree.turns if turn.simulated]
    assert [session.tree.context(turn) for turn in users] == [s["messages"] for s in seen]
    assert seen[0]["seed"] == 3
    assert "Ines Moreau" in seen[0]["messages"][0]["content"]
    roles = [(m["role"], m["content"]) for m in seen[1]["messages"][2:]]
    assert roles == [
        ("assistant", "I'd like to cancel R1."),
        ("user", DialogueRecord.of(task).asks),
    ]
    assert not any("bicycle" in json.dumps(m) for m in seen[-1]["messages"][1:])


async def test_a_user_that_does_not_answer_ends_the_attempt_unscored(
    endpoint: tuple[str, list[dict[str, Any]]],
) -> None:
    """An endpoint that is unreachable or returns no text is `failed:user`, not a zero."""
    url, seen = endpoint
    seen += [{}] * 10  # from now on it says nothing
    for where in (url, "http://127.0.0.1:9/v1"):
        user = {"base_url": where, "model": "m", "tries": 1}
        async with Session(EnvSpec(id=SPEC.id, config={"user": user}), TASKS["move"]) as session:
            assert str(session.status) == "failed:user"
        assert session.outcome is None


def curt(record: DialogueRecord) -> User:
    """A user of one's own, as the setting names it."""

    class Curt:
        async def say(self, conversation: Any) -> UserTurn:
            return UserTurn(
                "No. ###STOP###" if conversation else record.instruction[:9], "own:curt"
            )

    return Curt()


async def test_a_user_of_ones_own_is_named_by_import_path() -> None:
    """`module:factory` gives the user; a wrong path is a clear error."""
    spec = EnvSpec(id=SPEC.id, config={"user": f"{__name__}:curt"})
    async with Session(spec, TASKS["others"]) as session:
        await session.step("I can't say.")
    assert str(session.status) == "completed"
    assert session.outcome is not None
    assert session.outcome.passed
    assert session.tree.turns[0].policy == "own:curt"
    with pytest.raises(InvalidInput, match="can't be imported"):
        await RentalEnv(user="nowhere:x").reset(TASKS["others"], None)


async def test_lines_wait_for_their_cue() -> None:
    """A line with `when` is sent once the agent's message matches it, in any order."""
    lines = [
        {"says": "Hi"},
        {"says": "R1", "when": "which|booking"},
        {"says": "a@b", "when": "mail"},
    ]
    user = ScriptedUser(DialogueRecord.model_validate({"instruction": "x", "lines": lines}))
    words: list[Any] = []
    heard = []
    for agent in ("Your e-mail?", "Which one?", "Bye"):
        heard.append((await user.say(words)).text)
        words += [{"role": "assistant", "content": heard[-1]}, {"role": "user", "content": agent}]
    heard.append((await user.say(words)).text)
    assert heard == ["Hi", "a@b", "R1", "###STOP###"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "instruction"),
        ({"instruction": "x", "actions": [{"name": "fly"}]}, "no tool 'fly'"),
        ({"instruction": "x", "actions": [{"name": "swap_bike", "arguments": {"bike": "B1"}}]},
         "booking"),
        ({"instruction": "x",
          "actions": [{"name": "swap_bike", "arguments": {"booking": "R9", "bike": "B1"}}]},
         "there is no booking R9"),
        ({"instruction": "x", "lines": [{"says": "a", "when": "("}]}, "regular expression"),
        ({"instruction": "x", "output": ["36"]}, "output"),
    ],
)  # fmt: skip
def test_malformed_tasks_are_refused_on_load(
    tmp_path: Path, data: dict[str, Any], said: str
) -> None:
    """Reference actions that can't be executed are found before any session."""
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"id": "odd", "data": data}))
    with pytest.raises(InvalidInput, match=rf"odd.*{said}"):
        RentalEnv.load_tasks(str(file))
