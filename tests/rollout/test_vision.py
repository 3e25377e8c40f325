"""Tiny random vision-language models with real processors: ids, pixels and log-probs agree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pictures import Screen, picture
from tests.rollout.vision import TinyVLM, qwen2_vl, smolvlm
from trajgym.adapters import row_inputs, row_pictures
from trajgym.envs import EnvSpec
from trajgym.rollout import PolicyRejected, PolicyRequest, TokenPolicy, collect
from trajgym.rollout.engines import LocalEngine, LocalVisionEngine
from trajgym.rollout.rendering import TemplateRenderer, VisionRenderer, pixels_of
from trajgym.trajectory import (
    InvalidInput,
    Run,
    Sampling,
    Task,
    UnsupportedModality,
    build_rows,
    image_part,
    validate_row,
)

assert Screen
pytestmark = [
    pytest.mark.local,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
RED, GREEN = picture("red", 56, 56), picture("green", 84, 112, "JPEG")
HASHES = [hashlib.sha256(data).hexdigest() for data in (RED, GREEN)]
IMAGES = dict(zip(HASHES, (RED, GREEN), strict=True))


@pytest.fixture(scope="module", params=[qwen2_vl, smolvlm], ids=["qwen2-vl", "smolvlm"])
def vlm(request: pytest.FixtureRequest) -> TinyVLM:
    made: Callable[[], TinyVLM] = request.param
    return made()


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def policy(vlm: TinyVLM, **options: Any) -> TokenPolicy:
    engine = LocalVisionEngine(vlm.model, vlm.processor, name="tiny")
    return TokenPolicy(engine, VisionRenderer(vlm.processor), max_tokens=12, **options)


def as_template(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages as the processor's own template takes them."""
    plain = []
    for message in messages:
        parts = message["content"]
        parts = [text(parts)] if isinstance(parts, str) else parts
        shown = [{"type": "image"} if p["type"] == "image_url" else p for p in parts]
        plain.append({"role": message["role"], "content": shown})
    return plain


def test_ids_are_those_of_the_processor(vlm: TinyVLM) -> None:
    """Text and pictures together give exactly the ids that the processor makes of the whole."""
    messages = [
        {"role": "system", "content": "look at the red"},
        user(text("click "), image_part(HASHES[0]), text(" or"), image_part(HASHES[1])),
        {"role": "assistant", "content": "the green"},
        user(image_part(HASHES[0]), text("done")),
    ]
    renderer = VisionRenderer(vlm.processor).showing(IMAGES)
    ids = renderer.render(messages)
    whole = vlm.processor.tokenizer.apply_chat_template(
        as_template(messages),
        chat_template=vlm.processor.chat_template,
        tokenize=False,
        add_generation_prompt=True,
    )
    from trajgym.rollout.rendering import open_image

    shown = [open_image(IMAGES[HASHES[i]]) for i in (0, 1, 0)]
    wanted = vlm.processor(
        text=[whole], images=[shown], add_special_tokens=False, return_tensors="np"
    )
    assert ids == wanted["input_ids"][0].tolist()
    found = renderer.images_in(ids, messages)
    assert [image.blob for image in found] == [HASHES[0], HASHES[1], HASHES[0]]


def test_a_prompt_with_pictures_is_extended(vlm: TinyVLM) -> None:
    """A new observation appends to the ids; another picture in the past makes a fresh prompt."""
    renderer = VisionRenderer(vlm.processor).showing(IMAGES)
    messages = [user(text("look"), image_part(HASHES[0]))]
    prompt = renderer.render(messages)
    said = {"role": "assistant", "content": "click"}
    prefix = prompt + renderer.encode_response(said)
    messages += [said, user(image_part(HASHES[1]))]
    longer = renderer.extend(prefix, messages, held=2)
    assert longer is not None
    assert longer[: len(prefix)] == prefix
    assert [image.blob for image in renderer.images_in(longer, messages)] == HASHES
    assert longer == renderer.render(messages)
    with pytest.raises(PolicyRejected, match="placeholders of more than the 1 images"):
        renderer.images_in(longer, messages[:1])


def test_unknown_pictures_and_spelled_placeholders(vlm: TinyVLM) -> None:
    """Bytes that are missing are an error; a placeholder that a page spells stays text."""
    renderer = VisionRenderer(vlm.processor)
    messages = [user(image_part(HASHES[0]))]
    with pytest.raises(PolicyRejected, match=r"not in request\.images"):
        renderer.render(messages)
    with pytest.raises(InvalidInput, match="can't be read"):
        renderer.showing({HASHES[0]: b"no picture"}).render(messages)
    spelled = [user(text("the image_token: " + vlm.processor.image_token))]
    assert not renderer.placeholder_ids.intersection(renderer.render(spelled))


async def test_log_probs_are_those_of_the_pixels(vlm: TinyVLM) -> None:
    """A forward pass over the recorded ids and pixels gives the recorded log-probs."""
    import torch

    messages = [user(text("click "), image_part(HASHES[0]), image_part(HASHES[1]))]
    request = PolicyRequest(session="s", messages=messages, images=IMAGES, seed=5)
    # What a model's folder recommends must not shape what is recorded.
    vlm.model.generation_config.repetition_penalty = 3.0
    async with policy(vlm) as asked:
        reply, again = await asked.sample(request), await asked.sample(request)
    assert reply.sampled is not None
    assert again.sampled is not None
    assert reply.sampled.response_ids.tolist() == again.sampled.response_ids.tolist()  # type: ignore[union-attr]
    ids = np.concatenate([reply.sampled.prompt_ids, reply.sampled.response_ids])
    from trajgym.rollout.rendering import ShownImage

    shown = [ShownImage(ref, IMAGES[ref.blob]) for ref in reply.sampled.images]
    with torch.inference_mode():
        logits = vlm.model(**pixels_of(vlm.processor, ids, shown)).logits[0].float()
    logprobs = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    start = len(reply.sampled.prompt_ids) - 1
    assert np.allclose(logprobs[start:].numpy(), reply.sampled.logprobs, atol=1e-4)
    assert vlm.model.generation_config.repetition_penalty == 3.0


async def test_rows_of_a_run_give_the_model_its_pixels(vlm: TinyVLM, tmp_path: Path) -> None:
    """From the store: the row, the processor and the blobs make the forward that was sampled."""
    import torch

    spec = EnvSpec(id="test/screen-respond")
    await collect(spec, [Task(id="a")], policy(vlm), tmp_path, samples=1)
    with Run(tmp_path) as run:
        tree = next(iter(run.sessions()))
        rows = build_rows(tree, images=True).rows
        assert sum(len(row.turns) for row in rows) == len(tree.turns) == 3
        for row in rows:
            validate_row(row)
            assert len(row_pictures(row, run.blob)) == len(row.images)
            inputs = row_inputs(row, vlm.processor, run.blob)
            with torch.inference_mode():
                logits = vlm.model(**inputs).logits[0].float()
            ids = inputs["input_ids"][0]
            found = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), ids[1:]].numpy()
            mask = row.loss_mask[1:]
            assert np.allclose(found[mask], row.logprobs[1:][mask], atol=1e-4)
        assert max(len(row.images) for row in rows) >= 1


async def test_another_processor_is_refused(vlm: TinyVLM) -> None:
    """Placeholders of other settings than the engine's never meet its pixels."""
    other = qwen2_vl() if "Idefics" in type(vlm.processor).__name__ else smolvlm()
    mixed = TokenPolicy(
        LocalVisionEngine(other.model, other.processor), VisionRenderer(vlm.processor)
    )
    request = PolicyRequest(
        session="s", messages=[user(image_part(HASHES[0]))], images=IMAGES, seed=5
    )
    async with mixed:
        with pytest.raises(UnsupportedModality, match="use the same one for renderer"):
            await mixed.sample(request)


async def test_placeholders_without_pixels_are_refused(vlm: TinyVLM) -> None:
    """A text engine is not given placeholders, a text renderer makes none, a text row has none."""
    messages = [user(image_part(HASHES[0]))]
    request = PolicyRequest(session="s", messages=messages, images=IMAGES, seed=5)
    async with TokenPolicy(LocalEngine(vlm.model), VisionRenderer(vlm.processor)) as blind:
        with pytest.raises(PolicyRejected, match="takes no images"):
            await blind.sample(request)
    if "Idefics" not in type(vlm.processor).__name__:  # its template takes parts only
        vlm.processor.tokenizer.chat_template = vlm.processor.chat_template
        with pytest.raises(PolicyRejected, match="this renderer supports text only"):
            TemplateRenderer(vlm.processor.tokenizer).render(messages)


async def test_placeholders_are_never_sampled() -> None:
    """An engine whose model wants nothing but placeholders samples something else."""
    import torch

    vlm = qwen2_vl()
    (never,) = [vlm.processor.image_token_id]
    with torch.no_grad():
        vlm.model.lm_head.bias[never] = 50.0
    request = PolicyRequest(
        session="s", messages=[user(image_part(HASHES[0]))], images=IMAGES, seed=5
    )
    async with policy(vlm, sampling=Sampling(temperature=1.0)) as asked:
        reply = await asked.sample(request)
    assert reply.sampled is not None
    assert never not in reply.sampled.response_ids
    assert max(reply.sampled.logprobs) < -20
