"""A token engine for small Llama models, which keeps each session's keys and values in a slot.

It samples for many sessions concurrently and requires only torch. If a turn's prompt starts with
the tokens in the slot, only the rest is computed. On a GPU, decoding runs as CUDA graphs.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from trajgym.rollout import ContextFull
from trajgym.rollout.engines import Generation, TokenEngine
from trajgym.trajectory import IntArray, Sampling, Segment

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_BURST = 4
"""Tokens that are sampled before they are copied to the host."""
_PADDED = 32


class Decoder:
    """The forward pass of a Llama model over slots, with its own copy of the weights."""

    def __init__(self, model: Any, slots: int, length: int) -> None:
        config = model.config
        self.device, self.dtype = model.device, torch.float32
        if self.device.type == "cuda":
            self.dtype = torch.bfloat16
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.layers, self.eps = config.num_hidden_layers, config.rms_norm_eps
        self.slots, self.length = slots, length
        self.weights: dict[str, torch.Tensor] = {}
        self.load(model)
        theta = float(_theta(config))
        steps = torch.arange(0, self.width, 2, device=self.device).float()
        angles = torch.arange(length + 1, device=self.device)[:, None] * theta ** (
            -steps / self.width
        )
        both = torch.cat([angles, angles], -1)
        self.cos, self.sin = both.cos(), both.sin()
        # The last 8 positions are for padding, and never read.
        shape = (self.layers, slots, length + 8, self.groups, self.width)
        self.keys = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.values = torch.zeros_like(self.keys)
        self.range = torch.arange(length, device=self.device)

    @torch.no_grad()
    def load(self, model: Any) -> None:
        """Copy a model's weights; after the first call, in place."""
        core = model.model
        given = {"embed": core.embed_tokens.weight, "norm": core.norm.weight}
        given["head"] = model.lm_head.weight
        for i, layer in enumerate(core.layers):
            part, mlp = layer.self_attn, layer.mlp
            given[f"{i}.qkv"] = torch.cat(
                [part.q_proj.weight, part.k_proj.weight, part.v_proj.weight]
            )
            given[f"{i}.o"] = part.o_proj.weight
            given[f"{i}.gate_up"] = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
            given[f"{i}.down"] = mlp.down_proj.weight
            given[f"{i}.before"] = layer.input_layernorm.weight
            given[f"{i}.between"] = layer.post_attention_layernorm.weight
        for name, value in given.items():
            if name in self.weights:
                self.weights[name].copy_(value)
            else:
                self.weights[name] = value.detach().to(self.dtype).clone()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.eps)

    def hidden(
        self, ids: torch.Tensor, at: torch.Tensor, slots: torch.Tensor | None, most: int
    ) -> torch.Tensor:
        """Write keys and values, and return the hidden states ``[B, T, D]``.

        Args:
            ids: int64 ``[B, T]``.
            at: int64 ``[B, T]``, the position of each id; ``length`` for padding.
            slots: int64 ``[B]``, or None for all slots in order.
            most: number of positions that attention covers.
        """
        w, (batch, steps) = self.weights, ids.shape
        repeat = self.heads // self.groups
        cos, sin = (t[at].to(self.dtype)[:, :, None] for t in (self.cos, self.sin))
        rows = torch.arange(self.slots, device=self.device) if slots is None else slots
        mask = (self.range[None, None, :most] <= at[:, :, None])[:, None]
        mask = mask.expand(batch, repeat, steps, most).reshape(batch, 1, repeat * steps, most)
        x = w["embed"][ids]
        for i in range(self.layers):
            qkv = functional.linear(self._norm(x, w[f"{i}.before"]), w[f"{i}.qkv"])
            qkv = qkv.view(batch, steps, self.heads + 2 * self.groups, self.width)
            turned = qkv[:, :, : self.heads + self.groups]
            half = torch.cat([-turned[..., self.width // 2 :], turned[..., : self.width // 2]], -1)
            turned = turned * cos + half * sin
            keys, values = self.keys[i], self.values[i]
            keys[rows[:, None], at] = turned[:, :, self.heads :]
            values[rows[:, None], at] = qkv[:, :, self.heads + self.groups :]
            k, v = (
                (t[:, :most] if slots is None else t[slots, :most]).transpose(1, 2)
                for t in (keys, values)
            )
            q = turned[:, :, : self.heads].reshape(batch, steps, self.groups, repeat, self.width)
            q = q.permute(0, 2, 3, 1, 4).reshape(batch, self.groups, repeat * steps, self.width)
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            y = y.view(batch, self.groups, repeat, steps, self.width).permute(0, 3, 1, 2, 4)
            x = x + functional.linear(y.reshape(batch, steps, -1), w[f"{i}.o"])
            gate, up = functional.linear(self._norm(x, w[f"{i}.between"]), w[f"{i}.gate_up"]).chunk(
                2, -1
            )
            x = x + functional.linear(functional.silu(gate) * up, w[f"{i}.down"])
        return self._norm(x, w["norm"])

    def sample(self, hidden: torch.Tensor, heat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Sample from states ``[B, D]`` at temperatures ``[B]``; return ids and log-probs."""
        logits = functional.linear(hidden, self.weights["head"]).float()
        logprobs = torch.log_softmax(logits / heat[:, None], -1)
        noise = torch.empty_like(logprobs).exponential_().clamp_min(1e-20).log()
        chosen = (logprobs - noise).argmax(-1)
        return chosen, logprobs.gather(1, chosen[:, None])[:, 0]


def _theta(config: Any) -> float:
    found = getattr(config, "rope_theta", None)
    return found or (getattr(config, "rope_parameters", None) or {})["rope_theta"]


@dataclass(eq=False)
class _Request:
    session: str
    prompt: list[int]
    most: int
    stops: Collection[int]
    heat: float
    answer: Future[Generation] = field(default_factory=Future)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(eq=False)
class _Slot:
    index: int
    session: str = ""
    held: list[int] = field(default_factory=list)
    request: _Request | None = None
    used: float = 0.0


class SlotEngine(TokenEngine):
    """An engine that samples for as many concurrent sessions as it has slots; others wait.

    Args:
        model: a model of transformers' Llama class.
        slots: number of sessions whose keys and values are kept.
        length: maximum number of tokens of a session.
        version: policy version of the weights.
    """

    logprob_mode = "processed"
    name = "slots"

    def __init__(
        self, model: Any, *, slots: int = 48, length: int = 2048, version: int = 0
    ) -> None:
        self.version = version
        self.decoder = Decoder(model, slots, length)
        self.sampled = self.prefilled = self.bursts = 0
        self.busy = 0.0
        device = self.decoder.device
        self._slots = [_Slot(i) for i in range(slots)]
        self._ids = torch.zeros(slots, dtype=torch.long, device=device)
        self._at = torch.full((slots,), length, dtype=torch.long, device=device)
        self._heat = torch.ones(slots, device=device)
        self._steps = torch.zeros(slots, dtype=torch.long, device=device)
        self._out = torch.zeros(_BURST, 2, slots, device=device)
        self._graphs: dict[int, Any] = {}
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting: list[_Request] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    async def generate(
        self,
        prompt_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """See :meth:`TokenEngine.generate`; a seed is not used.

        Raises:
            ContextFull: the prompt leaves no room in a slot.
        """
        prompt = [int(i) for i in prompt_ids]
        room = self.decoder.length - len(prompt) - _BURST
        if room < 1:
            raise ContextFull(f"{self.name}: {len(prompt)} tokens do not fit into a slot")
        heat = 1.0 if sampling.temperature is None else sampling.temperature
        most = min(max_tokens, room)
        request = _Request(session, prompt, most, stop_ids, heat)
        request.answer.set_running_or_notify_cancel()  # the thread answers cancelled callers, too
        self._asked.put(request)
        return await asyncio.wrap_future(request.answer)

    def load(self, model: Any, version: int) -> None:
        """Copy a model's weights. No request may be in progress."""
        self.decoder.load(model)
        for slot in self._slots:
            slot.session, slot.held = "", []
        self.version = version

    async def close(self) -> None:
        """Stop the thread."""
        self._asked.put(None)
        await asyncio.to_thread(self._thread.join)

    # The thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            with torch.inference_mode():
                while self._take_requests():
                    begun = time.monotonic()
                    self._prefill()
                    self._decode()
                    self.busy += time.monotonic() - begun
        except BaseException as error:  # every pending request fails with it
            for request in [*self._waiting, *(s.request for s in self._slots if s.request)]:
                request.answer.set_exception(error)
            raise

    def _take_requests(self) -> bool:
        idle = not self._waiting and not any(slot.request for slot in self._slots)
        while True:
            try:
                found = self._asked.get(block=idle)
            except queue.Empty:
                return True
            if found is None:
                return False
            self._waiting.append(found)
            idle = False

    def _place(self, request: _Request) -> _Slot | None:
        free = [slot for slot in self._slots if slot.request is None]
        if not free:
            return None
        own = [slot for slot in free if slot.session == request.session and slot.session]
        slot = own[0] if own else min(free, key=lambda one: one.used)
        if not own:
            slot.session, slot.held = request.session, []
        slot.request, slot.used = request, time.monotonic()
        same = 0
        for x, y in zip(slot.held, request.prompt[:-1], strict=False):
            if x != y:
                break
            same += 1
        del slot.held[same:]
        return slot

    def _prefill(self) -> None:
        placed: list[_Slot] = []
        while self._waiting and (slot := self._place(self._waiting[0])):
            self._waiting.pop(0)
            placed.append(slot)
        if not placed:
            return
        decoder = self.decoder
        device, length = decoder.device, decoder.length
        new = [slot.request.prompt[len(slot.held) :] for slot in placed if slot.request]
        steps = -(-max(map(len, new)) // _PADDED) * _PADDED
        ids = torch.zeros(len(new), steps, dtype=torch.long)
        at = torch.full((len(new), steps), length, dtype=torch.long)
        for i, (slot, part) in enumerate(zip(placed, new, strict=True)):
            first = len(slot.held)
            ids[i, : len(part)] = torch.tensor(part)
            at[i, : len(part)] = torch.arange(first, first + len(part))
            self.prefilled += len(part)
        most = min(length, -(-(int(at[at < length].max()) + 1) // 256) * 256)
        rows = torch.tensor([slot.index for slot in placed], device=device)
        states = decoder.hidden(ids.to(device), at.to(device), rows, most)
        last = torch.tensor([len(part) - 1 for part in new], device=device)
        heat = torch.tensor([slot.request.heat for slot in placed if slot.request], device=device)
        chosen, logprobs = decoder.sample(states[torch.arange(len(new), device=device), last], heat)
        self._ids[rows], self._heat[rows] = chosen, heat
        for slot, one, value in zip(placed, chosen.tolist(), logprobs.tolist(), strict=True):
            assert slot.request is not None
            slot.held = list(slot.request.prompt)
            self._told(slot, one, value)
        active = [slot.request is not None for slot in placed]
        ends = [len(slot.held) if on else length for slot, on in zip(placed, active, strict=True)]
        self._at[rows] = torch.tensor(ends, device=device)
        self._steps[rows] = torch.tensor([int(on) for on in active], device=device)

    def _told(self, slot: _Slot, chosen: int, logprob: float) -> None:
        """Append a sampled id, and complete the request if it was the last one."""
        request = slot.request
        assert request is not None
        request.ids.append(chosen)
        request.logprobs.append(logprob)
        self.sampled += 1
        stop = chosen in request.stops
        if stop or len(request.ids) >= request.most:
            slot.held += request.ids[:-1]
            slot.request = None
            n = len(request.ids)
            request.answer.set_result(
                Generation(
                    request.ids,
                    request.logprobs,
                    (Segment(n, self.version, self.version),),
                    "stop" if stop else "length",
                )
            )

    def _burst(self, most: int) -> None:
        for i in range(_BURST):
            states = self.decoder.hidden(self._ids[:, None], self._at[:, None], None, most)
            chosen, logprobs = self.decoder.sample(states[:, 0], self._heat)
            self._ids.copy_(chosen)
            self._at.add_(self._steps).clamp_(max=self.decoder.length)
            self._out[i, 0], self._out[i, 1] = chosen.float(), logprobs

    def _decode(self) -> None:
        active = [slot for slot in self._slots if slot.request is not None]
        if not active:
            return
        longest = max(len(s.held) + len(s.request.ids) for s in active if s.request) + _BURST
        most = min(self.decoder.length, -(-longest // 512) * 512)
        self._replay(most)
        self.bursts += 1
        found = self._out.cpu()
        ids, logprobs = found[:, 0].long().tolist(), found[:, 1].tolist()
        for i in range(_BURST):
            for slot in active:
                if slot.request is not None:
                    self._told(slot, ids[i][slot.index], logprobs[i][slot.index])
        ended = [slot.index for slot in active if slot.request is None]
        if ended:
            rows = torch.tensor(ended, device=self.decoder.device)
            self._at[rows], self._steps[rows] = self.decoder.length, 0

    def _replay(self, most: int) -> None:
        if self.decoder.device.type != "cuda":
            self._burst(most)
            return
        if most not in self._graphs:
            kept = [t.clone() for t in (self._ids, self._at)]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._burst(most)  # warm-up; its results are overwritten
            torch.cuda.current_stream().wait_stream(stream)
            self._ids.copy_(kept[0])
            self._at.copy_(kept[1])
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._burst(most)
            self._graphs[most] = graph
            self._ids.copy_(kept[0])
            self._at.copy_(kept[1])
        self._graphs[most].replay()
