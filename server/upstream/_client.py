"""The HTTP client for an engine: aiohttp with one connection pool."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from trajgym.envs.faults import describe
from trajgym.rollout._ids import as_list
from trajgym.rollout._policy import PolicyRejected
from trajgym.server._errors import Refused, UpstreamError
from trajgym.server._json import dumps, loads
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.rollout.rendering import Renderer
    from trajgym.server.dialects import ClientCall
    from trajgym.trajectory import IntArray, Message

__all__ = ["EngineKind", "Upstream"]

_MOST = 4096
"""Most ids to sample if neither the client nor the engine sets a limit."""

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
        tokens: render chats with the renderer and send ids, so that turns continue exactly (token
            mode); otherwise the engine renders each prompt anew.
        logprob_mode: what the engine's log-probs refer to (vLLM's default is ``raw``).
        connect_seconds: how long to retry connecting.
        read_seconds: longest silence in an answer.
        synthetic: the ids come from a fake engine.

    Raises:
        InvalidInput: token mode without a renderer, or with a hosted endpoint.
    """

    base_url: str
    kind: EngineKind = "vllm"
    api_key: str | None = None
    model: str | None = None
    renderer: Renderer | None = None
    tokens: bool = False
    logprob_mode: Literal["processed", "raw", "unknown"] = "unknown"
    connect_seconds: float = 60.0
    read_seconds: float = 600.0
    synthetic: bool = False
    stop_ids: set[int] = field(default_factory=set)
    """Token ids that have ended an answer so far."""
    _client: Any = None
    _aiohttp: Any = None
    _context: int | None = None
    """Size of the engine's context; 0 if it does not tell."""

    def __post_init__(self) -> None:
        if self.tokens and (self.renderer is None or self.kind == "hosted"):
            raise InvalidInput(
                "token mode needs a renderer, and an engine that takes ids (vllm or sglang)"
            )
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
        if self.kind == "sglang" and call.stream and call.path != "/v1/completions":
            body.pop("return_token_ids", None)  # refused in streams
            body["return_input_ids_in_sglext"] = body["return_output_ids_in_sglext"] = True
        else:
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

    async def ask(self, path: str, body: dict[str, Any], session: str) -> tuple[Any, bytes]:
        """Return a response and its whole body, whose end frees the connection."""
        response = await self.post(path, body, session)
        return response, await response.read()

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
            raise UpstreamError(f"{self.base_url}{path}: {describe(error)}") from error

    async def models(self) -> tuple[int, bytes]:
        """Return status and body of ``/v1/models``.

        Raises:
            UpstreamError: the engine can't be reached.
        """
        try:
            async with self._opened().get(self.base_url + "/v1/models") as response:
                return response.status, await response.read()
        except self.errors as error:
            raise UpstreamError(f"{self.base_url}/v1/models: {describe(error)}") from error

    def prompt_of(
        self, messages: Sequence[Message], tools: Sequence[Any], prefix: IntArray | None, held: int
    ) -> list[int]:
        """Return the ids of a prompt in token mode; blocks while it renders.

        Args:
            messages: in the engine's form.
            tools: schemas in chat form.
            prefix: int32 ``[S]``, prompt and response of the turn that it continues; None if there
                is none.
            held: how many messages the prefix covers.

        Returns:
            The prefix and what follows it; a prompt that was rendered anew if the template rewrites
            what came before.

        Raises:
            Refused: 400 if the template refuses the messages.
        """
        renderer = self.renderer
        assert renderer is not None
        plain = [_plain(message) for message in messages]
        try:
            if prefix is not None:
                added = renderer.extension(prefix, plain, tools, held=held)
                if added is not None:
                    return [*prefix.tolist(), *as_list(added)]
            return renderer.render(plain, tools)
        except PolicyRejected as error:
            raise Refused(400, f"the chat template refuses the messages: {error}") from error

    async def room(self, call: ClientCall, prompt: int) -> int:
        """Return how many ids may be sampled after a prompt, which engines don't decide for ids.

        Raises:
            UpstreamError: the engine can't be reached.
        """
        asked = call.body.get("max_completion_tokens") or call.body.get("max_tokens")
        if isinstance(asked, int) and asked > 0:
            return asked
        if self._context is None:
            status, data = await self.models()
            served = loads(data).get("data") if status == 200 else None
            self._context = int((served or [{}])[0].get("max_model_len") or 0)
        return max(1, self._context - prompt) if self._context else _MOST

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


def _plain(message: Message) -> Message:
    """Return a client's message as renderers take it: text for text blocks, known roles."""
    role = "system" if message.get("role") == "developer" else message["role"]
    content = message.get("content")
    if content is None:
        content = ""
    elif isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        content = "".join(part["text"] for part in content)
    kept = {k: v for k, v in message.items() if v is not None}
    return {**kept, "role": role, "content": content}


def _with_own_ids(message: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    identity = message.get("tool_call_id")
    if isinstance(identity, str) and identity in renamed:
        return {**message, "tool_call_id": renamed[identity]}
    calls = message.get("tool_calls")
    if not calls or not any(call.get("id") in renamed for call in calls):
        return message
    named = [{**call, "id": renamed.get(call.get("id"), call.get("id"))} for call in calls]
    return {**message, "tool_calls": named}
