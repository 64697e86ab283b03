"""Opening checkpoints: folders of safetensors, GGUF files, and what is refused with what to do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from octavo.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from octavo.hf.checkpoint import group_gguf_files, open_checkpoint
from octavo.hf.safetensors import INDEX_NAME
from tests.hf.gguf_writer import GGUFBytes, key, tensor
from tests.hf.real_models import DEMO, model_file

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}


def write_tensor(path: Path, *names: str) -> None:
    """Write one-element tensors to a safetensors file."""
    save_file({name: torch.ones(1) for name in names}, path)


def write_gguf(path: Path, *keys: bytes) -> None:
    """Write a GGUF of one tensor."""
    path.write_bytes(GGUFBytes(keys=list(keys), tensors=[tensor("w", [8])], data=bytes(32)).build())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with config.json and model.safetensors."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_tensor(tmp_path / "model.safetensors", "w")
    return tmp_path


def test_folder_of_safetensors_opens(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"temperature": 0.6}')
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.format, checkpoint.path, checkpoint.tokenizer_path) == ("safetensors", folder, folder)
    assert (checkpoint.config, checkpoint.metadata) == (CONFIG, {})
    assert checkpoint.generation_config == {"temperature": 0.6}
    assert list(checkpoint.weights) == ["w"]
    assert checkpoint.chat_template_text is None


def test_gguf_file_opens_alone_and_from_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, key("general.architecture", "string", "llama"), key("tokenizer.chat_template", "string", "hi"))
    write_gguf(tmp_path / "mmproj-m.gguf")
    for opened in (open_checkpoint(path), open_checkpoint(tmp_path)):
        assert (opened.format, opened.path, opened.tokenizer_path) == ("gguf", path, path)
        assert (opened.config, opened.generation_config) == ({}, {})
        assert opened.metadata["general.architecture"] == "llama"
        assert list(opened.weights) == ["w"]
        assert opened.chat_template_text == "hi"


def test_sampling_defaults_of_a_gguf_become_its_generation_config(tmp_path: Path) -> None:
    keys = [key("general.sampling.temp", "float32", 0.5), key("general.sampling.top_k", "int32", 20)]
    keys += [key("general.sampling.penalty_repeat", "float32", 1.25), key("general.sampling.top_p", "string", "x")]
    write_gguf(tmp_path / "m.gguf", *keys)
    config = open_checkpoint(tmp_path / "m.gguf").generation_config
    assert config == {"temperature": 0.5, "top_k": 20, "repetition_penalty": 1.25}


def test_gguf_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    write_gguf(tmp_path / "blob")
    assert open_checkpoint(tmp_path / "blob").format == "gguf"


def test_safetensors_come_before_a_gguf_in_the_same_folder(folder: Path) -> None:
    write_gguf(folder / "m.gguf")
    assert open_checkpoint(folder).format == "safetensors"


def test_several_ggufs_are_refused_with_the_choice(tmp_path: Path) -> None:
    for name in ("a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"):
        write_gguf(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"2 models; give one of the files: a\.gguf, b-00001-of-00002\.gguf"):
        open_checkpoint(tmp_path)


def test_split_set_counts_as_one_model() -> None:
    names = ["x/b-00002-of-00002.gguf", "x/b-00001-of-00002.gguf", "a.gguf", "MMPROJ-a.gguf", "c-00002-of-00003.gguf"]
    assert group_gguf_files(names) == ["a.gguf", "c-00002-of-00003.gguf", "x/b-00001-of-00002.gguf"]


def sharded(folder: Path, *, index: bool = True) -> None:
    """Write two shards, with or without an index."""
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, shard in shards.items():
        write_tensor(folder / shard, name)
    if index:
        (folder / INDEX_NAME).write_text(json.dumps({"weight_map": shards}))


@pytest.mark.parametrize("index", [True, False])
def test_shards_are_joined_with_and_without_an_index(tmp_path: Path, index: bool) -> None:
    sharded(tmp_path, index=index)
    assert set(open_checkpoint(tmp_path).weights) == {"a", "b"}


@pytest.mark.parametrize("index", [True, False])
def test_missing_shard_is_refused(tmp_path: Path, index: bool) -> None:
    sharded(tmp_path, index=index)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="1 of 2 weight files|1 of the 2 weight files"):
        open_checkpoint(tmp_path)


def test_index_without_any_shard_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / INDEX_NAME).write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
    with pytest.raises(CheckpointError, match="1 of 1 weight files are missing"):
        open_checkpoint(tmp_path)


def test_same_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    sharded(tmp_path, index=False)
    write_tensor(tmp_path / "model-00002-of-00002.safetensors", "a")
    with pytest.raises(CheckpointError, match="'a' is also in an earlier file"):
        open_checkpoint(tmp_path)


def test_several_unrelated_weight_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_tensor(tmp_path / "x.safetensors", "a")
    write_tensor(tmp_path / "y.safetensors", "b")
    with pytest.raises(CheckpointError, match=r"unclear which belong.*x\.safetensors, y\.safetensors"):
        open_checkpoint(tmp_path)


def test_vendor_copy_beside_shards_is_not_read(tmp_path: Path) -> None:
    sharded(tmp_path)
    write_tensor(tmp_path / "consolidated.safetensors", "other")
    assert set(open_checkpoint(tmp_path).weights) == {"a", "b"}


@pytest.mark.parametrize(
    ("files", "message", "error"),
    [
        (["config.json", "pytorch_model.bin"], "pickle.*pytorch_model.bin.*save_pretrained", UnsupportedModelError),
        (["consolidated.00.pth", "params.json"], "vendor's own layout.*config.json", UnsupportedModelError),
        (["consolidated.safetensors", "params.json"], "vendor's own layout", UnsupportedModelError),
        (["adapter_config.json", "adapter_model.safetensors"], "adapter, not a model", UnsupportedModelError),
        (["model.pth"], "pickle", UnsupportedModelError),
        (["model.safetensors"], "no config.json", CheckpointError),
        (["config.json"], "no .*safetensors file", CheckpointError),
        (["README.md"], "holds no model.*README.md", CheckpointError),
        ([], "holds no model", CheckpointError),
    ],
)
def test_folder_that_cannot_be_opened_says_what_to_do(
    tmp_path: Path, files: list[str], message: str, error: type[Exception]
) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(error, match=message) as caught:
        open_checkpoint(tmp_path)
    assert caught.type is error


def test_pickle_file_is_refused_and_a_missing_path_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"\x80\x04.")
    (tmp_path / "m.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    with pytest.raises(UnsupportedModelError, match="pickle"):
        open_checkpoint(tmp_path / "m.bin")
    with pytest.raises(UnsupportedModelError, match="give the folder"):
        open_checkpoint(tmp_path / "m.safetensors")
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_checkpoint(tmp_path / "nothing")


def test_remote_code_in_a_config_has_no_effect(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"auto_map": {"AutoModel": "evil.Model"}}))
    (folder / "evil.py").write_text("raise SystemExit('this must never run')")
    assert open_checkpoint(folder).config["auto_map"] == {"AutoModel": "evil.Model"}


def test_nan_and_infinity_and_a_byte_order_mark_are_accepted(folder: Path) -> None:
    (folder / "config.json").write_text('\ufeff{"time_step_limit": [0.0, Infinity], "x": NaN}', encoding="utf-8")
    config = open_checkpoint(folder).config
    assert config["time_step_limit"] == [0.0, math.inf]
    assert math.isnan(config["x"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[1]", "JSON object, not list"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"),
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper than 64"),
        (b'{"a": ' + b'{"a":' * 90_000 + b"1" + b"}" * 90_000 + b"}", "nested deeper than 64"),
        (b"{", "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b" " * ((16 << 20) + 1), "at most 16777216"),
    ],
    ids=["list", "twice", "deep", "deeper", "syntax", "utf-8", "large"],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_hostile_json_is_refused(folder: Path, name: str, text: bytes, message: str) -> None:
    (folder / name).write_bytes(text)
    with pytest.raises(CheckpointError, match=f"{name}: .*{message}"):
        open_checkpoint(folder)


def set_templates(folder: Path, *, config: Any = None, json_text: Any = None, jinja: str | None = None) -> None:
    """Write the three places of a chat template."""
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": config}))
    if json_text is not None:
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": json_text}))
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja)


@pytest.mark.parametrize(
    ("places", "default"),
    [
        ({"config": "c"}, "c"),
        ({"config": "c", "json_text": "j"}, "j"),
        ({"config": "c", "json_text": "j", "jinja": "x"}, "x"),
        ({"config": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}, "d"),
        ({"config": [{"name": "tool_use", "template": "t"}]}, None),
    ],
)
def test_chat_template_places_have_an_order(folder: Path, places: dict[str, Any], default: str | None) -> None:
    set_templates(folder, **places)
    assert open_checkpoint(folder).chat_template_text == default


def test_named_chat_templates_are_kept(folder: Path) -> None:
    set_templates(folder, config=[{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}])
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("r")
    assert open_checkpoint(folder).chat_templates == {"default": "d", "tool_use": "t", "rag": "r"}


def test_named_chat_templates_of_a_gguf_are_kept(tmp_path: Path) -> None:
    keys = [key("tokenizer.chat_template", "string", "d"), key("tokenizer.chat_template.tool_use", "string", "t")]
    keys.append(key("tokenizer.chat_templates", "string", ["tool_use"]))
    write_gguf(tmp_path / "m.gguf", *keys)
    assert open_checkpoint(tmp_path / "m.gguf").chat_templates == {"default": "d", "tool_use": "t"}


@pytest.mark.parametrize(
    "value", [7, ["x"], [{"name": "default"}], {"default": 1}, [{"name": "default", "template": 1}]]
)
def test_chat_template_of_another_type_is_refused(folder: Path, value: Any) -> None:
    set_templates(folder, config=value)
    with pytest.raises(CheckpointError, match="chat_template must be text"):
        open_checkpoint(folder)


def test_huge_chat_template_is_refused(folder: Path, tmp_path: Path) -> None:
    set_templates(folder, config="x" * ((1 << 20) + 1))
    with pytest.raises(CheckpointError, match="1048577 characters, at most 1048576"):
        open_checkpoint(folder)
    write_gguf(tmp_path / "m.gguf", key("tokenizer.chat_template", "uint32", 1))
    with pytest.raises(CheckpointError, match="chat_template must be text"):
        open_checkpoint(tmp_path / "m.gguf")


def test_demo_model_opens() -> None:
    checkpoint = open_checkpoint(model_file(DEMO))
    assert checkpoint.metadata["general.architecture"] == "llama"
    assert len(checkpoint.weights) == 272
    assert "<|im_start|>" in (checkpoint.chat_template_text or "")
