"""The HTTP client for an engine: aiohttp with one connection pool."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from trajgym.server._errors import UpstreamError
from trajgym.server._json import dumps
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.rollout.rendering import Renderer
    from trajgym.server.dialects import ClientCall

__all__ = ["EngineKind", "Upstream"]

EngineKind: TypeAlias = Literal["vllm", "sglang", "hosted"]
"""The kind of engine: vLLM or SGLang, which return token ids, or a hosted one with text only."""


@dataclass(slots=True, kw_only=True)
class Upstream:
    """An OpenAI-compatible engine.

    Args:
        base_url: with or without ``/v1``.
        kind: the kind of engine; calls to a ``hosted`` one are recorded as text turns.
        api_key: sent to the engine; never recorded or returned.
        model: model to request, in place of the one that the client names; the client's if None.
        renderer: parses ids, for spans and to resume answers after an abort.
        logprob_mode: what the engine's log-probs refer to (vLLM's default is ``raw``).
        connect_seconds: how long to retry connecting.
        read_seconds: longest silence in an answer.
        synthetic: the ids come from a fake engine.
    """

    base_url: str
    kind: EngineKind = "vllm"
    api_key: str | None = None
    model: str | None = None
    renderer: Renderer | None = None
    logprob_mode: Literal["processed", "raw", "unknown"] = "unknown"
    connect_seconds: float = 60.0
    read_seconds: float = 600.0
    synthetic: bool = False
    stop_ids: set[int] = field(default_factory=set)
    """Token ids that have ended an answer so far."""
    _client: Any = None
    _aiohttp: Any = None

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/").removesuffix("/v1")
        try:
            import aiohttp
        except ImportError as error:
            raise MissingExtra("aiohttp", "server") from error
        self._aiohttp = aiohttp

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """The exceptions that a broken connection raises."""
        return (self._aiohttp.ClientError, OSError, TimeoutError)

    def edited(self, call: ClientCall, renamed: Mapping[str, str]) -> dict[str, Any]:
        """Return the body to send: the client's, plus the fields that request ids and log-probs.

        Args:
            call: the client's request.
            renamed: maps tool-call ids that the client knows to the engine's own.
        """
        body = dict(call.body)
        if renamed and "messages" in body:
            body["messages"] = [_with_own_ids(message, renamed) for message in body["messages"]]
        if self.model is not None:
            body["model"] = self.model
        if call.stream:
            body["stream"] = True
            if self.kind != "hosted" or call.shows_usage:
                body["stream_options"] = {
                    **(body.get("stream_options") or {}),
                    "include_usage": True,
                }
        if self.kind == "hosted":
            return body
        body["return_token_ids"] = True
        if call.path == "/v1/completions":
            body["logprobs"] = body.get("logprobs") or 0
            return body
        body["logprobs"] = True
        if body.get("top_logprobs") is None:
            body["top_logprobs"] = 0  # vLLM returns no log-probs for an explicit null
        return body

    def post(self, path: str, body: dict[str, Any], session: str) -> Any:
        """Return aiohttp's context manager of a response."""
        headers = {"content-type": "application/json", "x-session-id": session}
        return self._opened().post(self.base_url + path, data=dumps(body), headers=headers)

    async def post_control(self, path: str, body: Any) -> tuple[int, str]:
        """Return status and text of an administrative request.

        Raises:
            UpstreamError: the engine can't be reached.
        """
        data = b"" if body is None else dumps(body)
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with self._opened().post(
                self.base_url + path, data=data, headers=headers
            ) as response:
                return response.status, await response.text()
        except self.errors as error:
            raise UpstreamError(f"{self.base_url}{path}: {error!r}") from error

    async def models(self) -> tuple[int, bytes]:
        """Return status and body of ``/v1/models``.

        Raises:
            UpstreamError: the engine can't be reached.
        """
        try:
            async with self._opened().get(self.base_url + "/v1/models") as response:
                return response.status, await response.read()
        except self.errors as error:
            raise UpstreamError(f"{self.base_url}/v1/models: {error!r}") from error

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _opened(self) -> Any:
        if self._client is None:
            http = self._aiohttp
            keyed = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
            self._client = http.ClientSession(
                connector=http.TCPConnector(limit=0, keepalive_timeout=60),
                timeout=http.ClientTimeout(
                    total=None, sock_connect=10.0, sock_read=self.read_seconds
                ),
                headers={"accept-encoding": "identity", **keyed},
                auto_decompress=True,
                cookie_jar=http.DummyCookieJar(),
            )
        return self._client


def _with_own_ids(message: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    identity = message.get("tool_call_id")
    if isinstance(identity, str) and identity in renamed:
        return {**message, "tool_call_id": renamed[identity]}
    calls = message.get("tool_calls")
    if not calls or not any(call.get("id") in renamed for call in calls):
        return message
    named = [{**call, "id": renamed.get(call.get("id"), call.get("id"))} for call in calls]
    return {**message, "tool_calls": named}
