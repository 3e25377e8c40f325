"""Images with TRL: pictures beside conversations go in, placeholders alone do not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.pictures import COLOURS, Screen, click, picture
from tests.rollout.vision import TinyVLM, qwen2_vl
from trajgym.adapters.trl import GRPORollouts, sft_dataset, sft_token_dataset
from trajgym.adapters.trl._group_samples import SampleBuilder
from trajgym.envs import EnvSpec
from trajgym.rewards import get_deriver
from trajgym.rollout import ScriptedPolicy, SealedGroup, TokenPolicy, collect
from trajgym.trajectory import Run, Task, UnsupportedModality, blob_hashes

assert Screen
SCRIPT: Any = [click(30, 40), click(50, 20), click(5, 5)]


@pytest.fixture(scope="module")
def vlm() -> TinyVLM:
    return qwen2_vl()


async def recorded(path: Path, policy: Any) -> Path:
    """Return a run of two solved sessions that saw three pictures each."""
    await collect(EnvSpec(id="test/screen"), [Task(id="a")], policy, path, samples=2)
    return path


async def test_conversations_with_pictures_train_a_vision_model(
    vlm: TinyVLM, tmp_path: Path
) -> None:
    """TRL's own collator makes pixels of the column, and the model's loss comes out of a step."""
    from trl import SFTConfig, SFTTrainer

    with Run(await recorded(tmp_path / "run", ScriptedPolicy(SCRIPT))) as run:
        made = sft_dataset(run.sessions(), run.groups(), blobs=run.blob)
    assert made.column_names == ["messages", "tools", "images"]
    pictures = made[0]["images"]
    assert [image.getpixel((40, 40)) for image in pictures] == [(255, 0, 0), (0, 128, 0)]
    roles = [message["role"] for message in made[0]["messages"]]
    assert roles[2:4] == ["tool", "user"]
    trainer = SFTTrainer(
        model=vlm.model,
        args=SFTConfig(
            str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=2,
            max_length=None,
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
        ),
        train_dataset=made.remove_columns("tools"),
        processing_class=vlm.processor,
    )
    batch = trainer.data_collator([trainer.train_dataset[0]])
    assert len(batch["image_grid_thw"]) == 2
    placeholders = int((batch["input_ids"] == vlm.processor.image_token_id).sum())
    assert placeholders == int(batch["image_grid_thw"].prod(-1).sum()) // 4
    assert trainer.train().training_loss > 0


async def test_doors_for_ids_alone_refuse_pictures(tmp_path: Path) -> None:
    """Token data sets and the asynchronous trainer have no pixels: sessions with images raise."""
    with Run(await recorded(tmp_path / "run", TokenPolicy.fake(SCRIPT))) as run:
        sessions, groups = list(run.sessions()), list(run.groups())
        assert run.blob(sessions[0].turns[1].tokens.images[0].blob).data == picture(COLOURS[0])  # type: ignore[union-attr]
    with pytest.raises(UnsupportedModality, match="must not be trained without them"):
        sft_token_dataset(sessions, groups, allow=["synthetic"])
    with pytest.raises(UnsupportedModality, match=r"blobs=run\.blob to sft_dataset"):
        sft_dataset(sessions, groups)
    build = SampleBuilder(get_deriver("grpo"), "auto", allow=["synthetic"])
    with pytest.raises(UnsupportedModality, match="environment_factory of GRPORollouts"):
        build(SealedGroup(groups[0], sessions))


@pytest.fixture(scope="module")
def clicker() -> TinyVLM:
    """A tiny vision model with TRL's Qwen3-VL template that clicks once and then says done."""
    import torch
    import trl
    from transformers.utils import get_json_schema

    from trajgym.rollout.rendering import open_image

    made = qwen2_vl()
    template = Path(trl.__file__).parent / "chat_templates/qwen3_vl.jinja"
    made.processor.chat_template = template.read_text()
    made.processor.tokenizer.padding_side = "left"
    with tempfile.TemporaryDirectory() as folder, _spec(Path(folder)) as spec:
        schema = get_json_schema(spec.environment_factory.click.__get__(object()))
    call = {"type": "function", "function": {"name": "click", "arguments": {"x": 3, "y": 4}}}
    seen = [{"type": "text", "text": "you see"}, {"type": "image"}]
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "Click near the top."}]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "click", "content": seen},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]
    text = made.processor.tokenizer.apply_chat_template(
        conversation,
        tools=[schema],
        chat_template=made.processor.chat_template,
        tokenize=False,
    )
    pictures = [open_image(picture(COLOURS[0]))]
    inputs = dict(made.processor(text=[text], images=pictures, return_tensors="pt"))
    optimizer = torch.optim.Adam(made.model.parameters(), lr=5e-3)
    for _ in range(200):
        made.model(**inputs, labels=inputs["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return made


def _spec(folder: Path, samples: int = 2) -> GRPORollouts:
    return GRPORollouts(EnvSpec(id="test/screen"), [Task(id="a")], folder / "run", samples=samples)


def test_screenshots_train_through_the_environment_factory(
    clicker: TinyVLM, tmp_path: Path
) -> None:
    """TRL's own GRPO trainer shows a vision model what our tools return, pixels included."""
    from trl import GRPOConfig, GRPOTrainer

    seen: list[int] = []

    def watch(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
        if kwargs.get("pixel_values") is not None:
            ids = kwargs["input_ids"]
            seen.append(int((ids == clicker.processor.image_token_id).sum()))

    clicker.model.register_forward_pre_hook(watch, with_kwargs=True)
    with _spec(tmp_path) as spec:
        trainer = GRPOTrainer(
            model=clicker.model,
            reward_funcs=spec.reward_funcs,
            args=GRPOConfig(
                str(tmp_path),
                per_device_train_batch_size=2,
                num_generations=2,
                max_steps=1,
                max_completion_length=400,
                max_tool_calling_iterations=2,
                temperature=0.1,
                report_to="none",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                save_strategy="no",
                disable_tqdm=True,
                logging_steps=1,
            ),
            train_dataset=spec.train_dataset,
            processing_class=clicker.processor,
            environment_factory=spec.environment_factory,
        )
        trainer.train()
        log = trainer.state.log_history[0]
    assert log["tools/call_frequency"] > 0
    assert seen
    assert min(seen) > 0
    with Run(tmp_path / "run/tools") as run:
        shown = [m for tree in run.sessions() for turn in tree.turns for m in turn.observation]
    assert list(blob_hashes(shown))
