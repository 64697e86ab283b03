"""Executor: where steps run. The engine core is handed one and knows nothing of workers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from octavo.scheduler.plan import SchedulerOutput, StepOutput

__all__ = ["Executor"]


class Executor(Protocol):
    """Runs steps in the order they are handed over. Forward and sampling are two calls, so that what sampling
    needs (a grammar mask) can be made while the forward runs.
    """

    def forward(self, plan: SchedulerOutput) -> Any:
        """Start a step's forward; returns a handle for sample()."""
        ...

    def sample(self, handle: Any) -> Future[StepOutput]:
        """Sample what the forward asked for."""
        ...

    def call(self, name: str, *args: Any) -> Any:
        """Call a worker method between steps, and return its result."""
        ...

    def close(self) -> None:
        """Finish what runs and free everything."""
        ...
