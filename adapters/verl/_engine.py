"""verl's inference servers as a token engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from trajgym.envs import Truncate
from trajgym.rollout import PolicyGarbage, PolicyRejected, derive_seed
from trajgym.rollout.engines import Generation, TokenEngine
from trajgym.trajectory import Sampling, Segment

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trajgym.trajectory import IntArray

__all__ = ["VerlEngine"]


class VerlEngine(TokenEngine):
    """Samples for one session through ``server_manager.generate`` (verl 0.9.1).

    All requests of a session have the same request id, so that verl routes them to the replica with
    the session's prefix in its cache.

    Args:
        client: verl's ``LLMServerClient``, or an object with its ``generate`` method.
        params: the sampling parameters that verl passed to the loop.
        prompt_length: most ids before a row's first sampled token.
        response_length: most ids after that.
        padded: whether rows are padded to these two lengths (V0); otherwise only their sum counts.
        context: most ids that the servers accept, ``rollout.max_model_len``; None for no bound.
        version: the trainer's step, used if the servers don't report the version of their weights.
        seed: of the session, for ``rollout.full_determinism``: each request gets a seed derived
            from it. verl would give all requests of a replica the same, so that the sessions of a
            group would sample the same responses. None passes no seed.
        logprobs_mode: verl's ``rollout.logprobs_mode``; in any mode but ``processed_logprobs`` and
            ``raw_logprobs``, the kind of the log-probs is unknown.
    """

    name = "verl"

    def __init__(
        self,
        client: Any,
        params: Mapping[str, Any],
        *,
        prompt_length: int,
        response_length: int,
        padded: bool,
        version: int,
        context: int | None = None,
        seed: int | None = None,
        logprobs_mode: str = "processed_logprobs",
    ) -> None:
        self._client = client
        self._params = dict(params)
        self._prompt_length = prompt_length
        self._response_length = response_length
        self._padded = padded
        self._most = prompt_length + response_length
        if context is not None:
            self._most = min(self._most, context - 1)  # SGLang keeps one id for itself
        self._version = version
        self._seed = seed
        self._requests = 0
        self._row: list[int] = []
        self._start = 0
        if logprobs_mode == "raw_logprobs":
            self.logprob_mode = "raw"
        elif logprobs_mode == "processed_logprobs" and _is_whole(self._params):
            self.logprob_mode = "processed"

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters that verl passed."""
        top_p, top_k = self._params.get("top_p"), self._params.get("top_k")
        return Sampling(
            temperature=_number(self._params.get("temperature")),
            top_p=_number(top_p),
            top_k=None if top_k is None else int(top_k),
            logprob_mode=self.logprob_mode,
        )

    async def generate(
        self,
        prompt_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """See :meth:`TokenEngine.generate`.

        Raises:
            trajgym.envs.Truncate: the context is full.
            PolicyRejected: the first prompt is too long, or the servers returned no log-probs.
            PolicyGarbage: the numbers of ids and log-probs differ.
        """
        del sampling  # verl's own parameters are used
        prompt = [int(i) for i in prompt_ids]
        most = min(max_tokens, self._room(prompt))
        params = {**self._params, "max_tokens": most, "stop_token_ids": sorted(stop_ids)}
        if self._seed is not None:
            params["seed"] = derive_seed(self._seed, str(self._requests))
            self._requests += 1
        output = await self._client.generate(
            request_id=session, prompt_ids=prompt, sampling_params=params
        )
        ids = [int(i) for i in output.token_ids]
        logprobs = _logprobs(output, ids)
        self._row = prompt + ids
        segments = (Segment(len(ids), *self._versions(output)),) if ids else ()
        return Generation(ids, logprobs, segments, _finish(output, ids, stop_ids))

    def _room(self, prompt: list[int]) -> int:
        """Return how many more ids the row of this prompt can have."""
        known = len(self._row)
        if not known and len(prompt) > self._prompt_length:
            raise PolicyRejected(
                f"the first prompt has {len(prompt)} ids, but data.max_prompt_length is "
                f"{self._prompt_length}: raise it, or shorten the task",
            )
        if not known or prompt[:known] != self._row:
            self._start = len(prompt)
        room = self._most - len(prompt)
        if self._padded:
            room = min(room, self._start + self._response_length - len(prompt))
            room = room if self._start <= self._prompt_length else 0
        if room < 1:
            raise Truncate(
                "context",
                f"a prompt of {len(prompt)} ids leaves no room in {self._most} "
                "(data.max_prompt_length, data.max_response_length, rollout.max_model_len)",
            )
        return room

    def _versions(self, output: Any) -> tuple[int, int]:
        """Return the oldest and newest version of the response; verl reports only a range."""
        extra = output.extra_fields or {}
        low, high = extra.get("min_global_steps"), extra.get("max_global_steps")
        low = extra.get("global_steps") if low is None else low
        high = low if high is None else high
        return (
            self._version if low is None else int(low),
            self._version if high is None else int(high),
        )


def _logprobs(output: Any, ids: list[int]) -> list[float]:
    if output.log_probs is None:
        raise PolicyRejected(
            "verl's servers returned no log-probs: set "
            "actor_rollout_ref.rollout.calculate_log_probs to True",
        )
    logprobs = [float(value) for value in output.log_probs]
    if len(logprobs) != len(ids):
        raise PolicyGarbage(f"verl's servers returned {len(ids)} ids and {len(logprobs)} log-probs")
    return logprobs


def _finish(
    output: Any, ids: list[int], stop_ids: Collection[int]
) -> Literal["stop", "length", "abort"]:
    if ids and ids[-1] in stop_ids:
        return "stop"
    return "abort" if output.stop_reason in {"aborted", "abort"} else "length"


def _is_whole(params: Mapping[str, Any]) -> bool:
    """Return whether the parameters leave the sampling distribution unchanged."""
    return (
        params.get("top_p") in {None, 1}
        and params.get("top_k") in {None, 0, -1}
        and params.get("repetition_penalty") in {None, 1}
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
