"""A token-exact engine over vLLM in this process, without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import math
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from trajgym.rollout._context import ContextFull, context_full
from trajgym.rollout._ids import as_list
from trajgym.rollout._policy import (
    PolicyError,
    PolicyGarbage,
    PolicyRejected,
    PolicyUnavailable,
)
from trajgym.rollout.engines._base import Generation, TokenEngine
from trajgym.rollout.engines._checkpoints import model_folder, tensor_names
from trajgym.rollout.engines._pieces import Piece, Pieces, ended
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

    from trajgym.trajectory import IntArray, Sampling

__all__ = ["LocalVLLMEngine"]

_LOGPROB_MODES: Mapping[str, Literal["processed", "raw"]] = {
    "processed_logprobs": "processed",
    "raw_logprobs": "raw",
}
_DRAIN_SECONDS = 0.05
"""How long to wait for aborted requests before those that began meanwhile are aborted too."""
_RECOVER_SECONDS = 60.0
"""For resuming after a failed update, and for shutting down."""
_EMPTY_ABORTS = 8
"""Aborts in a row without a token, and without an update, after which a call fails."""
_SHARD_BYTES = 1 << 31


class _Call(Pieces):
    """A call that is being sampled, with the time for which updates held it up."""

    __slots__ = ("paused",)

    def __init__(self) -> None:
        super().__init__()
        self.paused = 0.0


class LocalVLLMEngine(TokenEngine):
    """Samples with a vLLM engine that belongs to this process: no server, no HTTP, no text.

    vLLM runs the model in processes of its own, and is spoken to through its ``AsyncLLM``: prompts
    and responses travel as ids. The engine starts with :meth:`start` or with the first call, and
    belongs to the event loop of that call. vLLM starts its processes anew (``spawn``), so a script
    needs ``if __name__ == "__main__":``.

    Weights are replaced by :meth:`load_weights`, :meth:`set_weights`, or by own code within
    :meth:`updating`. With ``updates="abort"``, an update ends the requests that are being sampled,
    and they are continued from their ids with the new weights: each token has one version. With
    ``"keep"``, vLLM freezes and continues them itself, and responses are received token by token,
    which costs time: tokens that were received on both sides of an update have a range, which is
    one token unless the event loop was busy. The caches are emptied in both cases, since their
    keys and values come from the old weights.

    Args:
        model: a folder or the name of a model.
        version: policy version of the weights.
        updates: what a weight update does with requests that are being sampled.
        timeout: seconds per request, and for each step of an update.
        name: recorded with each turn; the model's name if None.
        options: more arguments of vLLM's ``AsyncEngineArgs``. Differing from vLLM's defaults,
            ``logprobs_mode`` is ``"processed_logprobs"`` (after temperature, top-k and top-p) and
            ``disable_log_stats`` is True.

    Raises:
        MissingExtra: vLLM is not installed.
        InvalidInput: a value is not one of those that are allowed.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        version: int = 0,
        updates: Literal["abort", "keep"] = "abort",
        timeout: float = 600.0,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if importlib.util.find_spec("vllm") is None:  # importing it takes seconds
            raise MissingExtra("vllm", "local-vllm")
        if updates not in {"abort", "keep"}:
            raise InvalidInput(f"LocalVLLMEngine: updates is {updates!r}, not 'abort' or 'keep'")
        self.name = str(name or model)
        self.version = version
        """Policy version of the weights."""
        self._updates = updates
        self._timeout = timeout
        self._options = {
            "model": str(model),
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
            **options,
        }
        mode = str(self._options["logprobs_mode"]).rpartition(".")[2].lower()
        if mode not in _LOGPROB_MODES:
            raise InvalidInput(f"LocalVLLMEngine: logprobs_mode {mode!r} gives no log-probs")
        self.logprob_mode = _LOGPROB_MODES[mode]
        self._given: Any = None
        self._llm: Any = None
        self._sampling_params: Any = None
        self._starting: asyncio.Task[Any] | None = None
        self._calls: dict[str, _Call] = {}
        self._numbers = itertools.count()
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._one_update = asyncio.Lock()
        self._broken = ""
        self._closed = False

    @classmethod
    def over(
        cls,
        llm: Any,
        *,
        version: int = 0,
        updates: Literal["abort", "keep"] = "abort",
        timeout: float = 600.0,
        name: str | None = None,
    ) -> Self:
        """Return an engine over an ``AsyncLLM`` that runs already; :meth:`close` leaves it running.

        Its requests are not to be paused or its weights replaced elsewhere, since the versions
        would be wrong: use :meth:`updating`.

        Args:
            llm: the ``AsyncLLM``, made for the event loop in which this engine is used.
            version: see the class.
            updates: see the class.
            timeout: see the class.
            name: see the class.

        Raises:
            MissingExtra: vLLM is not installed.
            InvalidInput: it reports logits instead of log-probs, or a value is not allowed.
        """
        engine = cls(
            llm.model_config.model,
            version=version,
            updates=updates,
            timeout=timeout,
            name=name,
            logprobs_mode=str(llm.model_config.logprobs_mode),
        )
        engine._given = llm
        return engine

    @property
    def llm(self) -> Any:
        """The ``AsyncLLM``, None before the start."""
        return self._llm or self._given

    async def start(self) -> None:
        """Load the model and start vLLM's processes; takes a minute or more.

        Raises:
            PolicyUnavailable: vLLM did not start, or the engine is closed.
        """
        if self._closed:
            raise PolicyUnavailable(f"engine {self.name!r} is closed")
        if self._llm is not None:
            return
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._started())
        try:
            self._llm = await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # whatever vLLM raises while it starts
            raise PolicyUnavailable(
                f"engine {self.name!r}: vLLM did not start: {_said(error)}"
            ) from error

    async def _started(self) -> Any:
        llm = await asyncio.to_thread(self._made)
        # vLLM asks its processes for this once, on the first request. Known from here on, a request
        # is registered in the step of the event loop that begins it.
        await llm.get_supported_tasks()
        return llm

    def _made(self) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.sampling_params import RequestOutputKind, SamplingParams
        from vllm.v1.engine.async_llm import AsyncLLM

        keep = self._updates == "keep"
        kind = RequestOutputKind.DELTA if keep else RequestOutputKind.FINAL_ONLY
        self._sampling_params = partial(
            SamplingParams, logprobs=0, flat_logprobs=True, detokenize=False, output_kind=kind
        )
        if self._given is not None:
            return self._given
        # As vLLM's own server does: a fork would inherit the locks of this process's threads.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**self._options))

    async def generate(
        self,
        prompt_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """See :meth:`TokenEngine.generate`; seconds in which weights are updated count as paused.

        If the call is cancelled, the request is aborted.

        Raises:
            ContextFull: the prompt does not fit into the context.
            PolicyUnavailable: vLLM did not start, gave no response in time, has died, or the last
                weight update failed.
            PolicyRejected: vLLM refused the request.
            PolicyGarbage: the response has inconsistent ids and log-probs.
        """
        del session  # one engine has one prefix cache
        prompt = as_list(prompt_ids)
        await self.start()
        max_tokens = min(max_tokens, self._room(prompt))
        call, empty = _Call(), 0
        while True:
            call.paused += await self._opened()
            sampled, version = len(call.ids), self.version
            params = self._params(sampling, max_tokens - sampled, stop_ids, sampled)
            finish = await self._once(prompt + call.ids, params, call)
            if finish != "abort" or len(call.ids) >= max_tokens or self._closed:
                break
            stuck = len(call.ids) == sampled and self.version == version and self._open.is_set()
            empty = empty + 1 if stuck else 0
            if empty >= _EMPTY_ABORTS:
                raise PolicyUnavailable(
                    f"engine {self.name!r}: vLLM aborted a request {empty} times in a row"
                )
        return Generation(call.ids, call.logprobs, tuple(call.segments), finish, call.paused)

    async def load_weights(
        self, folder: str | Path, *, version: int | None = None, partial: bool = False
    ) -> None:
        """Replace the weights by those of a folder, which each of vLLM's workers reads.

        Args:
            folder: has all weights as ``*.safetensors`` with the names of the model's checkpoint.
            version: their policy version; None adds 1 to the current one.
            partial: whether weights of the model's checkpoint may be missing. vLLM keeps those that
                it has then, and reports nothing.

        Raises:
            InvalidInput: there are no such files, or weights are missing; nothing has changed then.
            PolicyUnavailable: the update failed. Calls fail too until another one succeeds.
        """
        path = Path(folder)
        names = await asyncio.to_thread(tensor_names, path)
        if not partial:
            await self._check_whole(names, path)
        async with self.updating(version) as llm, self._in_time("loading weights"):
            await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})

    async def set_weights(
        self,
        weights: Mapping[str, Any] | Iterable[tuple[str, Any]],
        *,
        version: int | None = None,
        partial: bool = False,
        folder: str | Path | None = None,
    ) -> None:
        """Replace the weights by given tensors.

        They are written to files, which vLLM's workers read, while sampling continues. For large
        models a transfer between GPUs is faster, see :meth:`updating`.

        Args:
            weights: all weights, a ``state_dict()`` or (name, tensor) pairs, with the names of the
                model's checkpoint.
            version: their policy version; None adds 1 to the current one.
            partial: see :meth:`load_weights`.
            folder: where the files are written, such as ``/dev/shm``, and removed; a folder for
                temporary files if None.

        Raises:
            InvalidInput: there are no weights, or some are missing; nothing has changed then.
            PolicyUnavailable: the update failed. Calls fail too until another one succeeds.
        """
        made = await asyncio.to_thread(tempfile.mkdtemp, prefix="trajgym-weights-", dir=folder)
        try:
            await asyncio.to_thread(_save, weights, Path(made))
            await self.load_weights(made, version=version, partial=partial)
        finally:
            await asyncio.to_thread(_remove, Path(made))

    @contextlib.asynccontextmanager
    async def updating(self, version: int | None = None) -> AsyncIterator[Any]:
        """Return a context in which the weights may be replaced; yields the ``AsyncLLM``.

        No token is sampled within it. At its end the version is set and sampling continues. If it
        is left with an exception, the weights are unknown, and calls fail until another update
        succeeds.

        Example::

            async with engine.updating() as llm:
                await llm.start_weight_update()
                await llm.update_weights(request)  # see vLLM's weight_transfer_config
                await llm.finish_weight_update()

        Args:
            version: policy version of the new weights; None adds 1 to the current one.

        Raises:
            PolicyUnavailable: vLLM did not start or did not pause.
        """
        await self.start()
        async with self._one_update:
            begun = time.monotonic()
            self._open.clear()
            try:
                async with self._in_time("pausing"):
                    await self._llm.pause_generation(mode=self._updates, clear_cache=True)
                    if self._updates == "abort":
                        await self._drained()
                self._broken = "a weight update has not ended"
                try:
                    yield self._llm
                except BaseException as error:
                    self._broken = f"a weight update failed: {_said(error)}"
                    raise
                self.version = self.version + 1 if version is None else version
                self._broken = ""
            finally:
                await self._resume()
                for call in self._calls.values():
                    call.paused += time.monotonic() - begun
                self._open.set()

    async def close(self) -> None:
        """Stop vLLM's processes; calls in progress end as aborted. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._starting is None:
            return
        try:
            llm = await self._starting
        except Exception:  # noqa: BLE001 - it did not start, as the calls have reported
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RECOVER_SECONDS):
                await self._drained()
        if self._given is None:
            if llm.output_handler is not None:  # it would log the end of its source as an error
                llm.output_handler.cancel()
            await asyncio.to_thread(llm.shutdown, timeout=_RECOVER_SECONDS)

    # One request --------------------------------------------------------------------------

    def _room(self, prompt: list[int]) -> int:
        """Return how many tokens fit after the prompt."""
        if not prompt:
            raise InvalidInput("generate: the prompt is empty")
        most: int = self._llm.model_config.max_model_len
        if len(prompt) >= most:
            raise ContextFull(
                f"{self.name}: the prompt has {len(prompt)} tokens, the context {most}"
            )
        return most - len(prompt)

    async def _opened(self) -> float:
        """Wait for the end of an update, and return for how many seconds."""
        begun = time.monotonic()
        if not self._open.is_set():
            async with self._in_time("waiting for a weight update"):
                await self._open.wait()
        if self._closed:
            raise PolicyUnavailable(f"engine {self.name!r} is closed")
        if self._broken:
            raise PolicyUnavailable(
                f"engine {self.name!r}: its weights are unknown: {self._broken}"
            )
        return time.monotonic() - begun

    def _params(
        self, sampling: Sampling, max_tokens: int, stop_ids: Collection[int], sampled: int
    ) -> Any:
        seed = sampling.seed
        return self._sampling_params(
            temperature=1.0 if sampling.temperature is None else sampling.temperature,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            top_k=0 if sampling.top_k is None else sampling.top_k,
            # A continuation must not draw the same numbers again.
            seed=None if seed is None else (seed + sampled) % 2**63,
            stop_token_ids=sorted(stop_ids),
            max_tokens=max_tokens,
        )

    async def _once(
        self, prompt: list[int], params: Any, call: _Call
    ) -> Literal["stop", "length", "abort"]:
        name = f"trajgym-{id(self):x}-{next(self._numbers)}"
        inputs = {"type": "token", "prompt_token_ids": prompt}
        self._calls[name] = call
        finish: str | None = None
        low = self.version
        try:
            async with self._in_time("sampling"):
                outputs = self._llm.generate(inputs, params, name)
                async with contextlib.aclosing(outputs):
                    async for output in outputs:
                        piece = self._read(output)
                        following = self.version
                        call.add(piece, low, following)
                        low, finish = following, piece.finish
        except PolicyUnavailable as error:
            if (cause := error.__cause__) is None or not _refused(cause):
                raise
            full = context_full(str(cause), where=self.name)
            raise full or PolicyRejected(str(error)) from cause
        finally:
            del self._calls[name]
            if not self._calls:
                self._idle.set()
        return ended(finish)

    def _read(self, output: Any) -> Piece:
        (choice,) = output.outputs
        ids = list(choice.token_ids)
        found = choice.logprobs
        # The last ones, because an abort repeats the log-probs of earlier pieces.
        starts = found.start_indices[len(found) - len(ids) :] if found is not None and ids else ()
        logprobs = [found.logprobs[at] for at in starts]
        if len(ids) != len(logprobs) or not all(map(math.isfinite, logprobs)):
            raise PolicyGarbage(
                f"engine {self.name!r}: {len(ids)} ids and log-probs {logprobs[:4]}...: they must "
                "agree",
            )
        return Piece(ids, logprobs, choice.finish_reason)

    # Updates ------------------------------------------------------------------------------

    async def _check_whole(self, names: frozenset[str], folder: Path) -> None:
        """Refuse weights that lack some of the model's: vLLM would go on with its old ones."""
        await self.start()
        lacking = sorted(await asyncio.to_thread(self._needed) - names)
        if lacking:
            raise InvalidInput(
                f"engine {self.name!r}: the weights in {str(folder)!r} lack {len(lacking)} of the "
                f"model's, such as {lacking[:3]}; use the names of the model's checkpoint, or "
                "partial=True to keep the old ones of those"
            )

    def _needed(self) -> frozenset[str]:
        """Return the names in the model's own checkpoint; none if it has no safetensors."""
        config = self._llm.model_config
        folder = model_folder(config.model, config.revision)
        try:
            names = tensor_names(folder) if folder is not None else frozenset()
        except InvalidInput:
            return frozenset()
        if getattr(config.hf_text_config, "tie_word_embeddings", False):
            return frozenset(name for name in names if not name.endswith("lm_head.weight"))
        return names

    async def _drained(self) -> None:
        """Abort all requests, and wait until their calls have what was sampled."""
        while self._calls:
            self._idle.clear()
            await self._llm.abort(list(self._calls))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    await self._idle.wait()

    async def _resume(self) -> None:
        """Let vLLM sample again; without requests if the weights are unknown."""
        try:
            async with asyncio.timeout(_RECOVER_SECONDS):
                if self._broken:
                    await self._drained()
                await self._llm.resume_generation()
        except Exception as error:  # noqa: BLE001 - calls report it, or the update's own exception
            self._broken = self._broken or f"vLLM did not resume: {_said(error)}"

    @contextlib.asynccontextmanager
    async def _in_time(self, what: str) -> AsyncIterator[None]:
        """Limit the time of a step, and raise what vLLM raises as an error of ours."""
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError as error:
            raise PolicyUnavailable(
                f"engine {self.name!r}: {what} took more than {self._timeout:g} s"
            ) from error
        except PolicyError:
            raise
        except Exception as error:  # whatever vLLM raises
            raise PolicyUnavailable(f"engine {self.name!r}: {what}: {_said(error)}") from error


def _refused(error: BaseException) -> bool:
    """Return whether vLLM blames the request."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, ValueError) or "VLLMClientError" in names


def _said(error: BaseException) -> str:
    cause = error.__cause__
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{text} ({_said(cause)})" if cause is not None else text


def _save(weights: Mapping[str, Any] | Iterable[tuple[str, Any]], folder: Path) -> None:
    """Write tensors as files of at most 2 GiB, or of one tensor."""
    from safetensors.torch import save_file

    pairs = weights.items() if hasattr(weights, "items") else weights
    held: dict[str, Any] = {}
    size = number = 0
    for name, tensor in pairs:
        flat = tensor.detach().contiguous()
        if held and size + flat.nbytes > _SHARD_BYTES:
            save_file(held, folder / f"model-{number:05}.safetensors")
            held, size, number = {}, 0, number + 1
        # A copy, because safetensors refuses tensors that share memory, as tied weights do.
        held[name] = flat.to("cpu", copy=True)
        size += flat.nbytes
    if not held:
        raise InvalidInput("set_weights: there are no weights")
    save_file(held, folder / f"model-{number:05}.safetensors")


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
