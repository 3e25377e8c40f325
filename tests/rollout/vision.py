"""Tiny random vision-language models with real processors: nothing is downloaded."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

__all__ = ["TinyVLM", "picture", "qwen2_vl", "smolvlm"]

_TEXT = ["click look at the red green button", "done x y 0123456789", "system user assistant"]


class TinyVLM(NamedTuple):
    """A model and its processor."""

    model: Any
    processor: Any


def picture(colour: str, width: int = 56, height: int = 56, form: str = "PNG") -> bytes:
    """Return a small encoded image of one colour with a mark in it."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (width, height), colour)
    ImageDraw.Draw(image).rectangle([4, 4, width // 2, height // 2], fill="white")
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


def _tokenizer(specials: list[str], eos: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(_TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos, pad_token=eos)


def _stopping(model: Any, tokenizer: Any) -> Any:
    """Return the model, now inclined to end its answers."""
    import torch

    bias = torch.zeros(model.lm_head.out_features)
    bias[tokenizer.eos_token_id] = 6.0
    model.lm_head.bias = torch.nn.Parameter(bias)
    return model.eval()


_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LINES = (
    "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}"
    "{% if m.content[0].type == 'image' %}:{% else %}: {% endif %}"
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
    "{% elif p.type == 'image' %}<image>{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def qwen2_vl() -> TinyVLM:
    """Return a Qwen2-VL of two layers: as many placeholders as the picture's size asks for."""
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class ImagesOnly(Qwen2VLProcessor):
        """The real one, without video: that needs torchvision."""

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument_name == "video_processor":
                return None
            return super().check_argument_for_proper_class(argument_name, argument)

    specials = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
    specials += ["<|image_pad|>", "<|video_pad|>"]
    tokenizer = _tokenizer(specials, "<|im_end|>")
    images = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 64)
    processor = ImagesOnly(images, tokenizer, chat_template=_CHATML)
    ids = {
        t: tokenizer.convert_tokens_to_ids(t) for t in [*specials, "<|image_pad|>", "<|video_pad|>"]
    }
    torch.manual_seed(0)
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [1, 1, 2],
                "rope_theta": 1e4,
            },
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
        },
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "num_heads": 4,
            "hidden_size": 32,
            "mlp_ratio": 2,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    return TinyVLM(_stopping(Qwen2VLForConditionalGeneration(config), tokenizer), processor)


def smolvlm() -> TinyVLM:
    """Return an Idefics 3 (SmolVLM's family) of two layers: pictures in rows of tiles."""
    import torch
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    tiles = [f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)]
    specials = ["<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>"]
    tokenizer = _tokenizer([*specials, "<global-img>", *tiles], "<end_of_utterance>")
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 56}, max_image_size={"longest_edge": 28}
    )
    processor = Idefics3Processor(images, tokenizer, image_seq_len=1, chat_template=_LINES)
    torch.manual_seed(0)
    config = Idefics3Config(
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 28,
            "patch_size": 14,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )
    return TinyVLM(_stopping(Idefics3ForConditionalGeneration(config), tokenizer), processor)
