"""Reference implementations of ops/activation.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from octavo.ops import activation


@activation.silu_and_mul.impl("torch")
def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """Return silu(first half) * second half."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


@activation.gelu_and_mul.impl("torch")
def gelu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """Return gelu(first half) * second half, erf form."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate).mul_(up)


@activation.gelu_tanh_and_mul.impl("torch")
def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    """Return gelu(first half) * second half, tanh form."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)
