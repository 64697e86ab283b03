"""Reference implementations of ops/elementwise.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from octavo.ops import elementwise

__all__ = ["DTYPES"]

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@elementwise.from_host.impl("torch")
def from_host(array: np.ndarray, dtype: str | None = None) -> torch.Tensor:
    """Wrap the array; copy only to convert, or when it is read-only."""
    if not array.flags.writeable:
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.to(DTYPES[dtype])


@elementwise.to_host.impl("torch")
def to_host(x: torch.Tensor) -> np.ndarray:
    """View the tensor as a numpy array."""
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy(force=True)


@elementwise.add.impl("torch")
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x + y."""
    return x + y


@elementwise.scale.impl("torch")
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return x times the factor in x's dtype."""
    return x * torch.tensor(factor, dtype=x.dtype)


@elementwise.softcap.impl("torch")
def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap * tanh(x / cap)."""
    return (x / cap).tanh_().mul_(cap)


@elementwise.split.impl("torch")
def split(x: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return column views."""
    return x.split(list(sizes), dim=-1)


@elementwise.take_rows.impl("torch")
def take_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return x[index]."""
    return x.index_select(0, index)
