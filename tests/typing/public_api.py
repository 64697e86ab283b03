"""What a type checker must accept of the public API. mypy reads this file (pyproject.toml); nothing runs it."""

from __future__ import annotations

from typing_extensions import assert_type

from octavo.config.engine import EngineConfig
from octavo.errors import ConfigError, InvalidRequestError, OctavoError
from octavo.platforms.base import Platform
from octavo.platforms.cpu import CpuPlatform
from octavo.types import FinishReason, SamplingParams
from octavo.utils.machine import MemoryInfo, ThreadChoice


def configuration_is_typed() -> None:
    """Sections and their fields have types; literals are closed sets."""
    config = EngineConfig.from_flat(max_num_seqs=8)
    assert_type(config, EngineConfig)
    assert_type(config.scheduler.max_num_seqs, int)
    assert_type(config.model.max_model_len, int | None)
    assert_type(config.parallel.op, tuple[str, ...])


def parameters_are_typed() -> None:
    """A request's parameters are keyword-only and typed."""
    params = SamplingParams(temperature=0.0, stop=("\n",), max_tokens=None)
    assert_type(params.stop, tuple[str, ...])
    assert_type(params.seed, int | None)


def errors_are_one_tree(error: InvalidRequestError | ConfigError) -> OctavoError:
    """Whatever octavo raises on purpose is an OctavoError; a wrong value is a ValueError too."""
    as_value: ValueError = error
    return error if as_value is error else OctavoError()


def a_platform_is_a_protocol() -> Platform:
    """The CPU platform has every member that Platform asks for, with its type."""
    platform: Platform = CpuPlatform()
    assert_type(platform.threads(), ThreadChoice)
    assert_type(platform.memory(), MemoryInfo)
    return platform


def an_end_has_a_reason(reason: FinishReason) -> str:
    """Finish reasons are an enum of texts."""
    value: str = reason.value
    return value
