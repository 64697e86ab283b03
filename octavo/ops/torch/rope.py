"""Reference implementation of ops/rope.py."""

from __future__ import annotations

import torch

from octavo.ops import rope as schema


@schema.rope.impl("torch")
def rope(x: torch.Tensor, angles: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rotate pairs (i, i + R/2) of every head."""
    half = angles.shape[1] // 2
    cos, sin = angles.unsqueeze(1).split(half, dim=-1)
    heads = x.reshape(x.shape[0], -1, head_dim)
    out = torch.empty_like(heads)
    first, second = heads[..., :half], heads[..., half : 2 * half]
    out[..., :half] = first * cos - second * sin
    out[..., half : 2 * half] = second * cos + first * sin
    if 2 * half < head_dim:
        out[..., 2 * half :] = heads[..., 2 * half :]
    return out.reshape(x.shape)
