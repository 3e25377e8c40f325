"""A server that stands in for SGLang: real model, real aborts, and the version of each id."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.trl.tiny import Tiny


@dataclass(eq=False)
class Server:
    """Samples token by token; a pause aborts what is under way, as SGLang does."""

    model: Any
    address: str = ""
    version: int = 0
    """Of the weights that it holds now."""
    sampled: dict[tuple[int, ...], list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Every id ever sampled, by the whole sequence that ends with it: version and log-prob."""
    aborted: int = 0
    hold: int = 0
    """So many of the next requests stop after their first id, until the next pause."""
    late: bool = False
    """Answers to aborted requests arrive after the weight update, and what continues them is held
    before anything else is: several late answers in a row make up one response."""
    mute_on: tuple[int, ...] = ()
    """Prompts with these ids in a row are never answered."""
    held: threading.Event = field(default_factory=threading.Event)
    """All of them are in the middle of a response now."""
    _cut: set[tuple[int, ...]] = field(default_factory=set)
    """What aborted requests had sampled, until it is continued."""
    _weights: threading.Lock = field(default_factory=threading.Lock)
    """Held while an id is sampled and while the weights change: no id is sampled in between."""
    _paused: asyncio.Event = field(default_factory=asyncio.Event)
    _resumed: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop | None = None

    async def generate(self, request: Any) -> Any:
        from aiohttp import web

        body = await request.json()
        ids, wanted = list(body["input_ids"]), body["sampling_params"]
        out: list[tuple[float, int, None]] = []
        if self._paused.is_set():
            return web.json_response(_answer(out, "abort", "Abort before prefill"))
        if self.mute_on and _holds(ids, self.mute_on):
            await asyncio.Event().wait()
        finish, continued = "length", tuple(ids) in self._cut
        self._cut.discard(tuple(ids))
        for number in range(wanted["max_new_tokens"]):
            if number == 1 and self.hold > 0 and (continued or not self._cut):
                self.hold -= 1
                if not self.hold:
                    self.held.set()
                await self._paused.wait()
            if self._paused.is_set():
                finish = "abort"
                self.aborted += 1
                break
            version, logprob, chosen = await asyncio.to_thread(
                self._next, ids, wanted["temperature"]
            )
            ids.append(chosen)
            out.append((logprob, chosen, None))
            self.sampled[tuple(ids)].append((version, logprob))
            if chosen in wanted["stop_token_ids"]:
                finish = "stop"
                break
        if finish == "abort" and self.late:
            self._cut.add(tuple(ids))
            await self._resumed.wait()
        return web.json_response(_answer(out, finish, ""))

    def _next(self, ids: list[int], temperature: float) -> tuple[int, float, int]:
        import torch

        with self._weights, torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([ids])).logits[0, -1].float()
            logprobs = torch.log_softmax(logits / max(temperature, 1e-5), -1)
            chosen = int(torch.multinomial(logprobs.exp(), 1))
            return self.version, float(logprobs[chosen]), chosen

    async def pause(self, request: Any) -> Any:
        return self._switch(on=True)

    async def go_on(self, request: Any) -> Any:
        return self._switch(on=False)

    def _switch(self, *, on: bool) -> Any:
        from aiohttp import web

        if on:
            self._resumed.clear()
            self._paused.set()
        else:
            self._paused.clear()
            self._resumed.set()
        return web.json_response({"ok": True})

    async def health(self, request: Any) -> Any:
        from aiohttp import web

        return web.json_response({})

    def update(self) -> None:
        """Change the weights, as a trainer would while the server is paused."""
        import torch

        generator = torch.Generator().manual_seed(self.version)
        with self._weights, torch.no_grad():
            for parameter in self.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(0.003 * noise)
            self.version += 1


def _holds(ids: list[int], part: tuple[int, ...]) -> bool:
    return any(tuple(ids[i : i + len(part)]) == part for i in range(len(ids)))


def _answer(out: list[tuple[float, int, None]], finish: str, message: str) -> dict[str, Any]:
    reason = {"type": finish, "message": message}
    return {"text": "", "meta_info": {"finish_reason": reason, "output_token_logprobs": out}}


@contextmanager
def serving(tiny: Tiny) -> Iterator[Server]:
    """Yield a server that holds the tiny model, on a port of its own."""
    server, ready = Server(tiny.model()), threading.Event()
    thread = threading.Thread(target=_run, args=(server, ready), daemon=True)
    thread.start()
    try:
        assert ready.wait(240)
        yield server
    finally:
        assert server._loop is not None
        server._loop.call_soon_threadsafe(server._loop.stop)
        thread.join(60)


def _run(server: Server, ready: threading.Event) -> None:
    from aiohttp import web

    loop = server._loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    app = web.Application()
    app.add_routes(
        [
            web.get("/health", server.health),
            web.post("/generate", server.generate),
            web.post("/pause_generation", server.pause),
            web.post("/continue_generation", server.go_on),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(site.start())
    server.address = "127.0.0.1:" + str(runner.addresses[0][1])
    ready.set()
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(runner.cleanup())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
