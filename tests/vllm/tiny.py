"""A model that is small enough for a CPU, and large enough for vLLM's attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.rollout.tokenizers import tokenizer

if TYPE_CHECKING:
    from pathlib import Path


class Tiny(NamedTuple):
    """A model in a folder."""

    path: str
    tokenizer: Any

    def model(self) -> Any:
        """Load a fresh copy."""
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32).eval()


def make(folder: Path) -> Tiny:
    """Write a Llama of two layers with random weights, whose tokens are far from equally likely."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    words = tokenizer("chatml")
    words.eos_token = None  # only the stop ids of a request end a response
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return Tiny(str(folder), words)
