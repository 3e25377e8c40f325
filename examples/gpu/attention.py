"""Attention over packed trees of samples, for machines without FlashAttention 3 from the Hub.

TRL's asynchronous trainer downloads its kernel when it first needs it. `install` replaces it with
one of two others, both with gradients:

- ``flash``: PyTorch's own FlashAttention over pieces of different lengths;
- ``mask``: scaled dot-product attention with one mask over the whole row, on any device.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any


def install(kind: str = "auto") -> str:
    """Replace TRL's attention, and return the kind; call it before the trainer is constructed.

    Args:
        kind: ``flash``, ``mask``, or ``auto``, which selects ``flash`` if this device supports it
            and its values and gradients agree with a plain computation.
    """
    from trl.experimental.async_grpo import packing

    if kind == "auto":
        kind = "flash" if _flash_works() else "mask"
    if kind == "flash":
        kernels = SimpleNamespace(flash_attn_varlen_func=flash)
        packing._flash_attn = lambda: kernels
    else:
        packing.tree_attention = masked
    return kind


def flash(
    query: Any,
    key: Any,
    value: Any,
    query_starts: Any,
    key_starts: Any,
    longest_query: int,
    longest_key: int,
    *,
    softmax_scale: float | None = None,
    **_: Any,
) -> Any:
    """Compute causal attention within each piece; its last query attends to all of its keys.

    Args:
        query: ``[N, heads, size]``, float16 or bfloat16 like ``key`` and ``value``.
        key: ``[K, key_heads, size]``; ``key_heads`` divides ``heads``.
        value: same shape as ``key``.
        query_starts: int32 ``[pieces + 1]``.
        key_starts: int32 ``[pieces + 1]``.
        longest_query: maximum number of queries of a piece.
        longest_key: maximum number of keys of a piece.
        softmax_scale: defaults to ``1 / sqrt(size)``.
    """
    import torch

    repeat = query.shape[1] // key.shape[1]
    if repeat > 1:
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    return torch.ops.aten._flash_attention_forward(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        query_starts,
        key_starts,
        longest_query,
        longest_key,
        0.0,
        True,  # noqa: FBT003 - causal; a positional parameter of the operator
        False,  # noqa: FBT003 - no debug mask
        scale=softmax_scale,
    )[0]


class _Mask:
    """The mask of the current row, which all layers of a forward pass share."""

    starts: Any = None
    mask: Any = None


def masked(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    tree_kv_index: Any,
    tree_cu_seqlens_q: Any,
    tree_cu_seqlens_k: Any,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """Replacement of TRL's ``tree_attention``: a token attends to itself and its ancestors.

    In a row, ancestors come before their descendants.
    """
    import torch
    from transformers.integrations.flash_attention import get_target_dtype

    del attention_mask
    if _Mask.starts is not tree_cu_seqlens_q:
        _Mask.starts = tree_cu_seqlens_q
        _Mask.mask = tree_mask(tree_kv_index, tree_cu_seqlens_q, tree_cu_seqlens_k)
    dtype = get_target_dtype(query, module) or query.dtype
    query, key, value = (part.to(dtype) for part in (query, key, value))
    repeat = query.shape[1] // key.shape[1]
    if repeat > 1:
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=_Mask.mask, scale=scaling
    )
    return out.transpose(1, 2), None


def tree_mask(kv_index: Any, query_starts: Any, key_starts: Any) -> Any:
    """Return bool ``[N, N]``: whether a token of a packed row (first axis) attends to another."""
    import torch

    pieces, n = len(query_starts) - 1, int(query_starts[-1])
    number = torch.arange(pieces, device=kv_index.device)
    path = torch.zeros(pieces, n, dtype=torch.bool, device=kv_index.device)
    path[number.repeat_interleave(key_starts.diff()), kv_index] = True
    seen = path[number.repeat_interleave(query_starts.diff())]
    return seen.tril()


def plain(query: Any, key: Any, value: Any, query_starts: Any, key_starts: Any) -> Any:
    """Return the same as :func:`flash`, by a plain computation."""
    import torch

    repeat, out = query.shape[1] // key.shape[1], []
    edges = zip(query_starts.tolist(), key_starts.tolist(), strict=True)
    for (q0, k0), (q1, k1) in itertools.pairwise(edges):
        q = query[q0:q1].transpose(0, 1)
        k = key[k0:k1].repeat_interleave(repeat, 1).transpose(0, 1)
        v = value[k0:k1].repeat_interleave(repeat, 1).transpose(0, 1)
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool, device=q.device)
        hidden = ~seen.tril(k1 - k0 - (q1 - q0))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        out.append((scores.masked_fill(hidden, -math.inf).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(out)


def _flash_works() -> bool:
    """Compare values and gradients with a plain computation on a small row of the model's shape."""
    import torch

    if not torch.cuda.is_available():
        return False
    torch.manual_seed(0)
    query_starts = torch.tensor([0, 5, 8, 20], dtype=torch.int32, device="cuda")
    key_starts = torch.tensor([0, 5, 13, 30], dtype=torch.int32, device="cuda")
    sizes = ((20, 9), (30, 3), (30, 3))
    parts = [torch.randn(n, h, 64, device="cuda", dtype=torch.bfloat16) for n, h in sizes]
    weights = torch.randn(20, 9, 64, device="cuda")
    found = []
    try:
        for exact in (False, True):
            given = [p.float() if exact else p.clone() for p in parts]
            for part in given:
                part.requires_grad_()
            if exact:
                out = plain(*given, query_starts, key_starts)
            else:
                out = flash(*given, query_starts, key_starts, 12, 17)
            (out.float() * weights).sum().backward()
            found.append([out, *(part.grad for part in given)])
    except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
        print(f"flash attention is not usable here: {error}", flush=True)
        return False
    apart = [float((a.float() - b).abs().max()) for a, b in zip(*found, strict=True)]
    print(f"flash and plain attention differ by {apart} (values, gradients)", flush=True)
    return max(apart) < 0.1
