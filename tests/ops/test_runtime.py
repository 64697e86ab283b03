"""Process-wide settings reach the backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from octavo.ops import op


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Put torch's thread count back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2])
def test_set_threads_sets_the_size_of_the_pool(count: int) -> None:
    op.load("torch")
    op.bind(["torch"]).set_threads(count)
    assert torch.get_num_threads() == count
