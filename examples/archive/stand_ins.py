"""What takes the place of models, so that the example runs without one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from trajgym.rollout import PolicyRequest, ScriptedPolicy, call

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from trajgym.trajectory import Message

FENCE = """
def cleaned(text):
    return text.strip().strip("`").strip()
"""
CHECK = """
def accepted():
    return not os.path.exists("check.sh") or os.system("sh ./check.sh") == 0
"""
LIST = """
def prompt(task):
    return task + " Files: " + " ".join(sorted(os.listdir()))
"""
EDITS = {
    "take answers out of code fences": FENCE,
    "run the check, and ask again if it fails": CHECK,
    "show the model the files": LIST,
    "a slip of the pen": "\ndef cleaned(text:\n    return text\n",
    "count the words of the task": "\ndef words(task):\n    return len(task.split())\n",
}


def editor() -> ScriptedPolicy:
    """Return an editor that inserts the edit that its task names."""

    def answer(request: PolicyRequest) -> Message | str:
        assert request.task is not None
        if request.turn:
            return request.task.data["change"]
        code, body = request.task.data["code"], EDITS[request.task.data["change"]]
        edited = code.replace("\ntask = ", f"{body}\n\ntask = ", 1)
        return call("bash", command=f"cat > agent.py <<'END'\n{edited}END")

    return ScriptedPolicy(answer, name="editor")


def pick(code: str, chance: random.Random) -> str:
    """Return one of the edits that some code does not have yet.

    A model would look at the failures; this is a draw, so some children are no better.
    """
    open_edits = [name for name, body in EDITS.items() if body not in code]
    return chance.choice(open_edits or list(EDITS))


def reply(messages: list[dict[str, Any]]) -> str:
    """Answer as a small model might: right, but in its own way."""
    task = messages[0]["content"]
    if "2 + 3" in task:
        return "5"
    if "the code 7" in task:
        return "```\n7\n```"
    if "multiple of 3" in task:
        return "9" if len(messages) > 1 else "8"
    names = task.partition(" Files: ")[2].split()
    return next((name for name in names if name.endswith(".key")), "I can't see them.")


@asynccontextmanager
async def model() -> AsyncIterator[str]:
    """Serve the stand-in, and yield its base URL."""

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        message = {"role": "assistant", "content": reply(body["messages"])}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        return web.json_response({**answer, "choices": [choice], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
