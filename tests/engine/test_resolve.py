"""Every "auto" has one answer, with its reason, and what cannot work is refused."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.config.engine import EngineConfig
from octavo.engine.resolve import ModelLimits, PlatformFacts, Resolved, resolve
from octavo.errors import ConfigError

PLATFORM = PlatformFacts(device="cpu", default_dtype="float32", threads=3, threads_reason="counted")


def _resolve(max_position: int = 4096, default_position: int | None = None, **fields: Any) -> Resolved:
    limits = ModelLimits(architecture="a", max_position=max_position, default_position=default_position or max_position)
    return resolve(EngineConfig.from_flat(**fields), limits, PLATFORM)


def test_nothing_is_left_open() -> None:
    resolved = _resolve()
    config = resolved.config
    assert (config.model.dtype, config.cache.kv_cache_dtype) == ("float32", "f32")
    assert (config.model.max_model_len, config.scheduler.max_num_batched_tokens) == (4096, 2048)
    assert config.parallel.threads == 3
    assert any("counted" in reason for reason in resolved.reasons)
    assert _resolve(threads=2, dtype="bfloat16").config.cache.kv_cache_dtype == "bf16"


def test_given_values_stay() -> None:
    config = _resolve(max_model_len=100, kv_cache_dtype="f16", max_num_batched_tokens=300, threads=1).config
    assert (config.model.max_model_len, config.cache.kv_cache_dtype) == (100, "f16")
    assert (config.scheduler.max_num_batched_tokens, config.parallel.threads) == (300, 1)


def test_a_stretchable_model_opens_at_its_first_length() -> None:
    assert _resolve(131072, 4096).config.model.max_model_len == 4096
    assert _resolve(131072, 4096, max_model_len=9000).config.model.max_model_len == 9000


def test_a_length_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_model_len=5000 is beyond the 4096 tokens") as caught:
        _resolve(max_model_len=5000)
    assert caught.value.field == "max_model_len"


def test_the_token_budget_holds_a_token_for_each_request() -> None:
    assert _resolve(max_num_seqs=4096).config.scheduler.max_num_batched_tokens == 4096
    with pytest.raises(ConfigError, match="max_num_batched_tokens=8 is less than max_num_seqs=16"):
        _resolve(max_num_batched_tokens=8, max_num_seqs=16)


def test_without_chunks_a_whole_prompt_fits_a_step() -> None:
    assert _resolve(enable_chunked_prefill=False).config.scheduler.max_num_batched_tokens == 4096
    with pytest.raises(ConfigError, match="without chunked prefill"):
        _resolve(enable_chunked_prefill=False, max_num_batched_tokens=1000)
