"""Gates: each lowers how many tokens of a request a step computes, or vetoes it. The loop knows none by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.config.sections import SchedulerConfig
from octavo.kvcache.hashing import BlockHash
from octavo.kvcache.manager import KVCacheManager
from octavo.scheduler.cost import StepCost
from octavo.scheduler.plan import StepPlan
from octavo.scheduler.request import Request, RequestStatus

__all__ = ["Gate", "SharedPrefixGate", "make_gates"]

UNKNOWN_COST_TOKENS = 128  # prefill beside decodes before anything is measured


class Gate(Protocol):
    """One concern. `limit` is asked for each request in turn; admit and release tell of its coming and going."""

    name: str
    is_prefill_only: bool  # skipped for requests that compute their last token
    is_shared: bool  # what it limits is one thing for all: a waiting request it holds back holds back those behind it

    def limit(self, request: Request, count: int, plan: StepPlan) -> int:
        """Return how many of `count` tokens may be computed now; 0 holds the request back."""
        ...

    def admit(self, request: Request) -> None:
        """Note that the request runs from now on."""
        ...

    def release(self, request: Request) -> None:
        """Note that the request stopped running."""
        ...


class _Stateless:
    """A gate that needs no news."""

    def admit(self, request: Request) -> None:
        """Nothing to note."""

    def release(self, request: Request) -> None:
        """Nothing to note."""


class BudgetGate(_Stateless):
    """The step's token budget."""

    name = "budget"
    is_prefill_only = False
    is_shared = True

    def limit(self, request: Request, count: int, plan: StepPlan) -> int:
        """Return what is left of the budget."""
        return min(count, plan.budget_left)


class ContextGate(_Stateless):
    """Never compute past the last token a request may have."""

    name = "context"
    is_prefill_only = False
    is_shared = False

    def limit(self, request: Request, count: int, plan: StepPlan) -> int:
        """Hold a request back whose last allowed token is already on its way."""
        return count if len(request.tokens) + request.num_expected < request.max_length else 0


class ChunkGate(_Stateless):
    """How a prompt is cut: whole or not at all, or in chunks of at most a threshold while others run."""

    name = "chunk"
    is_prefill_only = True
    is_shared = True

    def __init__(self, threshold: int, is_chunked: bool) -> None:
        self.threshold = threshold
        self.is_chunked = is_chunked

    def limit(self, request: Request, count: int, plan: StepPlan) -> int:
        """Return a chunk."""
        if not self.is_chunked:
            return count if count == request.num_pending else 0
        return min(count, self.threshold) if self.threshold and plan.num_running > 1 else count


class CostGate(_Stateless):
    """Bound how much prefill stretches a step while streams run: their gaps grow by a known factor at most."""

    name = "cost"
    is_prefill_only = True
    is_shared = True

    def __init__(self, cost: StepCost, stretch: float, least: int) -> None:
        self.cost = cost
        self.stretch = stretch
        self.least = least  # tokens: a prefill always moves on

    def limit(self, request: Request, count: int, plan: StepPlan) -> int:
        """Return what is left of the step's prefill budget."""
        if not plan.num_decodes:
            return count
        budget = max(self.least, self.cost.prefill_budget(self.stretch, UNKNOWN_COST_TOKENS))
        return min(count, max(0, budget - plan.num_prefill_tokens))


class SharedPrefixGate:
    """Hold a waiting request whose next prefix block a running one is computing: it will be a hit."""

    name = "shared prefix"
    is_prefill_only = True
    is_shared = False

    def __init__(self, cache: KVCacheManager) -> None:
        self.cache = cache
        self._computing: dict[BlockHash, Request] = {}

    def limit(self, request: Request, count: int, plan: StepPlan) -> int:
        """Return 0 while another request is computing the next block of this one's prefix."""
        if request.status is RequestStatus.RUNNING or not request.reads_cache:
            return count
        index = plan.num_hit_blocks
        if (index + 1) * self.cache.block_size >= len(request.tokens) or index >= len(request.blocks.hashes):
            return count
        owner = self._computing.get(request.blocks.hashes[index])
        if owner is None or owner.status is not RequestStatus.RUNNING or owner.blocks.num_committed > index:
            return count
        return 0

    def admit(self, request: Request) -> None:
        """Note the blocks that an admitted request is about to compute."""
        for block_hash in request.blocks.hashes[request.blocks.num_committed :]:
            self._computing.setdefault(block_hash, request)

    def release(self, request: Request) -> None:
        """Forget the request's blocks."""
        for block_hash in request.blocks.hashes:
            if self._computing.get(block_hash) is request:
                del self._computing[block_hash]


def make_gates(config: SchedulerConfig, cache: KVCacheManager, cost: StepCost) -> Sequence[Gate]:
    """Return the gates that a configuration makes active."""
    gates: list[Gate] = [ContextGate(), BudgetGate()]
    if config.long_prefill_threshold or not config.enable_chunked_prefill:
        gates.append(ChunkGate(config.long_prefill_threshold, config.enable_chunked_prefill))
    if config.max_step_stretch and config.enable_chunked_prefill:
        gates.append(CostGate(cost, max(1.0, config.max_step_stretch), cache.block_size))
    if config.prefix_wait and cache.is_caching:
        gates.append(SharedPrefixGate(cache))
    return gates
