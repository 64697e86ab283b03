"""The waiting queue: kept in order of a key that does not change while a request waits."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from octavo.engine.messages import EngineRequest
from octavo.scheduler.request import Request

__all__ = ["RequestQueue", "order_key"]


def order_key(request: EngineRequest, sequence: int, *, policy: str, ageing_s: float) -> tuple[float, int]:
    """Return the place of a request: first come, or by priority with ageing.

    Ageing lowers priority * ageing_s by the seconds waited, for all alike; so the order is that of this constant.
    """
    if policy == "priority":
        return (request.priority * ageing_s + request.arrival, sequence)
    return (0.0, sequence)


class RequestQueue:
    """Requests in order of their key. Preempted ones keep theirs, so they come before all that came after them."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Go through the requests as they were when the walk began a step; those taken out meanwhile are skipped."""
        index = 0
        while index < len(self._requests):
            request = self._requests[index]
            yield request
            if index < len(self._requests) and self._requests[index] is request:
                index += 1

    def add(self, request: Request) -> None:
        """Put a request in its place."""
        bisect.insort(self._requests, request, key=_order)

    def remove(self, request: Request) -> None:
        """Take a request out."""
        index = bisect.bisect_left(self._requests, request.order, key=_order)
        assert self._requests[index] is request, f"{request.wire.id} is not waiting"
        del self._requests[index]


def _order(request: Request) -> tuple[float, int]:
    return request.order
