"""A real small model on the CPU, token-exact over several turns."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trajgym.envs import Budgets, EnvSpec, TurnLimits
from trajgym.envs.search import load_tasks
from trajgym.rollout import LocalPolicy, PolicyRequest, PolicyUnavailable, collect
from trajgym.rollout.engines import LocalEngine, load_smollm2
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import Run, Sampling, Span, build_rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.local,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

USER = {"role": "user", "content": "Name a colour."}
TOOLS = [{"type": "function", "function": {"name": "paint", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def model() -> Any:
    return load_smollm2()


def make(model: Any, **options: Any) -> LocalPolicy:
    return LocalPolicy(model.model, model.tokenizer, name="smollm2", max_tokens=16, **options)


def request(messages: list[Any], **fields: Any) -> PolicyRequest:
    return PolicyRequest(**{"session": "s", "messages": messages, "seed": 3, **fields})


class _Watch:
    """Notes every text that is encoded."""

    def __init__(self, codec: Any) -> None:
        self.texts: list[str] = []
        self._encode = codec.encode
        codec.encode = self.encode

    def encode(self, text: str) -> list[int]:
        self.texts.append(text)
        return self._encode(text)  # type: ignore[no-any-return]


async def test_a_session_of_turns_never_encodes_what_was_sampled(model: Any) -> None:
    """Each prompt is the ids before it and the new message; the response's text is not encoded."""
    policy = make(model, sampling=Sampling(temperature=1.0))
    watch = _Watch(policy.renderer._codec)  # type: ignore[attr-defined]
    messages: list[Any] = [USER]
    prefix, held, first_cost = None, 0, 0
    for turn in range(3):
        before = policy.engine.computed_tokens  # type: ignore[attr-defined]
        asked = request(messages, prefix_ids=prefix, prefix_messages=held, tools=TOOLS)
        reply = await policy.sample(asked)
        sampled = reply.sampled
        assert sampled is not None
        assert sampled.prompt_ids.dtype == np.int32  # type: ignore[union-attr]
        prompt = np.asarray(sampled.prompt_ids)
        if prefix is not None:
            assert np.array_equal(prompt[: prefix.size], prefix)
            assert reply.context is None
        said = reply.message["content"]
        assert len(said) > 1
        cost = policy.engine.computed_tokens - before  # type: ignore[attr-defined]
        first_cost = first_cost or cost
        _check_logprobs(model, prompt, sampled)
        prefix = np.concatenate([prompt, np.asarray(sampled.response_ids)])
        messages += [reply.message, {"role": "user", "content": f"Another, number {turn}."}]
        held = len(messages) - 1
        assert turn == 0 or cost < first_cost  # the cache held the rest
    spoken = [m["content"] for m in messages if m["role"] == "assistant"]
    assert not [text for text in watch.texts for said in spoken if said in text]
    await policy.close()


def _check_logprobs(model: Any, prompt: Any, sampled: Any) -> None:
    """Recompute the log-probs with one pass over everything, without a cache."""
    import torch

    ids = torch.tensor(np.concatenate([prompt, np.asarray(sampled.response_ids)]))[None]
    with torch.inference_mode():
        logits = model.model(input_ids=ids, use_cache=False).logits[0].float()
    start, n = len(prompt), len(sampled.response_ids)
    rows = torch.log_softmax(logits[start - 1 : start - 1 + n], dim=-1)
    again = rows.gather(1, ids[0, start:].long()[:, None])[:, 0].numpy()
    np.testing.assert_allclose(np.asarray(sampled.logprobs), again, atol=1e-3)


async def test_a_seed_gives_the_same_turn(model: Any) -> None:
    """Equal seeds sample equal ids, whatever ran before; another seed samples others."""
    policy = make(model, sampling=Sampling(temperature=1.2, top_p=0.95, top_k=50))
    replies = [await policy.sample(request([USER], seed=seed)) for seed in (1, 2, 1)]
    first, other, again = [list(r.sampled.response_ids) for r in replies]  # type: ignore[union-attr]
    assert first == again
    assert first != other
    await policy.close()


async def test_tempered_logprobs_are_processed_ones(model: Any) -> None:
    """At temperature 0.5 the log-probs are those of the sharpened distribution."""
    import torch

    policy = make(model, sampling=Sampling(temperature=0.5))
    reply = await policy.sample(request([USER]))
    sampled = reply.sampled
    assert sampled is not None
    assert reply.sampling is not None
    assert reply.sampling.logprob_mode == "processed"
    with torch.inference_mode():
        prompt = torch.tensor(np.asarray(sampled.prompt_ids))[None]
        row = model.model(input_ids=prompt).logits[0, -1].float()
    wanted = torch.log_softmax(row / 0.5, dim=-1)[int(sampled.response_ids[0])]
    assert sampled.logprobs[0] == pytest.approx(float(wanted), abs=1e-3)
    await policy.close()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_given_ids_are_scored_as_they_were_sampled(model: Any, temperature: float) -> None:
    """Scoring what was sampled gives the same log-probs; after another prompt it does not."""
    engine = LocalEngine(model.model)
    renderer = TemplateRenderer(model.tokenizer)
    sampling = Sampling(temperature=temperature, seed=3)
    prompt = renderer.render([USER])
    made = await engine.generate(prompt, sampling=sampling, max_tokens=12, stop_ids=())
    again = await engine.score(prompt, made.ids, sampling=sampling)
    np.testing.assert_allclose(again, made.logprobs, atol=1e-3)
    hinted = renderer.render([{"role": "user", "content": "Name a colour. (Think of grass.)"}])
    other = await engine.score(hinted, made.ids, sampling=sampling)
    assert not np.allclose(other, made.logprobs, atol=1e-2)
    await engine.close()
    with pytest.raises(PolicyUnavailable, match="closed"):
        await engine.score(prompt, made.ids, sampling=sampling)


async def test_a_cancelled_call_frees_the_model(model: Any) -> None:
    """After a cancellation the next call is served, and gives what it would have given."""
    engine = LocalEngine(model.model)
    renderer = TemplateRenderer(model.tokenizer)
    prompt = renderer.render([USER])

    async def ask(most: int) -> list[int]:
        sampling = Sampling(temperature=0.0)
        made = await engine.generate(
            prompt, sampling=sampling, max_tokens=most, stop_ids=(), session="s"
        )
        return list(made.ids)

    wanted = await ask(4)
    cancelled = asyncio.create_task(ask(100_000))
    await asyncio.wait([cancelled], timeout=1)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await asyncio.wait_for(ask(4), 240) == wanted
    running = asyncio.create_task(ask(100_000))
    await asyncio.sleep(0)
    await asyncio.wait_for(engine.close(), 240)
    with contextlib.suppress(PolicyUnavailable):  # closed before the thread had begun
        assert await running is not None
    with pytest.raises(PolicyUnavailable, match="closed"):
        await ask(4)


async def test_caches_are_bounded(model: Any) -> None:
    """Only so many sessions keep their keys and values."""
    policy = make(model, cached_sessions=2)
    limits = TurnLimits(completion_tokens=1)
    for name in ("a", "b", "c"):
        await policy.sample(request([USER], session=name, limits=limits))
    assert list(policy.engine._caches) == ["b", "c"]  # type: ignore[attr-defined]
    await policy.close()


def test_tool_calls_have_exact_spans(model: Any) -> None:
    """With a real tokenizer, whose tags are several ids, the span holds the call and no more."""
    renderer = TemplateRenderer(model.tokenizer)
    tag = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>'
    ids = renderer.encode_response(f"I'll paint.\n{tag}")
    parsed = renderer.parse(ids, (), TOOLS)
    (call,) = parsed.message["tool_calls"]
    (span,) = parsed.spans
    assert isinstance(span, Span)
    assert span.call_id == call["id"]
    assert model.tokenizer.decode(ids[span.start : span.end]).strip() == tag
    assert parsed.message["content"] == "I'll paint."


@pytest.mark.timeout(900)
async def test_a_real_model_searches(model: Any, tmp_path: Path) -> None:
    """The model plays the search environment in free text; every turn is exact and trained."""
    spec = EnvSpec(id="search-tags", config={"searches": 2, "observation_tokens": 60})
    policy = LocalPolicy(
        model.model,
        model.tokenizer,
        name="smollm2",
        max_tokens=24,
        sampling=Sampling(temperature=0.7),
    )
    tasks = load_tasks("builtin")[:1]
    budgets = Budgets(turns=2, seconds=None, seconds_per_turn=None)
    await collect(spec, tasks, policy, tmp_path, samples=2, budgets=budgets, concurrency=2)
    await policy.close()
    with Run(tmp_path) as run:
        trees = list(run.sessions())
    assert len(trees) == 2
    for tree in trees:
        assert str(tree.attempts[0].status) in {"completed", "truncated:turns"}
        assert tree.attempts[0].outcome is not None
        assert all(turn.exact and turn.observation for turn in tree.turns if not turn.done)
        rows = build_rows(tree).rows
        trained = sum(int(row.loss_mask.sum()) for row in rows)
        assert trained == sum(turn.tokens.response_ids.size for turn in tree.turns if turn.tokens)
