"""Fields: one declaration gives type, bounds and text form."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.engine import SECTIONS, EngineConfig, all_fields
from octavo.config.field import parse_number, parse_text, section_fields
from octavo.config.sections import CacheConfig, SchedulerConfig
from octavo.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("32k", "tokens", 32_000),
        ("32K", "tokens", 32_768),
        ("1.5m", "count", 1_500_000),
        ("1.1k", "tokens", 1_100),
        ("2M", "tokens", 2 << 20),
        ("1_000", "tokens", 1_000),
        ("1e3", "tokens", 1_000),
        ("2GiB", "bytes", 2 << 30),
        ("500MB", "bytes", 500_000_000),
        ("500 mb", "bytes", 500_000_000),
        ("4g", "bytes", 4 << 30),
        ("0.5GiB", "bytes", 1 << 29),
        ("7", None, 7),
        ("-1", None, -1),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, unit: str | None, value: int) -> None:
    assert parse_number(text, unit) == value


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", "tokens"),
        ("k", "tokens"),
        ("32x", "tokens"),
        ("32k", None),
        ("32Kib", "tokens"),
        ("2Xb", "bytes"),
        ("1.0001k", "tokens"),
        ("0.3", None),
        ("1e999999999", "tokens"),
        ("9" * 40, "tokens"),
        ("nan", "bytes"),
        ("0x10", None),
    ],
)
def test_what_is_no_whole_number_is_refused(text: str, unit: str | None) -> None:
    with pytest.raises(ValueError, match="number|digits|unit"):
        parse_number(text, unit)


@given(st.integers(0, 10**15))
def test_plain_digits_mean_themselves(value: int) -> None:
    assert parse_number(str(value), "bytes") == parse_number(str(value), "tokens") == parse_number(str(value)) == value


@given(st.integers(0, 10**6), st.integers(0, 999))
def test_decimal_fractions_scale_exactly(whole: int, thousandths: int) -> None:
    assert parse_number(f"{whole}.{thousandths:03d}k", "tokens") == whole * 1000 + thousandths


def test_field_names_are_unique_over_sections() -> None:
    names = [declared.name for section in SECTIONS.values() for declared in section_fields(section)]
    assert len(names) == len(set(names)) == len(all_fields())


def test_every_default_is_allowed_and_every_help_is_a_sentence() -> None:
    EngineConfig()
    for _, declared in all_fields().values():
        declared.check(declared.default)
        assert declared.help.endswith("."), declared.name


def test_bounds_are_inclusive() -> None:
    assert SchedulerConfig(max_num_seqs=1).max_num_seqs == 1
    assert SchedulerConfig(max_num_seqs=4096).max_num_seqs == 4096
    for value in (0, 4097):
        with pytest.raises(ConfigError, match=rf"max_num_seqs={value} is not allowed.*from 1 to 4096"):
            SchedulerConfig(max_num_seqs=value)


@pytest.mark.parametrize("value", [True, 1.0, "8", None])
def test_an_integer_field_takes_integers_only(value: object) -> None:
    with pytest.raises(ConfigError, match="max_num_seqs") as caught:
        EngineConfig.from_flat(max_num_seqs=value)
    assert caught.value.field == "max_num_seqs"


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.5", True, 0.96])
def test_a_float_field_takes_finite_numbers_within_bounds(value: object) -> None:
    with pytest.raises(ConfigError, match="memory_fraction"):
        EngineConfig.from_flat(memory_fraction=value)


def test_replace_validates_too() -> None:
    with pytest.raises(ConfigError, match="block_size"):
        dataclasses.replace(CacheConfig(), block_size=0)


def test_sections_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CacheConfig().block_size = 32


def test_flat_names_reach_their_sections() -> None:
    config = EngineConfig.from_flat(max_num_seqs=8, dtype="bfloat16", op=["rms_norm=torch"], kv_cache_bytes=1 << 30)
    assert config.scheduler.max_num_seqs == 8
    assert config.model.dtype == "bfloat16"
    assert config.parallel.op == ("rms_norm=torch",)
    assert config.cache.kv_cache_bytes == 1 << 30


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'max_num_seq'; did you mean max_num_seqs"):
        EngineConfig.from_flat(max_num_seq=8)
    with pytest.raises(ConfigError, match="docs/config.md"):
        EngineConfig.from_flat(zzz=8)


def test_a_section_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a CacheConfig"):
        EngineConfig(cache=SchedulerConfig())


@pytest.mark.parametrize("word", ["none", "auto", "AUTO"])
def test_an_open_field_can_be_left_open_in_words(word: str) -> None:
    assert parse_text(all_fields()["max_model_len"][1], word) is None


def test_a_closed_field_has_no_auto() -> None:
    with pytest.raises(ConfigError, match="--max-num-seqs 'auto' is not allowed"):
        parse_text(all_fields()["max_num_seqs"][1], "auto")
