"""EngineConfig: the sections, as one frozen value."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from octavo.config.field import Field, section_fields
from octavo.config.sections import CacheConfig, ModelConfig, ObservabilityConfig, ParallelConfig, SchedulerConfig
from octavo.errors import ConfigError

__all__ = ["EngineConfig", "all_fields", "unknown_name"]

SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "parallel": ParallelConfig,
    "observability": ObservabilityConfig,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Everything an engine is configured with."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)

    def __post_init__(self) -> None:
        """Check that each section is one."""
        for item in fields(self):
            value = getattr(self, item.name)
            if type(value) is not SECTIONS[item.name]:
                raise ConfigError(
                    f"{item.name}={value!r} is not a {SECTIONS[item.name].__name__}; "
                    "for flat names use EngineConfig.from_flat(max_num_seqs=8, ...)",
                    field=item.name,
                )

    @classmethod
    def from_flat(cls, **values: Any) -> EngineConfig:
        """Build a configuration from field names of any section: from_flat(max_num_seqs=8, dtype="bfloat16").

        A list is taken for a field of several texts.
        Raises ConfigError for an unknown name (with the nearest known one), a wrong type or a value out of bounds.
        """
        known = all_fields()
        sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        for name, value in values.items():
            if name not in known:
                raise unknown_name(name, known)
            section, declared = known[name]
            sections[section][name] = tuple(value) if declared.kind == "tuple" and isinstance(value, list) else value
        return cls(**{name: SECTIONS[name](**given) for name, given in sections.items()})


def all_fields() -> dict[str, tuple[str, Field]]:
    """Return name -> (section, field) over all sections; names are unique, which a test checks."""
    return {
        declared.name: (section, declared) for section, kind in SECTIONS.items() for declared in section_fields(kind)
    }


def unknown_name(name: str, known: Mapping[str, object]) -> ConfigError:
    """Make the error for a name that no field has, with the nearest that one has."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "docs/config.md lists all"
    return ConfigError(f"there is no configuration field named {name!r}; {hint}", field=name)
