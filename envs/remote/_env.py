"""The client: an environment class whose methods are HTTP requests."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from trajgym.envs._budgets import Budgets
from trajgym.envs._env import Env
from trajgym.envs._errors import EnvironmentFault, UnknownEnv
from trajgym.envs._tools import Tool, declare_tools
from trajgym.envs.remote._wire import (
    opening_from_json,
    outcome_from_json,
    raised_from_json,
    result_from_json,
)
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs._tools import ToolResult
    from trajgym.trajectory import Message, Outcome, Task

__all__ = ["RemoteEnv", "remote_class"]

TOKEN = "TRAJGYM_ENV_TOKEN"  # noqa: S105 - the name of a variable
_FETCH_SECONDS = 30.0
_TRIES = 2


@lru_cache(maxsize=64)
def remote_class(url: str) -> type[RemoteEnv]:
    """Return the class of the environment that is served at a URL, with its tools and budgets.

    The description is fetched once per process, in a blocking request of at most 10 s that carries
    the token in ``TRAJGYM_ENV_TOKEN``, if set.

    Raises:
        UnknownEnv: no environment is served at the URL.
    """
    answer = _fetch(url, None)
    made = type(
        "RemoteEnv",
        (RemoteEnv,),
        {
            "url": url.rstrip("/"),
            "budgets": Budgets.from_json(answer["budgets"]),
            "forkable": answer["forkable"],
            "refuses": answer["refuses"],
            **{name: answer[name] for name in ("reset_seconds", "verify_seconds", "close_seconds")},
        },
    )
    declare_tools(made, [_tool(one) for one in answer["tools"]])
    return made


def _fetch(url: str, body: dict[str, Any] | None) -> Any:
    """Send a blocking request and return the parsed JSON of the response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, _headers())  # noqa: S310 - http(s), see EnvSpec
    try:
        with urllib.request.urlopen(request, timeout=_FETCH_SECONDS) as got:  # noqa: S310
            return json.load(got)
    except urllib.error.HTTPError as error:
        raise UnknownEnv(f"{url}: status {error.code}: {error.read()[:200]!r}") from error
    except (OSError, ValueError) as error:
        raise UnknownEnv(f"{url}: no response from an environment server: {error}") from error


class RemoteEnv(Env):
    """An environment that another process serves; :func:`remote_class` makes its subclasses.

    A request whose connection fails is sent once more, except the request that opens the
    environment; the server does not repeat an operation that it has already executed.
    """

    url: ClassVar[str] = ""
    refuses: ClassVar[bool] = False
    """Whether the environment overrides ``on_refusal``."""

    def __init__(self, **config: Any) -> None:
        if config:
            raise InvalidInput(
                f"{self.url}: a remote environment is configured on its server; got "
                f"{sorted(config)}"
            )
        self._client: Any = None
        self._handle = ""
        self._number = 0

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """See :meth:`Env.script`; sends a blocking request, as it is for demos and tests."""
        body = {"task": task.model_dump(mode="json"), "sample": sample}
        messages: list[Message] = _value(_fetch(f"{cls.url}/script", body))
        return messages

    @classmethod
    async def discard_snapshots(cls, config: Mapping[str, Any], snapshots: Sequence[str]) -> None:
        """See :meth:`Env.discard_snapshots`."""
        del config
        async with _client() as client:
            await _send(cls.url, client, "/discard", {"snapshots": list(snapshots)})

    async def reset(self, task: Task, seed: int | None) -> Any:
        """See :meth:`Env.reset`."""
        return opening_from_json(await self._begin(task, seed, None))

    async def restore(self, task: Task, seed: int | None, snapshot: str) -> None:
        """See :meth:`Env.restore`."""
        await self._begin(task, seed, snapshot)

    async def respond(self, message: Message) -> ToolResult:
        """See :meth:`Env.respond`."""
        return result_from_json(await self._ask("respond", message=message))

    async def on_refusal(self, error: str) -> Any:
        """See :meth:`Env.on_refusal`."""
        if not self.refuses:
            return super().on_refusal(error)
        return result_from_json(await self._ask("refuse", error=error))

    async def verify(self) -> Outcome:
        """See :meth:`Env.verify`."""
        return outcome_from_json(await self._ask("verify"))

    async def snapshot(self) -> str | None:
        """See :meth:`Env.snapshot`."""
        found: str | None = (await self._ask("snapshot"))["snapshot"]
        return found

    async def close(self) -> None:
        """See :meth:`Env.close`."""
        client, self._client = self._client, None
        if client is None:
            return
        try:
            if self._handle:
                await _send(self.url, client, f"/{self._handle}/close", {})
        finally:
            await client.close()

    async def call(self, tool: str, arguments: str) -> ToolResult:
        """Execute a tool call; ``arguments`` is the JSON text that the model generated."""
        return result_from_json(await self._ask("call", tool=tool, arguments=arguments))

    async def _begin(self, task: Task, seed: int | None, snapshot: str | None) -> dict[str, Any]:
        self._client = _client()
        body = {
            "task": task.model_dump(mode="json"),
            "seed": seed,
            "snapshot": snapshot,
            "labels": dict(self.labels),
            "remaining": list(self.remaining),
        }
        opened = await _send(self.url, self._client, "/open", body)
        self._handle = opened["id"]
        value: dict[str, Any] = opened["value"]
        return value

    async def _ask(self, method: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        body = {"number": self._number, "remaining": list(self.remaining), **fields}
        return await _send(self.url, self._client, f"/{self._handle}/{method}", body)


def _client() -> Any:
    try:
        import aiohttp
    except ImportError as error:
        raise MissingExtra("aiohttp", "server") from error
    return aiohttp.ClientSession(
        headers=_headers(), timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0)
    )


async def _send(url: str, client: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    import aiohttp

    data = json.dumps(body).encode()
    tries = 1 if path == "/open" else _TRIES  # a repeated request could leak an environment
    for left in reversed(range(tries)):
        try:
            async with client.post(url + path, data=data) as got:
                answer, status = await got.read(), got.status
            break
        except aiohttp.ClientConnectionError as error:
            if not left:
                raise EnvironmentFault("env", f"{url}: connection lost: {error}") from error
    if status != 200:
        raise EnvironmentFault("env", f"{url}{path}: status {status}: {answer[:300]!r}")
    value: dict[str, Any] = _value(json.loads(answer))
    return value


def _value(answer: dict[str, Any]) -> Any:
    if "raised" in answer:
        raise raised_from_json(answer["raised"])
    return answer["value"]


@dataclass(frozen=True, slots=True)
class _RemoteTool(Tool):
    """A tool whose arguments are validated by the server."""

    def parse(self, arguments: str) -> dict[str, Any]:
        return {"tool": self.name, "arguments": arguments}


def _tool(said: dict[str, Any]) -> Tool:
    return _RemoteTool(
        name=said["schema"]["function"]["name"],
        function=RemoteEnv.call,
        arguments=BaseModel,
        schema=said["schema"],
        concurrent=said["concurrent"],
        parameters=("tool", "arguments"),
        is_async=True,
    )


def _headers() -> dict[str, str]:
    token = os.environ.get(TOKEN)
    return {"authorization": f"Bearer {token}"} if token else {}
