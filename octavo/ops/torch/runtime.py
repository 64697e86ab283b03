"""torch's process-wide settings."""

from __future__ import annotations

import torch

from octavo.ops import runtime


@runtime.set_threads.impl("torch")
def set_threads(count: int) -> None:
    """Set the size of torch's intra-op pool."""
    torch.set_num_threads(count)
