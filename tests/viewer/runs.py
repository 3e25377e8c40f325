"""A small run with all that the viewer shows: groups, forks, sub-agents, pictures, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import GOLDEN_NAMES, load_golden
from tests.pictures import picture
from tests.store.records import write_golden
from trajgym.trajectory import (
    Attempt,
    CallResult,
    Group,
    Member,
    Outcome,
    Segment,
    SessionRecord,
    Status,
    Store,
    Task,
    Turn,
    TurnTokens,
    image_part,
)

__all__ = ["DIFF", "HOSTILE", "write_group", "write_hostile", "write_long", "write_run"]

HOSTILE = (
    "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 2'>"
    "<a href='javascript:window.stolen = 3'>click</a></pre></textarea>"
)
DIFF = """\
diff --git a/shop/cart.py b/shop/cart.py
--- a/shop/cart.py
+++ b/shop/cart.py
@@ -10,7 +10,7 @@ class Cart:
     def total(self) -> int:
-        return sum(item.price for item in self.items)
+        return sum(item.price * item.count for item in self.items)

     def clear(self) -> None:
"""


def write_run(path: Path) -> None:
    """Write the golden sessions, a group whose attempts part, and a hostile session."""
    with Store(path) as store:
        for name in GOLDEN_NAMES:
            tree, _ = load_golden(name)
            tree.record.id = f"golden-{name}"
            write_golden(store, tree)
        write_group(store)
        write_hostile(store)


def call(name: str, number: int, **arguments: Any) -> dict[str, Any]:
    """Return a tool call."""
    text = json.dumps(arguments)
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": text}}


def step(
    index: int,
    name: str,
    arguments: dict[str, Any],
    result: Any,
    *,
    said: str = "",
    thought: str = "",
    status: str = "ok",
    reward: float | None = None,
    version: int = 3,
    **more: Any,
) -> Turn:
    """Return an exact turn with one tool call and its result."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": said,
        "tool_calls": [call(name, index, **arguments)],
    }
    if thought:
        message["reasoning_content"] = thought
    ids = np.frombuffer((said or name).encode()[:60], np.uint8).astype(np.int32)
    logprobs = -np.abs(np.sin(np.arange(ids.size) * 1.7 + index)).astype(np.float32) * 3
    half = max(1, ids.size // 2)
    parts = (half, ids.size - half)
    segments = tuple(Segment(n, version + k, version + k) for k, n in enumerate(parts) if n)
    return Turn(
        index=index,
        parent=more.pop("parent", index - 1 if index else None),
        message=message,
        observation=[{"role": "tool", "tool_call_id": f"c{index}", "content": result}],
        calls=[CallResult(call_id=f"c{index}", name=name, status=status, seconds=0.2)],  # type: ignore[arg-type]
        reward=reward,
        finish="tool_calls",
        policy="engine:small",
        synthetic=True,
        started_at=1.7e9 + index,
        policy_seconds=0.8,
        env_seconds=0.3,
        tokens=TurnTokens(
            prompt_kept=0,
            prompt_ids=np.frombuffer(b"<prompt>", np.uint8).astype(np.int32),
            response_ids=ids,
            logprobs=logprobs,
            segments=segments,
        ),
        **more,
    )


OPENING = [
    {"role": "system", "content": "You are a careful engineer. Use the tools."},
    {"role": "user", "content": "`Cart.total` ignores how many of an item there are. Fix it."},
]


def write_group(store: Store, *, group: str = "g1", task: str = "cart-total") -> list[str]:
    """Write four attempts at a task: they share two turns, then part; two are solved."""
    store.put_task(Task(id=task, prompt=OPENING[1]["content"], data={"repo": "shop"}))
    members = []
    for sample in range(4):
        name = f"{group}-{sample}"
        members.append(Member(name, sample, "failed:sandbox" if sample == 3 else ""))
        store.begin_session(
            SessionRecord(
                id=name,
                task=task,
                env={"id": "swe", "config": {}},
                group=group,
                sample=sample,
                seed=sample,
                tools=[{"type": "function", "function": {"name": "bash"}}],
                budgets={"turns": 12},
                labels={"policy": "engine:small"},
                created_at=1.7e9 + sample,
            )
        )
        turns = [
            step(
                0, "bash", {"command": "ls"}, "shop\ntests", context=OPENING, said="I look around."
            ),
            step(1, "bash", {"command": "cat shop/cart.py"}, "class Cart: ...", said="I read it."),
        ]
        if sample == 0:
            turns += [
                step(
                    2,
                    "edit",
                    {"path": "shop/cart.py", "old": "item.price", "new": "item.price * item.count"},
                    DIFF,
                    thought="The count is missing from the sum.",
                    reward=0.5,
                ),
                step(3, "bash", {"command": "pytest -q"}, "4 passed in 0.11s", reward=0.5),
            ]
        elif sample == 1:
            turns += [
                step(2, "bash", {"command": "grep -rn count"}, "no match", status="error"),
                step(3, "bash", {"command": "sed -i s/price/cost/ shop/cart.py"}, ""),
            ]
        elif sample == 2:
            turns += [step(2, "edit", {"path": "shop/cart.py", "new": "..."}, DIFF)]
        for turn in turns:
            store.append_turn(name, turn)
        solved = sample in {0, 2}
        end = Attempt(
            leaf=len(turns) - 1,
            status=Status("completed"),
            outcome=Outcome(
                score=float(solved), passed=solved, details={"failed_tests": 2 - 2 * solved}
            ),
            ended_at=1.7e9 + 60,
        )
        if sample == 3:
            end = Attempt(
                leaf=1,
                status=Status("failed", "sandbox"),
                cause="the container exited with status 137 after 41.5 s",
                error="Traceback: ...",
            )
        store.put_attempt(name, end).wait()
    store.put_group(Group(id=group, task=task, planned=4, members=members, sealed=True)).wait()
    return [member.session for member in members]


def write_hostile(store: Store) -> None:
    """Write a session whose every text tries to be markup."""
    store.begin_session(
        SessionRecord(
            id="hostile",
            task=HOSTILE,
            env={"id": HOSTILE},
            labels={"policy": HOSTILE},
            created_at=1.0,
        )
    )
    message = {
        "role": "assistant",
        "content": f"{HOSTILE}\n```html\n{HOSTILE}\n```",
        "reasoning_content": HOSTILE,
        "tool_calls": [call(HOSTILE, 0, text=HOSTILE)],
    }
    store.append_turn(
        "hostile",
        Turn(
            index=0,
            parent=None,
            context=[{"role": "user", "content": HOSTILE}],
            message=message,
            observation=[{"role": "tool", "tool_call_id": "c0", "content": HOSTILE}],
            calls=[CallResult(call_id="c0", name=HOSTILE, status="error")],
            signals={HOSTILE: HOSTILE},
        ),
    )
    end = Attempt(leaf=0, status=Status("failed", "env"), cause=HOSTILE, error=HOSTILE)
    store.put_attempt("hostile", end).wait()


def write_screens(store: Store, name: str = "screens") -> None:
    """Write a session of a graphical environment: three pictures, a click on two of them."""
    store.begin_session(SessionRecord(id=name, task="press-the-button", env={"id": "browser"}))
    blobs = []
    for colour in ("red", "green", "blue"):
        blob, _ = store.put_blob(picture(colour, 640, 400), "image/png")
        blobs.append(blob)
    shown = [
        {"role": "user", "content": [{"type": "text", "text": "Press it."}, image_part(blobs[0])]}
    ]
    for index, (x, y) in enumerate([(320, 200), (100, 50)]):
        turn = step(
            index,
            "click",
            {"x": x, "y": y},
            [{"type": "text", "text": "The page changed."}, image_part(blobs[index + 1])],
            said="I press it.",
            context=shown if not index else [],
            signals={"actions": [{"do": "click", "at": [x, y]}], "screen": [640, 400]},
        )
        store.append_turn(name, turn)
    end = Attempt(leaf=1, status=Status("completed"), outcome=Outcome(score=1.0, passed=True))
    store.put_attempt(name, end).wait()


def write_long(store: Store, turns: int, name: str = "long") -> None:
    """Write a session of many turns."""
    store.begin_session(SessionRecord(id=name, task="long-task", env={"id": "swe"}))
    for index in range(turns):
        store.append_turn(
            name,
            step(
                index,
                "bash",
                {"command": f"sed -n {index},{index + 40}p shop/cart.py"},
                "\n".join(f"line {index + k} of the file" for k in range(30)),
                said=f"I read from line {index}.",
                context=OPENING if not index else [],
            ),
        )
    end = Attempt(leaf=turns - 1, status=Status("truncated", "turns"), cause="500 turns")
    store.put_attempt(name, end).wait()
