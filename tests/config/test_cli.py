"""Flags, help, configuration files and docs are derived from the fields."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.config import docs
from octavo.config.cli import add_engine_arguments, engine_config_from_args
from octavo.config.engine import EngineConfig, all_fields
from octavo.config.field import Field
from octavo.errors import ConfigError
from octavo.utils.arguments import ArgumentParser


def parse(*args: str) -> EngineConfig:
    """Parse flags into a configuration."""
    parser = ArgumentParser(prog="octavo test")
    parser.add_argument("--other")
    add_engine_arguments(parser)
    return engine_config_from_args(parser.parse_args(args))


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Parse flags that are wrong; return the message."""
    with pytest.raises(SystemExit) as caught:
        parse(*args)
    assert caught.value.code == 2
    return capsys.readouterr().err


def value_of(config: EngineConfig, name: str) -> Any:
    """Return a field's value by its flat name."""
    section, _ = all_fields()[name]
    return getattr(getattr(config, section), name)


def another(declared: Field) -> tuple[list[str], Any]:
    """Return arguments that flip a field, and the value they mean."""
    match declared.kind:
        case "bool":
            return [f"--no-{declared.flag[2:]}" if declared.default else declared.flag], not declared.default
        case "choice":
            other = next(choice for choice in declared.choices if choice != declared.default)
            return [declared.flag, other], other
        case "int":
            value = int((declared.default or declared.ge or 0) + 1)
            return [declared.flag, str(value)], value
        case "float":
            value = min(declared.default + 0.25, declared.le or declared.default + 0.25)
            return [declared.flag, str(value)], value
        case "tuple":
            return [declared.flag, "a,b", declared.flag, "c"], ("a", "b", "c")
        case _:
            return [declared.flag, "some text"], "some text"


@pytest.mark.parametrize("name", sorted(all_fields()))
def test_every_flag_flips_its_field_and_no_other(name: str) -> None:
    declared = all_fields()[name][1]
    args, value = another(declared)
    config = parse(*args)
    for other in all_fields():
        assert value_of(config, other) == (value if other == name else value_of(EngineConfig(), other)), other


def test_no_flags_means_the_defaults() -> None:
    assert parse() == EngineConfig()


def test_human_numbers_are_flags_values() -> None:
    config = parse("--max-model-len=32K", "--kv-cache-bytes", "2GiB", "--max-num-batched-tokens", "1.5m")
    assert config.model.max_model_len == 32768
    assert config.cache.kv_cache_bytes == 2 << 30
    assert config.scheduler.max_num_batched_tokens == 1_500_000


def test_underscores_in_a_flag_are_dashes_and_values_stay() -> None:
    config = parse("--max_num_seqs", "7", "--chat_template=my_file_1")
    assert config.scheduler.max_num_seqs == 7
    assert config.model.chat_template == "my_file_1"


def test_a_switch_given_twice_follows_the_last() -> None:
    assert parse("--no-prefix-wait", "--prefix-wait").scheduler.prefix_wait


def test_an_unknown_flag_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown option '--max-num-sqs'; did you mean --max-num-seqs?" in refused(capsys, "--max-num-sqs", "3")


def test_flags_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown option '--max-model'" in refused(capsys, "--max-model", "3")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--max-num-seqs", "5000"), "from 1 to 4096"),
        (("--max-num-seqs", "many"), "'many' is not a number"),
        (("--dtype", "fp32"), "one of auto, float32, bfloat16, float16"),
        (("--memory-fraction", "nan"), "from 0.01 to 0.95"),
        (("stray",), "unexpected argument 'stray'"),
        (("--max-num-seqs",), "expected one argument"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    assert message in refused(capsys, *args)


def test_help_shows_every_field_with_bounds_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    for section, declared in all_fields().values():
        assert declared.flag in text
        assert f"{section}:" in text
    assert "Most requests in one step. (from 1 to 4096; default: 256)" in text
    assert "what fits memory. (of at least 1; default: auto)" in text


def write(tmp_path: Path, name: str, text: str) -> str:
    """Write a configuration file."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path, "c.json", json.dumps({"max-num-seqs": 9, "dtype": "float16", "op": ["a=b"], "max_model_len": "4k"})
    )
    config = parse("--config", path, "--max-num-seqs", "3")
    assert config.scheduler.max_num_seqs == 3
    assert (config.model.dtype, config.parallel.op, config.model.max_model_len) == ("float16", ("a=b",), 4000)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_a_toml_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "c.toml", 'max_num_seqs = 9\nenable_prefix_caching = false\nkv_cache_bytes = "2GiB"\n')
    config = parse("--config", path)
    assert (config.scheduler.max_num_seqs, config.cache.enable_prefix_caching) == (9, False)
    assert config.cache.kv_cache_bytes == 2 << 30


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.json", "{", "is not valid JSON"),
        ("c.json", "[1]", "must be one table"),
        ("c.json", '{"max_num_sqs": 1}', "did you mean max_num_seqs"),
        ("c.json", '{"max_num_seqs": 0}', "max_num_seqs=0 is not allowed"),
        ("c.json", '{"max_num_seqs": 1.5}', "max_num_seqs=1.5 is not allowed"),
        ("c.json", '{"memory_fraction": NaN}', "memory_fraction=nan is not allowed"),
        ("c.json", "[" * 100_000, "is not valid JSON"),
        ("c.yaml", "", "is .toml or .json"),
    ],
)
def test_a_wrong_file_names_itself_and_the_fault(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(ConfigError, match="--config ") as caught:
        parse("--config", path)
    assert message in str(caught.value)


def test_a_missing_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        parse("--config", str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="is longer than"):
        parse("--config", write(tmp_path, "c.json", " " * (1 << 20) + "{}"))


def test_docs_are_up_to_date() -> None:
    path = Path(__file__).parents[2] / "docs/config.md"
    assert path.read_text(encoding="utf-8") == docs.render(), "run: python -m octavo.config.docs > docs/config.md"
