"""What a backend needs to know about the process."""

from __future__ import annotations

from octavo.ops.op import op

__all__ = ["set_threads"]


@op
def set_threads(count: int) -> None:
    """Use `count` threads for each operation from now on, in the whole process."""
