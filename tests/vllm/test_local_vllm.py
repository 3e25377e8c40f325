"""vLLM in this process: ids and log-probs, weight updates, aborts."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tests.vllm.conftest import CONTEXT, options
from trajgym.envs import Budgets, Env, EnvSpec, ToolResult, register
from trajgym.rollout import (
    ContextFull,
    PolicyRejected,
    PolicyUnavailable,
    TokenPolicy,
    collect,
)
from trajgym.rollout.engines import LocalVLLMEngine
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import InvalidInput, Run, Sampling, Segment, Task, build_rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trajgym.rollout.engines import Generation
    from trajgym.trajectory import Message

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = 300


@register("test/vllm-talk")
class Talk(Env):
    """Two turns; the score is 1."""

    budgets: ClassVar[Budgets] = Budgets(turns=2)

    async def reset(self, task: Task, seed: int | None) -> str:
        return task.prompt or ""

    async def respond(self, message: Message) -> ToolResult:
        return ToolResult(content="And then?")

    async def verify(self) -> float:
        return 1.0


@pytest.fixture
def prompt(tiny: Any) -> list[int]:
    return TemplateRenderer(tiny.tokenizer).render([{"role": "user", "content": "Is it?"}])


async def ask(engine: LocalVLLMEngine, prompt: Sequence[int], **given: Any) -> Generation:
    """Sample eight tokens, without a stop id unless one is given."""
    sampling = Sampling(temperature=given.pop("temperature", 1.0), seed=given.pop("seed", 7))
    most = given.pop("max_tokens", 8)
    stop = given.pop("stop_ids", ())
    return await engine.generate(prompt, sampling=sampling, max_tokens=most, stop_ids=stop)


def logprobs(model: Any, prompt: list[int], got: Generation, temperature: float = 1.0) -> Any:
    """Return a transformers model's log-probs of sampled ids."""
    import torch

    ids = torch.tensor([prompt + list(got.ids)])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]


def close(a: Any, b: Any) -> bool:
    import torch

    return bool(torch.allclose(torch.as_tensor(a), torch.as_tensor(b), atol=2e-3))


def changed(tiny: Any) -> Any:
    """Return a copy of the model with other weights."""
    import torch

    model = tiny.model()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(-2)
    return model


async def until_sampling(engine: LocalVLLMEngine, tokens: int = 3) -> None:
    """Return when every request has some tokens, and there is one."""
    states = engine.llm.output_processor.request_states
    async with asyncio.timeout(120):
        while not states or any(
            state.detokenizer.num_output_tokens() < tokens for state in states.values()
        ):
            await asyncio.sleep(0.001)


async def test_ids_and_logprobs_are_the_models(
    engine: LocalVLLMEngine, tiny: Any, prompt: list[int]
) -> None:
    """The log-probs are the model's own at that temperature."""
    got = await ask(engine, prompt, temperature=0.7)
    assert engine.logprob_mode == "processed"
    assert (len(got.ids), got.finish) == (8, "length")
    assert close(got.logprobs, logprobs(tiny.model(), prompt, got, 0.7))
    assert got.segments == (Segment(8, engine.version, engine.version),)


async def test_both_ways_to_receive_give_the_same(
    engine: LocalVLLMEngine, keeping: LocalVLLMEngine, prompt: list[int]
) -> None:
    """At temperature 0, whole responses and responses token by token are equal."""
    whole = await ask(engine, prompt, temperature=0.0, max_tokens=40)
    pieces = await ask(keeping, prompt, temperature=0.0, max_tokens=40)
    assert list(whole.ids) == list(pieces.ids)
    assert close(whole.logprobs, pieces.logprobs)


async def test_a_stop_id_ends_the_response(engine: LocalVLLMEngine, prompt: list[int]) -> None:
    """The stop id is part of the response."""
    free = await ask(engine, prompt, temperature=0.0, max_tokens=12)
    stop = free.ids[5]
    got = await ask(engine, prompt, temperature=0.0, max_tokens=12, stop_ids={stop})
    first = list(free.ids).index(stop)
    assert list(got.ids) == list(free.ids)[: first + 1]
    assert got.finish == "stop"


async def test_the_context_is_a_limit(engine: LocalVLLMEngine, prompt: list[int]) -> None:
    """A response ends where the context does; a prompt that fills it is refused as such."""
    full = (prompt * CONTEXT)[: CONTEXT - 5]
    got = await ask(engine, full, max_tokens=50)
    assert (len(got.ids), got.finish) == (5, "length")
    with pytest.raises(ContextFull):
        await ask(engine, (prompt * CONTEXT)[:CONTEXT])


async def test_refused_requests(engine: LocalVLLMEngine, prompt: list[int]) -> None:
    """An id that the model does not have is the request's fault; the engine goes on."""
    with pytest.raises(PolicyRejected, match="vocab"):
        await ask(engine, [*prompt, 1_000_000])
    with pytest.raises(InvalidInput, match="empty"):
        await ask(engine, [])
    assert len((await ask(engine, prompt)).ids) == 8


@pytest.mark.parametrize("updates", ["abort", "keep"])
async def test_an_update_inside_responses(
    engine: LocalVLLMEngine,
    keeping: LocalVLLMEngine,
    tiny: Any,
    prompt: list[int],
    tmp_path: Path,
    updates: str,
) -> None:
    """Each token has the version of the weights that sampled it: its log-prob says so."""
    chosen = keeping if updates == "keep" else engine
    old, new = tiny.model(), changed(tiny)
    new.save_pretrained(tmp_path)
    before = chosen.version
    calls = [
        asyncio.create_task(ask(chosen, prompt, seed=seed, max_tokens=LONG)) for seed in range(3)
    ]
    await until_sampling(chosen)
    await chosen.load_weights(tmp_path)
    assert chosen.version == before + 1
    for call in calls:
        got = await call
        assert len(got.ids) == LONG
        assert got.paused_seconds > 0
        first, *between, last = got.segments
        assert first[1:3] == (before, before)
        assert last[1:3] == (before + 1, before + 1)
        assert sum(segment.length for segment in between) <= (updates == "keep")
        assert sum(segment.length for segment in got.segments) == LONG
        at = first.length
        assert close(got.logprobs[:at], logprobs(old, prompt, got)[:at])
        after = LONG - last.length
        assert not close(got.logprobs[after:], logprobs(old, prompt, got)[after:])
        assert close(got.logprobs[after:], logprobs(new, prompt, got)[after:])
    await chosen.load_weights(tiny.path)


async def test_given_tensors(engine: LocalVLLMEngine, tiny: Any, prompt: list[int]) -> None:
    """A state dict replaces the weights, with the version that is given."""
    new = changed(tiny)
    await engine.set_weights(new.state_dict(), version=41)
    got = await ask(engine, prompt)
    assert close(got.logprobs, logprobs(new, prompt, got))
    assert got.segments == (Segment(8, 41, 41),)
    await engine.set_weights(tiny.model().state_dict().items())
    got = await ask(engine, prompt)
    assert close(got.logprobs, logprobs(tiny.model(), prompt, got))
    assert got.segments == (Segment(8, 42, 42),)


async def test_no_update_of_nothing(engine: LocalVLLMEngine, prompt: list[int]) -> None:
    """A folder or a mapping without weights is refused before anything is paused."""
    before = engine.version
    with pytest.raises(InvalidInput, match="safetensors"):
        await engine.load_weights("/nowhere")
    with pytest.raises(InvalidInput, match="no weights"):
        await engine.set_weights({})
    assert (await ask(engine, prompt)).segments == (Segment(8, before, before),)


async def test_a_failed_update(engine: LocalVLLMEngine, tiny: Any, prompt: list[int]) -> None:
    """Nothing is sampled with weights that may be half replaced, until an update succeeds."""
    version = engine.version
    calls = [asyncio.create_task(ask(engine, prompt, max_tokens=LONG)) for _ in range(2)]
    await until_sampling(engine)
    with pytest.raises(ZeroDivisionError):
        async with engine.updating():
            raise ZeroDivisionError("in the middle")
    for call in calls:
        with pytest.raises(PolicyUnavailable, match="in the middle"):
            await call
    with pytest.raises(PolicyUnavailable, match="weights are unknown"):
        await ask(engine, prompt)
    await engine.load_weights(tiny.path)
    assert engine.version == version + 1
    assert len((await ask(engine, prompt)).ids) == 8


async def test_a_file_of_another_model(engine: LocalVLLMEngine, tiny: Any) -> None:
    """The update fails with the error of vLLM."""
    import torch

    weights = {**tiny.model().state_dict(), "model.nonsense.weight": torch.zeros(3)}
    with pytest.raises(PolicyUnavailable, match="loading weights"):
        await engine.set_weights(weights)
    await engine.load_weights(tiny.path)


async def test_weights_that_lack_some(
    engine: LocalVLLMEngine, tiny: Any, prompt: list[int]
) -> None:
    """They are refused before anything is paused, unless the caller wants to keep the old ones."""
    before, new = engine.version, changed(tiny).state_dict()
    some = {name: new[name] for name in new if "norm" in name}
    with pytest.raises(InvalidInput, match=r"lack \d+ of the model's, such as \['"):
        await engine.set_weights(some)
    assert (await ask(engine, prompt)).segments == (Segment(8, before, before),)
    await engine.set_weights(some, partial=True)
    mixed = tiny.model()
    mixed.load_state_dict(some, strict=False)
    got = await ask(engine, prompt)
    assert close(got.logprobs, logprobs(mixed, prompt, got))
    await engine.load_weights(tiny.path)


async def test_cancelled_calls_are_aborted(engine: LocalVLLMEngine, prompt: list[int]) -> None:
    """The requests of cancelled calls end in vLLM, and those of calls that took too long."""
    calls = [asyncio.create_task(ask(engine, prompt, max_tokens=LONG)) for _ in range(3)]
    await until_sampling(engine)
    for call in calls:
        call.cancel()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended)
    assert not engine.llm.output_processor.request_states
    hasty = LocalVLLMEngine.over(engine.llm, timeout=0.001)
    with pytest.raises(PolicyUnavailable, match=r"0\.001 s"):
        await ask(hasty, prompt, max_tokens=LONG)
    assert not engine.llm.output_processor.request_states


async def test_closing_ends_calls(engine: LocalVLLMEngine, prompt: list[int]) -> None:
    """What was sampled is returned, as aborted; an engine over another's vLLM leaves it running."""
    other = LocalVLLMEngine.over(engine.llm)
    call = asyncio.create_task(ask(other, prompt, max_tokens=LONG))
    await until_sampling(other)
    await other.close()
    got = await call
    assert got.finish == "abort"
    assert 0 < len(got.ids) == len(got.logprobs) < LONG
    with pytest.raises(PolicyUnavailable, match="closed"):
        await ask(other, prompt)
    assert len((await ask(engine, prompt)).ids) == 8


async def test_sessions(engine: LocalVLLMEngine, tiny: Any, tmp_path: Path) -> None:
    """Sessions give rows with the ids that were sampled, and the log-probs of the model."""
    import torch

    policy = TokenPolicy(engine, TemplateRenderer(tiny.tokenizer), max_tokens=6)
    tasks = [Task(id=f"t{i}", prompt="Say something.") for i in range(3)]
    report = await collect(EnvSpec(id="test/vllm-talk"), tasks, policy, tmp_path, samples=1)
    assert report.sessions == 3
    model = tiny.model()
    with Run(tmp_path) as run:
        rows = [row for tree in run.sessions() for row in build_rows(tree).rows]
    assert rows
    for row in rows:
        ids = torch.tensor(row.input_ids[None].tolist())
        with torch.inference_mode():
            expected = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1)
        expected = expected.gather(1, ids[0, 1:, None])[:, 0]
        trained = torch.tensor(row.loss_mask[1:].astype(bool))
        assert trained.any()
        assert close(torch.tensor(row.logprobs[1:])[trained], expected[trained])


async def test_a_dead_vllm(tiny: Any, prompt: list[int]) -> None:
    """Calls fail when vLLM's process is killed."""
    known = {child.pid for child in multiprocessing.active_children()}
    engine = LocalVLLMEngine(tiny.path, **options())
    await engine.start()
    call = asyncio.create_task(ask(engine, prompt, max_tokens=LONG))
    await until_sampling(engine)
    for child in multiprocessing.active_children():
        if child.pid not in known:
            child.kill()
    async with asyncio.timeout(120):
        with pytest.raises(PolicyUnavailable):
            await call
        with pytest.raises(PolicyUnavailable):
            await ask(engine, prompt)
        await engine.close()


async def test_what_cannot_start() -> None:
    """The error says why vLLM did not start; closing is possible all the same."""
    engine = LocalVLLMEngine("/nowhere/model", max_model_len=16)
    with pytest.raises(PolicyUnavailable, match="did not start"):
        await engine.start()
    with pytest.raises(PolicyUnavailable, match="did not start"):
        await ask(engine, [1])
    await engine.close()


def test_what_is_not_allowed() -> None:
    """Settings that would make the record wrong are refused."""
    with pytest.raises(InvalidInput, match="logprobs_mode"):
        LocalVLLMEngine("m", logprobs_mode="raw_logits")
    with pytest.raises(InvalidInput, match="updates"):
        LocalVLLMEngine("m", updates="wait")  # type: ignore[arg-type]
    assert LocalVLLMEngine("m", logprobs_mode="raw_logprobs").logprob_mode == "raw"
