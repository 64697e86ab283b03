"""EngineConfig: the sections, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.config.sections import CacheConfig, ModelConfig, ObservabilityConfig, ParallelConfig, SchedulerConfig

__all__ = ["EngineConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Everything an engine is configured with."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
