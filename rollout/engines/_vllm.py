"""A token-exact engine over vLLM's completion endpoint."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from trajgym.rollout._context import ContextFull, context_full
from trajgym.rollout._ids import as_list
from trajgym.rollout._policy import PolicyGarbage, PolicyRejected, PolicyUnavailable
from trajgym.rollout._retry import Limiter, Retry, Transient, of_status, shared_limiter
from trajgym.rollout.engines._base import Generation, TokenEngine
from trajgym.rollout.engines._pieces import Piece, Pieces, ended
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from trajgym.trajectory import IntArray, Sampling

__all__ = ["VLLMEngine", "VersionSource"]

VersionSource: TypeAlias = Callable[[], "int | tuple[int, int]"]
"""Returns a server's current policy version, or (oldest, newest) during an update."""

_LINE_BYTES = 1 << 24
"""Maximum length of a line of a stream; the first line repeats the prompt's ids."""


class _TryAgain(Exception):
    """A try that failed for a reason that may be temporary."""

    def __init__(self, text: str, transient: Transient | None = None) -> None:
        super().__init__(text)
        self.transient = transient or Transient(text)


class VLLMEngine(TokenEngine):
    """Samples from ``vllm serve`` through ``/v1/completions``, token-exact.

    Start the server with ``--logprobs-mode processed_logprobs``: by default vLLM reports log-probs
    before temperature. All parameters of the distribution are sent with each request, so that the
    model's own generation settings have no effect.

    A response that the server aborts, or whose stream is interrupted, is continued from the ids
    received so far; other temporary errors are retried. ``versions`` is called before and after
    each request, and tokens get the range of possible versions. With ``stream`` it is called for
    every piece, so an update during a response is recorded as a boundary, with a range for one
    piece at most.

    Args:
        base_url: URL of the server, with or without ``/v1``.
        model: the model's name at the server.
        api_key: sent if the server requires one.
        versions: returns the server's policy version; without it, the version is 0.
        stream: receive token by token; costs time on both sides.
        logprob_mode: the mode that the server was started with; :meth:`check` compares it.
        timeout: seconds per request.
        retry: how often, and for how long, a request is tried.
        limiter: limits concurrent requests; by default shared by all engines of this server and
            model.
        session_header: header for the session's id, for routers with sticky sessions.
        context_tokens: size of the context window; None uses the size that the server reports.
        name: recorded with each turn; the model's name if None.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        versions: VersionSource | None = None,
        stream: bool = False,
        logprob_mode: Literal["processed", "raw", "unknown"] = "processed",
        timeout: float = 600.0,
        retry: Retry | None = None,
        limiter: Limiter | None = None,
        session_header: str = "x-session-id",
        context_tokens: int | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or model
        self.logprob_mode = logprob_mode
        self._base = base_url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._versions = versions
        self._stream = stream
        self._timeout = timeout
        self._retry = retry or Retry()
        self._limiter = limiter or shared_limiter(f"{self._base} {model}")
        self._session_header = session_header
        self._context_tokens = context_tokens
        self._context_asked = context_tokens is not None
        self._client: Any = None
        try:
            import aiohttp
        except ImportError as error:
            raise MissingExtra("aiohttp", "vllm") from error
        self._http: Any = aiohttp

    async def generate(
        self,
        prompt_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """See :meth:`TokenEngine.generate`; seconds before the successful try count as paused.

        Raises:
            ContextFull: the prompt does not fit into the context.
            PolicyUnavailable: no response, timeouts, 429 or 5xx, after all retries.
            PolicyRejected: any other 4xx.
            PolicyGarbage: the response has no ids and log-probs, or inconsistent ones.
        """
        prompt = as_list(prompt_ids)
        max_tokens = min(max_tokens, await self._room(prompt, max_tokens))
        body = self._body(sampling, stop_ids)
        headers = {self._session_header: session} if session else {}
        run, paused = Pieces(), 0.0
        while True:
            body["prompt"] = prompt + run.ids
            body["max_tokens"] = max_tokens - len(run.ids)
            if sampling.seed is not None:  # a continuation must not draw the same numbers again
                body["seed"] = (sampling.seed + len(run.ids)) % 2**63
            finish, lost = await self._persist(body, headers, run)
            paused += lost
            if finish != "abort" or len(run.ids) >= max_tokens:
                break
        return Generation(run.ids, run.logprobs, tuple(run.segments), finish, paused)

    async def _room(self, prompt: list[int], most: int) -> int:
        """Return how many tokens fit after the prompt; ``most`` if the window is unknown."""
        if not self._context_asked:
            try:
                await self._served()
            except PolicyUnavailable:
                return most  # sampling will wait for the server, and say what is wrong
        if self._context_tokens is None:
            return most
        room = self._context_tokens - len(prompt)
        if room < 1:
            raise ContextFull(
                f"{self._base}: the prompt has {len(prompt)} tokens, the context "
                f"{self._context_tokens}",
            )
        return room

    async def _served(self) -> list[Any]:
        """Return the names that the server serves, and record the model's context window."""
        served = await self._get("/v1/models") or {"data": [{"id": self._model}]}
        models = {one.get("id"): one for one in served.get("data", [])}
        if self._context_tokens is None:
            found = models.get(self._model, {}).get("max_model_len")
            self._context_tokens = found if isinstance(found, int) and found > 0 else None
        self._context_asked = True
        return list(models)

    async def check(self) -> None:
        """Check the model name and the log-prob mode against the server.

        Raises:
            InvalidInput: it does not serve the model, or reports another log-prob mode. Servers
                without ``VLLM_SERVER_DEV_MODE=1`` do not report the mode; it is not checked then.
            PolicyUnavailable: it does not respond.
        """
        names = await self._served()
        if self._model not in names:
            raise InvalidInput(f"{self._base} serves {names}, not {self._model!r}")
        info = await self._get("/server_info?config_format=json")
        config = ((info or {}).get("vllm_config") or {}).get("model_config") or {}
        mode = str(config.get("logprobs_mode", "")) if isinstance(config, dict) else ""
        found = mode.rpartition(".")[2].lower().partition("_")[0]
        if found in {"raw", "processed"} and found != self.logprob_mode:
            raise InvalidInput(
                f"{self._base} reports {found} log-probs, not {self.logprob_mode}: start it with "
                "--logprobs-mode processed_logprobs",
            )

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # One request --------------------------------------------------------------------------

    def _body(self, sampling: Sampling, stop_ids: Collection[int]) -> dict[str, Any]:
        return {
            "model": self._model,
            "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "top_k": 0 if sampling.top_k is None else sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "n": 1,
            "stop_token_ids": sorted(stop_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "stream": self._stream,
        }

    async def _persist(
        self, body: dict[str, Any], headers: dict[str, str], run: Pieces
    ) -> tuple[Literal["stop", "length", "abort"], float]:
        """Request until ids were sampled; return why it ended and the seconds lost before."""

        async def once() -> Literal["stop", "length", "abort"]:
            return await self._once(body, headers, run)

        try:
            return await self._retry.run(once, transient=_transient, limiter=self._limiter)
        except _TryAgain as error:
            raise PolicyUnavailable(f"{self._base}: {error} (is the server up?)") from error

    async def _once(
        self, body: dict[str, Any], headers: dict[str, str], run: Pieces
    ) -> Literal["stop", "length", "abort"]:
        before = len(run.ids)
        finish: str | None = None
        try:
            async with asyncio.timeout(self._timeout):
                async for piece in self._pieces(body, headers, run):
                    finish = piece.finish or finish
        except (self._http.ClientError, TimeoutError, OSError, _TryAgain) as error:
            if len(run.ids) > before:
                return "abort"  # what came is kept, and the rest asked for
            if isinstance(error, _TryAgain):
                raise
            text = f"{type(error).__name__}: {error}"
            refused = isinstance(error, self._http.ClientConnectorError)
            raise _TryAgain(text, Transient(text, unreachable=refused)) from error
        except ValueError as error:
            raise PolicyGarbage(f"{self._base}: the answer is not JSON: {error}") from error
        reason = ended(finish)
        if reason == "abort" and len(run.ids) == before:
            raise _TryAgain("the server aborted the request before its first token")
        return reason

    async def _pieces(
        self, body: dict[str, Any], headers: dict[str, str], run: Pieces
    ) -> AsyncIterator[Piece]:
        low, _ = self._range()
        url = f"{self._base}/v1/completions"
        async with self._opened().post(url, json=body, headers=headers) as response:
            if response.status != 200:
                raise self._refused(response, await response.text())
            async for answer in _answers(response, stream=self._stream):
                piece = self._read(answer, body["prompt"])
                following, high = self._range()
                run.add(piece, low, high)
                low = following
                yield piece

    def _read(self, answer: Any, prompt: list[int]) -> Piece:
        try:
            if "error" in answer:  # in the middle of a stream, where no status can say it
                raise _TryAgain(f"the server reports {str(answer['error'])[:300]}")
            if not answer["choices"]:
                return Piece([], [], None)
            choice = answer["choices"][0]
            ids = [int(i) for i in choice.get("token_ids") or ()]
            values = (choice.get("logprobs") or {}).get("token_logprobs") or []
            logprobs = [float(value) for value in values]
            shown = choice.get("prompt_token_ids")
            finish = choice.get("finish_reason")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PolicyGarbage(
                f"{self._base}: can't read {str(answer)[:200]}: {error!r}"
            ) from error
        if len(ids) != len(logprobs) or not all(map(math.isfinite, logprobs)):
            raise PolicyGarbage(
                f"{self._base}: {len(ids)} token ids and log-probs {logprobs[:4]}...: the server "
                "must understand return_token_ids and logprobs (vLLM 0.22 or newer)",
            )
        if not ids and choice.get("text"):
            raise PolicyGarbage(f"{self._base}: text without token ids: is it vLLM 0.22 or newer?")
        if shown is not None and shown != prompt:
            raise PolicyGarbage(f"{self._base}: the server sampled after a different prompt")
        return Piece(ids, logprobs, finish)

    def _range(self) -> tuple[int, int]:
        found = 0 if self._versions is None else self._versions()
        return (found, found) if isinstance(found, int) else found

    def _opened(self) -> Any:
        if self._client is None:
            http = self._http
            self._client = http.ClientSession(
                connector=http.TCPConnector(limit=0),
                timeout=http.ClientTimeout(total=None),
                headers=self._headers,
                read_bufsize=_LINE_BYTES,
            )
        return self._client

    def _refused(self, response: Any, text: str) -> Exception:
        said = f"status {response.status}: {text[:300]}"
        if full := context_full(text, where=self._base):
            return full
        if transient := of_status(response.status, response.headers, text):
            return _TryAgain(said, transient)
        return PolicyRejected(f"{self._base}: {said}")

    async def _get(self, path: str) -> Any:
        try:
            async with asyncio.timeout(30), self._opened().get(self._base + path) as response:
                return await response.json() if response.status == 200 else None
        except (self._http.ClientError, TimeoutError, OSError, ValueError) as error:
            raise PolicyUnavailable(f"{self._base}{path}: {error!r}; is the server up?") from error


def _transient(error: Exception) -> Transient | None:
    return error.transient if isinstance(error, _TryAgain) else None


async def _answers(response: Any, *, stream: bool) -> AsyncIterator[Any]:
    if not stream:
        yield await response.json(content_type=None)
        return
    async for line in response.content:
        text = line.strip()
        if text.startswith(b"data:") and (data := text[5:].strip()) != b"[DONE]":
            yield json.loads(data)
