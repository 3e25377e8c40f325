"""A server that stands in for vLLM: a real model, real weight updates, real aborts."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.trl.tiny import Tiny


@dataclass
class Answered:
    """The truth about one response, for comparison with what was recorded."""

    prompt: list[int]
    seed: int
    ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Server:
    """Samples token by token; between two tokens anything can happen."""

    model: Any
    version: int = 0
    url: str = ""
    answered: list[Answered] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    logprobs_mode: str = "processed_logprobs"
    update_at: dict[int, int] = field(default_factory=dict)
    """Request number -> after how many of its tokens the version goes up."""
    abort_at: dict[int, int] = field(default_factory=dict)
    """Request number -> after how many of its tokens it is aborted."""
    break_at: dict[int, int] = field(default_factory=dict)
    """Request number -> after how many of its tokens the connection breaks."""
    error_at: dict[int, int] = field(default_factory=dict)
    """Request number -> after how many of its tokens the stream reports an error."""
    pause_at: dict[int, int] = field(default_factory=dict)
    """Request number -> before which of its tokens the server pauses, until resume."""
    refuse: int = 0
    """Requests that get a 503 from now on."""
    hang: bool = False
    tokens: int = 0
    running: int = 0
    connections: int = 0
    shift: float = 0.0
    """Added to every log-prob: a server that reports wrong ones."""
    _going: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop | None = None
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _readers: dict[Any, asyncio.StreamReader] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                path = lines[0].split()[1]
                fields = dict(x.lower().split(": ", 1) for x in lines[1:] if ": " in x)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                self._readers[writer] = reader
                await self._answer(path, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._readers.pop(writer, None)
            writer.close()
            self._tasks.discard(task)

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            _write(writer, {"data": [{"id": "tiny", "max_model_len": 2048}]})
        elif path.startswith("/server_info"):
            config = {"logprobs_mode": self.logprobs_mode}
            _write(writer, {"vllm_config": {"model_config": config}})
        elif self.refuse:
            self.refuse -= 1
            _write(writer, {"error": "no"}, status=503)
        else:
            await self._complete(json.loads(body), writer)

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number = len(self.bodies)
        self.bodies.append(body)
        self.running += 1
        try:
            if self.hang:
                await self._readers[writer].read()  # until the client goes away
                raise ConnectionResetError
            pieces = self._sample(number, body, self._readers[writer])
            if body["stream"]:
                await _stream(writer, pieces)
                return
            ids: list[int] = []
            logprobs: list[float] = []
            finish = None
            async for chosen, logprob, last in pieces:
                ids += chosen
                logprobs += logprob
                finish = last
            _write(writer, _choice(ids, logprobs, finish))
        finally:
            self.running -= 1

    async def _sample(self, number: int, body: dict[str, Any], client: asyncio.StreamReader) -> Any:
        import torch

        truth = Answered(list(body["prompt"]), body["seed"])
        self.answered.append(truth)
        ids = list(body["prompt"])
        chance = torch.Generator().manual_seed(body["seed"])
        for count in range(body["max_tokens"]):
            if self.pause_at.get(number) == count:
                self._going.clear()
            await self._going.wait()
            await asyncio.sleep(0)
            if client.at_eof():
                raise ConnectionResetError
            if self.update_at.get(number) == count:
                self.version += 1
            if self.break_at.get(number) == count:
                raise ConnectionResetError
            if self.error_at.get(number) == count:
                yield [], [], "engine died"
                return
            if self.abort_at.get(number) == count:
                yield [], [], "abort"
                return
            with torch.inference_mode():
                logits = self.model(input_ids=torch.tensor([ids])).logits[0, -1].float()
            logprobs = torch.log_softmax(logits / body["temperature"], -1)
            chosen = int(torch.multinomial(logprobs.exp(), 1, generator=chance))
            ids.append(chosen)
            truth.ids.append(chosen)
            truth.versions.append(self.version)
            self.tokens += 1
            ended = chosen in body["stop_token_ids"]
            last = "stop" if ended else "length" if count + 1 == body["max_tokens"] else None
            yield [chosen], [float(logprobs[chosen]) + self.shift], last
            if ended:
                return

    # What a trainer does to it ---------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether requests are frozen."""
        return not self._going.is_set()

    def pause(self) -> None:
        """Freeze requests under way; they go on after resume."""
        self._call(self._going.clear)

    def resume(self) -> None:
        """Undo pause."""
        self._call(self._going.set)

    def load(self, weights: Any) -> None:
        """Take over weights and count them as a version."""

        def take() -> None:
            import torch

            own = dict(self.model.named_parameters())
            with torch.no_grad():
                for name, value in weights:
                    own[name].copy_(value)
            self.version += 1

        self._call(take)

    def _call(self, function: Any) -> None:
        assert self._loop is not None
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(240)


class Transfer:
    """TRL's weight transfer, into the server of these tests."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.sent = 0

    def init_weight_transfer(self) -> None: ...

    def pause(self) -> None:
        self.server.pause()

    def send_weights(self, iterator: Any) -> None:
        self.server.load([(name, value.clone()) for name, value in iterator])
        self.sent += 1

    def resume(self) -> None:
        self.server.resume()

    def destroy(self) -> None: ...


def _choice(ids: list[int], logprobs: list[float], finish: str | None) -> dict[str, Any]:
    one = {
        "index": 0,
        "text": "",
        "token_ids": ids,
        "logprobs": {"token_logprobs": logprobs},
        "finish_reason": finish,
    }
    return {"id": "c", "object": "text_completion", "model": "tiny", "choices": [one]}


async def _stream(writer: asyncio.StreamWriter, pieces: Any) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
    writer.write(b"transfer-encoding: chunked\r\n\r\n")
    async for ids, logprobs, finish in pieces:
        answer = _choice(ids, logprobs, finish)
        if finish == "engine died":
            answer = {"error": {"message": finish, "code": 500}}
        _chunk(writer, f"data: {json.dumps(answer)}\n\n".encode())
        await writer.drain()
    _chunk(writer, b"data: [DONE]\n\n")
    _chunk(writer, b"")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _write(writer: asyncio.StreamWriter, body: Any, status: int = 200) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    writer.write(f"{head}\r\n\r\n".encode() + data)


@contextmanager
def serving(tiny: Tiny) -> Iterator[Server]:
    """Serve the tiny model from a thread while the block runs."""
    made = Server(tiny.model())
    ready = threading.Event()
    end = asyncio.Event()  # no timer: a test's clock may go back after it was set forward

    async def main() -> None:
        made._loop = asyncio.get_running_loop()
        made._going.set()
        server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await end.wait()
        server.close()
        for task in list(made._tasks):
            task.cancel()
        await asyncio.gather(*made._tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(240)
    try:
        yield made
    finally:
        made._call(end.set)
        thread.join(240)
        assert not thread.is_alive()
