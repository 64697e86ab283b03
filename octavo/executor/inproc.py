"""The worker in this process: called directly, or from one thread of its own so that steps overlap with scheduling."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from octavo.scheduler.plan import SchedulerOutput, StepOutput
from octavo.worker.model_runner import Forwarded
from octavo.worker.worker import Worker

__all__ = ["InprocExecutor"]


class InprocExecutor:
    """Runs steps in the caller's thread when `overlap` is off, else in one worker thread, first in first out."""

    def __init__(self, worker: Worker, *, overlap: bool) -> None:
        self.worker = worker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-worker") if overlap else None

    def forward(self, plan: SchedulerOutput) -> Future[Forwarded]:
        """Run or queue a forward."""
        return self._submit(self.worker.forward, plan)

    def sample(self, handle: Future[Forwarded]) -> Future[StepOutput]:
        """Run or queue the sampling of a forward."""
        return self._submit(lambda: self.worker.sample(handle.result()))

    def call(self, name: str, *args: Any) -> Any:
        """Call a worker method after the steps handed over so far."""
        return self._submit(self.worker.call, name, *args).result()

    def close(self) -> None:
        """Finish queued steps and end the thread."""
        if self._thread is not None:
            self._thread.shutdown()

    def _submit(self, function: Any, *args: Any) -> Future[Any]:
        if self._thread is not None:
            return self._thread.submit(function, *args)
        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done
