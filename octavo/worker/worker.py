"""Worker: a model with its KV cache on one device, ready to run steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.attention.backend import AttentionBackend
from octavo.errors import ConfigError
from octavo.kvcache.spec import KVGroup
from octavo.models.base import CausalLM
from octavo.ops.op import Ops
from octavo.sampling.custom import CustomProcessor
from octavo.sampling.sampler import Sampler
from octavo.scheduler.plan import SchedulerOutput, StepOutput
from octavo.worker.batch import BatchBuilder
from octavo.worker.model_runner import Forwarded, ModelRunner
from octavo.worker.request_table import RequestTable

__all__ = ["Worker", "WorkerLimits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """Sizes that a worker's buffers are made for."""

    max_rows: int
    max_model_len: int
    num_blocks: int


class Worker:
    """Allocates the KV cache, binds it to the model's layers, and runs steps."""

    def __init__(
        self,
        model: CausalLM,
        ops: Ops,
        *,
        backend: AttentionBackend,
        groups: Sequence[KVGroup],
        limits: WorkerLimits,
        logprobs_mode: str,
        custom: Sequence[CustomProcessor] = (),
    ) -> None:
        bind_kv(model, backend, groups, limits.num_blocks)
        sizes = tuple(group.spec.block_size for group in groups)
        table = RequestTable(limits.max_rows, limits.max_model_len, sizes)
        sampler = Sampler(
            ops, vocab_size=model.config.vocab_size, logprobs_mode=logprobs_mode, table=table, custom=custom
        )
        builder = BatchBuilder(ops, backend, tuple(groups))
        self.runner = ModelRunner(ops=ops, model=model, table=table, builder=builder, sampler=sampler)

    def forward(self, plan: SchedulerOutput) -> Forwarded:
        """Run a step's forward."""
        return self.runner.forward(plan)

    def sample(self, forwarded: Forwarded) -> StepOutput:
        """Sample what a forward asked for."""
        return self.runner.sample(forwarded)

    def call(self, name: str, *args: Any) -> Any:
        """Run a named administrative method.

        Raises ConfigError for a name this worker does not have.
        """
        raise ConfigError(f"the worker has no method named {name}")


def bind_kv(model: CausalLM, backend: AttentionBackend, groups: Sequence[KVGroup], num_blocks: int) -> None:
    """Allocate the pool and give each attention layer its part.

    The j-th layers of all groups share one pair of tensors: a block id belongs to one group at a time.
    """
    layers = model.attention_layers
    depth = max(len(group.layers) for group in groups)
    tensors = [backend.allocate(groups[0].spec, num_blocks) for _ in range(depth)]
    for index, group in enumerate(groups):
        for place, layer in enumerate(group.layers):
            layers[layer].bind(index, tensors[place], backend)
