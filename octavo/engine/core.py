"""EngineCore: inbox -> schedule -> forward -> sample -> update -> outbox, one loop, any number of steps in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from octavo.engine.messages import EngineOutput, EngineRequest
from octavo.executor.base import Executor
from octavo.scheduler.plan import SchedulerOutput, StepOutput
from octavo.scheduler.scheduler import Scheduler

__all__ = ["EngineCore"]


class EngineCore:
    """Owned by one thread. `depth` steps may be in flight: 1 is synchronous, 2 overlaps scheduling with compute."""

    def __init__(
        self, scheduler: Scheduler, executor: Executor, *, depth: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.depth = depth
        self.clock = clock
        self._inflight: deque[tuple[SchedulerOutput, Future[StepOutput]]] = deque()
        self._outbox: list[EngineOutput] = []
        self._last_update = 0.0

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises CapacityError when the queue is full, InvalidRequestError when the request can never fit the KV cache.
        """
        self.scheduler.add(request)

    def abort(self, ids: Iterable[str]) -> None:
        """End these requests in whatever state they are; their terminal outputs come with the next step."""
        self._outbox.extend(self.scheduler.abort(ids))

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do or to say."""
        return bool(self._outbox or self._inflight or self.scheduler.has_work)

    def step(self) -> list[EngineOutput]:
        """Launch what can be launched, wait for the oldest step in flight, and return what it brought."""
        self._outbox.extend(self.scheduler.expire(self.clock()))
        while len(self._inflight) < self.depth:
            plan = self.scheduler.schedule()
            if plan is None:
                break
            if not self._inflight:
                self._last_update = self.clock()
            self._inflight.append((plan, self.executor.sample(self.executor.forward(plan))))
        if self._inflight:
            plan, future = self._inflight.popleft()
            output = future.result()
            now = self.clock()
            self._outbox.extend(self.scheduler.update(plan, output, step_s=now - self._last_update))
            self._last_update = now
        outputs, self._outbox = self._outbox, []
        return outputs

    def call(self, name: str, *args: Any) -> Any:
        """Run an administrative method by name: stats, reset_prefix_cache, or one of the worker's."""
        match name:
            case "stats":
                return self.scheduler.stats()
            case "reset_prefix_cache":
                return self.scheduler.reset_prefix_cache()
        return self.executor.call(name, *args)

    def close(self) -> None:
        """Wait for steps in flight and free the executor."""
        while self._inflight:
            self._inflight.popleft()[1].result()
        self.executor.close()
