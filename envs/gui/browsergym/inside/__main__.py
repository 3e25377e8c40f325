"""``python3 -m trajgym_browsergym``: one BrowserGym environment, served over stdin and stdout."""

from __future__ import annotations

import base64
import importlib
import io
import json
import os
import sys
import threading
import time
import traceback
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_CHROMIUM = "/usr/bin/chromium"
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"]
_MOST_MESSAGES = 50


class Chat:
    """BrowserGym's chat without its window, which would be a second browser."""

    def __init__(self, *args: Any, **options: Any) -> None:
        del args, options
        self.messages: list[dict[str, Any]] = []
        self.recording_start_time = None

    def add_message(self, role: str, msg: str) -> None:
        """Add a message; BrowserGym does not keep those of the role ``info``."""
        if role != "info":
            self.messages.append({"role": role, "timestamp": time.time(), "message": msg})

    def wait_for_user_message(self) -> None:
        """Return: there is no user to wait for."""

    def close(self) -> None:
        """Do nothing."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        del format, args


def _serve(folder: str) -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def _entry(name: str) -> Any:
    """Return the task class ``module:Class``, or the class that a registered task id names."""
    module, colon, attribute = name.partition(":")
    if colon:
        return getattr(importlib.import_module(module), attribute)
    family, _, rest = name.removeprefix("browsergym/").partition(".")
    found = importlib.import_module("browsergym.core" if not rest else f"browsergym.{family}")
    del found
    from gymnasium.envs.registration import registry

    spec = registry.get(name if name.startswith("browsergym/") else f"browsergym/{name}")
    if spec is None:
        raise LookupError(f"BrowserGym has no task {name!r}")
    return spec.entry_point


class Driver:
    """One environment of BrowserGym, and the requests to it."""

    def __init__(self) -> None:
        self.env: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request.

        Raises:
            LookupError: there is no such task or operation.
        """
        if request["op"] == "start":
            return self.start(request)
        if request["op"] == "step":
            return self.step(request)
        if request["op"] == "look":
            return self.seen(request, self.env._get_obs())
        raise LookupError(f"unknown operation {request['op']!r}")

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open ``task`` with its ``arguments`` and ``seed``; ``miniwob`` is a folder of HTML."""
        import browsergym.core.env as core
        from browsergym.core.action.highlevel import HighLevelActionSet

        core.Chat = Chat
        if request.get("miniwob"):
            os.environ["MINIWOB_URL"] = f"{_serve(request['miniwob'])}/miniwob/"
        made = _entry(request["task"])
        options: dict[str, Any] = {
            "pw_chromium_kwargs": {"executable_path": _CHROMIUM, "chromium_sandbox": False},
            "action_mapping": HighLevelActionSet(
                subsets=request["subsets"], multiaction=True, strict=False
            ).to_python_code,
            "slow_mo": request["slow_mo"],
            "timeout": request["timeout"],
            "pre_observation_delay": request["delay"],
        }
        arguments = request.get("arguments") or {}
        if isinstance(made, type):
            self.env = core.BrowserEnv(made, task_kwargs=arguments, **options)
        else:
            self.env = made(task_kwargs=arguments, **options)
        obs, info = self.env.reset(seed=request["seed"])
        goal = [one for one in obs["goal_object"] if one["type"] == "text"]
        return {
            **self.seen(request, obs),
            "goal": "\n".join(one["text"] for one in goal),
            "info": _plain(info["task_info"]),
        }

    def step(self, request: dict[str, Any]) -> dict[str, Any]:
        """Execute ``action``, BrowserGym's calls as text, and validate the task."""
        obs, reward, ended, cut, info = self.env.step(request["action"])
        return {
            **self.seen(request, obs),
            "reward": float(reward),
            "done": bool(ended or cut),
            "infeasible": bool(self.env.infeasible_message_received),
            "info": _plain(info["task_info"]),
        }

    @staticmethod
    def seen(request: dict[str, Any], obs: dict[str, Any]) -> dict[str, Any]:
        """Return an observation as JSON values, with the parts that ``look`` asks for."""
        from browsergym.utils.obs import flatten_axtree_to_str, flatten_dom_to_str, prune_html
        from PIL import Image

        wanted = request["look"]
        found: dict[str, Any] = {
            "url": obs["url"],
            "tabs": list(obs["open_pages_urls"]),
            "active": int(obs["active_page_index"][0]),
            "focused": obs["focused_element_bid"],
            "error": obs["last_action_error"],
            "chat": [
                {"role": one["role"], "message": str(one["message"])[:2000]}
                for one in obs["chat_messages"][-_MOST_MESSAGES:]
            ],
        }
        more = {"extra_properties": obs["extra_element_properties"]}
        if wanted["tree"]:
            found["tree"] = flatten_axtree_to_str(obs["axtree_object"], **more)[: wanted["tree"]]
        if wanted["html"]:
            html = prune_html(flatten_dom_to_str(obs["dom_object"], **more))
            found["html"] = html[: wanted["html"]]
        if wanted["picture"]:
            with io.BytesIO() as buffer:
                image = Image.fromarray(obs["screenshot"])
                image.save(buffer, wanted["picture"].upper(), quality=wanted["quality"])
                found["picture"] = base64.b64encode(buffer.getvalue()).decode()
            found["size"] = [image.width, image.height]
        return found


def _plain(value: Any) -> Any:
    """Return what a task reports as JSON values; other objects as text."""
    return json.loads(json.dumps(value, default=str))


def main() -> None:
    """Serve requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of tasks must not mix with the answers
    driver = Driver()
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {"id": request["id"], "ok": True}
        try:
            answer |= driver.answer(request)
        except Exception as error:  # noqa: BLE001 - boundary: reported to the library
            kind = "refused" if isinstance(error, LookupError | ImportError) else "fault"
            said = f"{type(error).__name__}: {error}"[:2000]
            trace = traceback.format_exc(limit=8)
            answer = {"id": request["id"], "ok": False, "kind": kind, "error": said, "trace": trace}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
