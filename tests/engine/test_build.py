"""What is decided before a weight is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.config.engine import EngineConfig
from octavo.engine.build import build_engine, plan_engine
from octavo.errors import ConfigError
from octavo.platforms.cpu import CpuPlatform


def test_a_load_format_that_the_checkpoint_is_not_is_refused(llama_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"load_format=gguf, but .* is safetensors"):
        plan_engine(EngineConfig.from_flat(model=str(llama_folder), load_format="gguf"), CpuPlatform())


def test_a_plan_says_what_the_engine_then_does(gemma3_folder: Path) -> None:
    config = EngineConfig.from_flat(model=str(gemma3_folder), threads=1, max_num_seqs=4)
    plan = plan_engine(config, CpuPlatform())
    core, info = build_engine(config)
    assert info.max_model_len == plan.config.model.max_model_len == 512
    assert core.call("stats").blocks_total == plan.memory.num_blocks - 1
    assert sorted(layer for group in plan.groups for layer in group.layers) == list(range(6))
    core.close()


def test_dummy_weights_serve_without_reading_the_checkpoint_s(llama_folder: Path) -> None:
    core, _ = build_engine(EngineConfig.from_flat(model=str(llama_folder), load_format="dummy", threads=1))
    core.close()


def test_a_chat_template_file_replaces_the_model_s(llama_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages[0].content }}!")
    _, info = build_engine(EngineConfig.from_flat(model=str(llama_folder), chat_template=str(path), threads=1))
    assert info.chat_template is not None
    assert info.chat_template.render([{"role": "user", "content": "hi"}]) == [("hi", False), ("!", True)]
    with pytest.raises(ConfigError, match="is not a file"):
        build_engine(EngineConfig.from_flat(model=str(llama_folder), chat_template=str(tmp_path), threads=1))
