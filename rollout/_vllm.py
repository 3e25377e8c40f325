"""vLLM's completion endpoint: token ids in, token ids and log-probs out."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from trajgym.rollout._engine import Generation, TokenEngine
from trajgym.rollout._ids import as_list
from trajgym.rollout._policy import PolicyGarbage, PolicyRejected, PolicyUnavailable
from trajgym.rollout._retry import Retry
from trajgym.trajectory import InvalidInput, MissingExtra, Segment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from trajgym.trajectory import IntArray, Sampling

__all__ = ["VLLMEngine", "VersionSource"]

VersionSource: TypeAlias = Callable[[], "int | tuple[int, int]"]
"""Returns the policy version that a server holds now; oldest and newest while one goes over."""

_LINE_BYTES = 1 << 24
"""Longest line of a stream: its first one repeats the prompt's ids."""
_FINISH: Mapping[str | None, Literal["stop", "length", "abort"]] = {
    "length": "length",
    "abort": "abort",
    "error": "abort",
    None: "abort",
}


class _TryAgain(Exception):
    """A try that failed in a way that may go away."""

    def __init__(self, text: str, response: Any = None) -> None:
        super().__init__(text)
        self.response = response


class _Piece(NamedTuple):
    """A part of a response as the server sent it."""

    ids: list[int]
    logprobs: list[float]
    finish: str | None


class _Run:
    """What a call has sampled so far."""

    __slots__ = ("ids", "logprobs", "segments")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.segments: list[Segment] = []

    def add(self, piece: _Piece, low: int, high: int) -> None:
        size = len(piece.ids)
        if not size:
            return
        self.ids += piece.ids
        self.logprobs += piece.logprobs
        last = self.segments[-1] if self.segments else None
        if last is not None and low == high == last.version_low == last.version_high:
            self.segments[-1] = last._replace(length=last.length + size)
        else:
            self.segments.append(Segment(size, low, high))


class VLLMEngine(TokenEngine):
    """Samples from ``vllm serve`` through ``/v1/completions``, token-exact.

    Start the server with ``--logprobs-mode processed_logprobs``: by default vLLM reports log-probs
    before temperature. Everything that shapes the distribution is sent with each request, so the
    model's own generation settings don't change it unseen.

    A response that the server aborts, or a stream that breaks, is continued from the ids it has;
    other trouble is tried again. Versions: the source is asked before and after each request, and
    tokens carry the range that is possible. With ``stream`` it is asked at every piece, so an
    update inside a response shows as a boundary, at most one piece of it as a range.

    Args:
        base_url: of the server, with or without ``/v1``.
        model: name under which the server knows it.
        api_key: if the server wants one.
        versions: which policy version the server holds; 0 without it.
        stream: receive token by token; costs time on both sides.
        logprob_mode: what the server was started with; :meth:`check` compares.
        timeout: seconds of one request.
        retry: how often and how long.
        session_header: header that carries the session's id, for routers with sticky sessions.
        name: recorded with each turn; the model's if None.
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
        session_header: str = "x-session-id",
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
        self._session_header = session_header
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
        """See :meth:`TokenEngine.generate`; seconds before the try that worked count as paused.

        Raises:
            PolicyUnavailable: no answer, time-outs, 429 or 5xx, after all retries.
            PolicyRejected: any other 4xx.
            PolicyGarbage: an answer without ids and log-probs that fit together.
        """
        prompt = as_list(prompt_ids)
        body = self._body(sampling, stop_ids)
        headers = {self._session_header: session} if session else {}
        run, paused = _Run(), 0.0
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

    async def check(self) -> None:
        """Compare with what the server says of itself.

        Raises:
            InvalidInput: it does not serve the model, or says that its log-probs mean something
                else. Servers that don't tell (no ``VLLM_SERVER_DEV_MODE=1``) are believed.
            PolicyUnavailable: it does not answer.
        """
        served = await self._get("/v1/models") or {"data": [{"id": self._model}]}
        names = [one.get("id") for one in served.get("data", [])]
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
        self, body: dict[str, Any], headers: dict[str, str], run: _Run
    ) -> tuple[Literal["stop", "length", "abort"], float]:
        """Ask until something was sampled; return why it ended and the seconds lost before."""
        begun, lost = time.monotonic(), 0.0
        finish: Literal["stop", "length", "abort"] = "abort"
        try:
            async for attempt in self._retry.retrying(_worth_retrying):
                with attempt:
                    lost = time.monotonic() - begun
                    finish = await self._once(body, headers, run)
        except _TryAgain as error:
            raise PolicyUnavailable(
                f"{self._base}: {error} (tried {self._retry.attempts} times; is the server up?)",
            ) from error
        return finish, lost

    async def _once(
        self, body: dict[str, Any], headers: dict[str, str], run: _Run
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
            raise _TryAgain(f"{type(error).__name__}: {error}") from error
        except ValueError as error:
            raise PolicyGarbage(f"{self._base}: the answer is not JSON: {error}") from error
        reason = _FINISH.get(finish, "stop")
        if reason == "abort" and len(run.ids) == before:
            raise _TryAgain("the server aborted the request before its first token")
        return reason

    async def _pieces(
        self, body: dict[str, Any], headers: dict[str, str], run: _Run
    ) -> AsyncIterator[_Piece]:
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

    def _read(self, answer: Any, prompt: list[int]) -> _Piece:
        try:
            if "error" in answer:  # in the middle of a stream, where no status can say it
                raise _TryAgain(f"the server reports {str(answer['error'])[:300]}")
            if not answer["choices"]:
                return _Piece([], [], None)
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
            raise PolicyGarbage(f"{self._base}: the server sampled after another prompt than given")
        return _Piece(ids, logprobs, finish)

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
        if response.status in {408, 429} or response.status >= 500:
            return _TryAgain(said, response)
        return PolicyRejected(f"{self._base}: {said}")

    async def _get(self, path: str) -> Any:
        try:
            async with asyncio.timeout(30), self._opened().get(self._base + path) as response:
                return await response.json() if response.status == 200 else None
        except (self._http.ClientError, TimeoutError, OSError, ValueError) as error:
            raise PolicyUnavailable(f"{self._base}{path}: {error!r}; is the server up?") from error


def _worth_retrying(error: BaseException) -> bool:
    return isinstance(error, _TryAgain)


async def _answers(response: Any, *, stream: bool) -> AsyncIterator[Any]:
    if not stream:
        yield await response.json(content_type=None)
        return
    async for line in response.content:
        text = line.strip()
        if text.startswith(b"data:") and (data := text[5:].strip()) != b"[DONE]":
            yield json.loads(data)
