"""Reference implementations of ops/norm.py."""

from __future__ import annotations

import torch

from octavo.ops import norm


@norm.rms_norm.impl("torch")
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise rows in f32."""
    exact = x.float()
    scale = (exact * exact).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (exact * scale).mul_(weight).to(x.dtype)


@norm.head_rms_norm.impl("torch")
def head_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise each head of each row."""
    heads = x.reshape(x.shape[0], -1, weight.shape[0])
    return rms_norm(heads, weight, eps).reshape(x.shape)
