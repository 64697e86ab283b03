"""Open a checkpoint: a Hugging Face folder of safetensors, a folder with one GGUF, or a GGUF file.

Opening reads the configuration and the directory of weights, not their data. Configuration is data: `auto_map` and
`trust_remote_code` have no effect here, because there is no path by which a checkpoint's own code could run.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from octavo.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from octavo.hf.files import read_json_object, read_text
from octavo.hf.gguf import is_gguf, read_gguf, split_paths
from octavo.hf.safetensors import INDEX_NAME, read_safetensors, read_sharded
from octavo.hf.weight import Weight

__all__ = ["Checkpoint", "group_gguf_files", "is_model_file", "open_checkpoint"]

MAX_TEMPLATE_BYTES = 1 << 20  # the longest published template is about 20 KB
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_NUMBERED = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")
_GGUF_TEMPLATE = "tokenizer.chat_template"
_GGUF_SAMPLING = (  # converters store the defaults of generation_config.json under these keys
    ("general.sampling.temp", "temperature"),
    ("general.sampling.top_k", "top_k"),
    ("general.sampling.top_p", "top_p"),
    ("general.sampling.min_p", "min_p"),
    ("general.sampling.penalty_repeat", "repetition_penalty"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Everything a model is made from, still in its files.

    path: the folder or GGUF file.
    config: config.json, or {} for a GGUF.   metadata: GGUF metadata, or {} for a folder of safetensors.
    generation_config: generation_config.json, or {}; of a GGUF its general.sampling.* numbers, by the same names.
    weights: by name, as the file has it.
    tokenizer_path: the folder, or the GGUF file, that holds the tokenizer.
    chat_template_text: the default chat template, or None.
    chat_templates: all named templates, "default" and, where there is one, "tool_use" among them.
    """

    path: Path
    format: Literal["safetensors", "gguf"]
    config: dict[str, Any]
    metadata: dict[str, Any]
    generation_config: dict[str, Any]
    weights: dict[str, Weight]
    tokenizer_path: Path
    chat_template_text: str | None
    chat_templates: dict[str, str]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a folder or a GGUF file.

    Raises ModelNotFoundError if there is nothing at the path, UnsupportedModelError for a kind of checkpoint that is
    not read (pickles, a vendor's own layout, an adapter), CheckpointError for a damaged or ambiguous one.
    """
    if os.path.isdir(path):
        return _open_folder(path)
    if not os.path.exists(path):
        raise ModelNotFoundError(f"{path}: no such file or folder; give a model folder or a .gguf file")
    if path.suffix in _PICKLES:
        raise UnsupportedModelError(_pickle_message(path, path.name))
    if path.suffix == ".gguf" or is_gguf(path):
        return _open_gguf(path)
    raise UnsupportedModelError(f"{path}: is neither a folder nor a GGUF file; give the folder that holds config.json")


def group_gguf_files(names: list[str]) -> list[str]:
    """Return the models among file names, with folders or not: one name per split set, no projector."""
    models: dict[Path, str] = {}
    for name in sorted(names):
        file = Path(name)
        if file.suffix == ".gguf" and "mmproj" not in file.name.lower():
            parts = split_paths(file)
            models.setdefault(parts[0] if parts else file, name)
    return list(models.values())


def _open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file or split set."""
    file = read_gguf(path)
    templates = _gguf_templates(file.path, file.metadata)
    return Checkpoint(
        path=file.path,
        format="gguf",
        config={},
        metadata=file.metadata,
        generation_config={
            name: file.metadata[key] for key, name in _GGUF_SAMPLING if type(file.metadata.get(key)) in (int, float)
        },
        weights=file.weights,
        tokenizer_path=file.path,
        chat_template_text=templates.get("default"),
        chat_templates=templates,
    )


def _open_folder(folder: Path) -> Checkpoint:
    """Open a folder with config.json and safetensors, or with exactly one GGUF."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be listed: {error.strerror}") from error
    has_weights = INDEX_NAME in names or any(is_model_file(name) for name in names)
    if "config.json" in names and has_weights:
        return _open_safetensors(folder, names)
    models = group_gguf_files(names)
    if len(models) == 1:
        return _open_gguf(folder / models[0])
    if models:
        raise CheckpointError(f"{folder}: holds {len(models)} models; give one of the files: {', '.join(models[:20])}")
    raise _explain(folder, names, has_weights)


def is_model_file(name: str) -> bool:
    """Tell whether a file name is that of model weights, not of an adapter or a vendor's own layout."""
    return name.endswith(".safetensors") and not name.startswith(("adapter_model", "consolidated"))


def _explain(folder: Path, names: list[str], has_weights: bool) -> CheckpointError:
    """Say why a folder is not a checkpoint and what to do."""
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if has_weights:
        return CheckpointError(f"{folder}: has weights but no config.json; download config.json of the model too")
    if "adapter_config.json" in names:
        return UnsupportedModelError(
            f"{folder}: is an adapter, not a model; give the folder of its base model (base_model_name_or_path in "
            "adapter_config.json)"
        )
    if "params.json" in names or any(name.startswith("consolidated") for name in names):
        return UnsupportedModelError(
            f"{folder}: is in its vendor's own layout (params.json, consolidated.*); download the Hugging Face "
            "files of the model: config.json, model*.safetensors and the tokenizer"
        )
    if pickles:
        return UnsupportedModelError(_pickle_message(folder, pickles[0]))
    if "config.json" in names:
        return CheckpointError(f"{folder}: has config.json but no *.safetensors file; download the weights too")
    return CheckpointError(
        f"{folder}: holds no model; needed are config.json and *.safetensors, or one .gguf file; "
        f"there are {len(names)} entries: {', '.join(names[:8])}"
    )


def _pickle_message(path: Path, name: str) -> str:
    """Say why a pickle is not opened."""
    return (
        f"{path}: weights are a pickle ({name}), which runs code when it is opened and is never opened here; "
        "use a safetensors or GGUF version of the model, or convert it where you trust it: "
        "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder) of transformers writes safetensors"
    )


def _open_safetensors(folder: Path, names: list[str]) -> Checkpoint:
    """Open a folder with config.json and safetensors."""
    config = read_json_object(folder / "config.json")
    has_generation = "generation_config.json" in names
    templates = _folder_templates(folder, names)
    return Checkpoint(
        path=folder,
        format="safetensors",
        config=config,
        metadata={},
        generation_config=read_json_object(folder / "generation_config.json") if has_generation else {},
        weights=_folder_weights(folder, names),
        tokenizer_path=folder,
        chat_template_text=templates.get("default"),
        chat_templates=templates,
    )


def _folder_weights(folder: Path, names: list[str]) -> dict[str, Weight]:
    """Find the weight files: model.safetensors, else the index, else the one file, else a full numbered set."""
    if "model.safetensors" in names:
        return read_safetensors(folder / "model.safetensors")
    if INDEX_NAME in names:
        return read_sharded(folder / INDEX_NAME)
    files = [name for name in names if is_model_file(name)]
    if len(files) == 1 and not _NUMBERED.fullmatch(files[0]):
        return read_safetensors(folder / files[0])
    numbered = [match for match in map(_NUMBERED.fullmatch, files) if match]
    counts = {int(match[2]) for match in numbered}
    if len(numbered) != len(files) or len(counts) != 1:
        raise CheckpointError(
            f"{folder}: holds several weight files and no {INDEX_NAME}, so it is unclear which belong to the model: "
            f"{', '.join(files[:8])}"
        )
    count = counts.pop()
    if sorted(int(match[1]) for match in numbered) != list(range(1, count + 1)):
        raise CheckpointError(
            f"{folder}: has {len(numbered)} of the {count} weight files {files[0][:6]}XXXXX-of-{count:05d}.safetensors"
            "; download the missing ones"
        )
    weights: dict[str, Weight] = {}
    for name in files:
        found = read_safetensors(folder / name)
        twice = weights.keys() & found.keys()
        if twice:
            raise CheckpointError(f"{folder / name}: tensor {min(twice)[:200]!r} is also in an earlier file")
        weights.update(found)
    return weights


def _folder_templates(folder: Path, names: list[str]) -> dict[str, str]:
    """Find the chat templates of a folder: the .jinja files come before chat_template.json, that before the rest."""
    templates: dict[str, str] = {}
    for name in ("tokenizer_config.json", "chat_template.json"):
        if name in names:
            templates.update(_named_templates(folder / name, read_json_object(folder / name).get("chat_template")))
    if "chat_template.jinja" in names:
        templates["default"] = read_text(folder / "chat_template.jinja", MAX_TEMPLATE_BYTES)
    extra = folder / "additional_chat_templates"
    if extra.is_dir():
        for path in sorted(extra.glob("*.jinja")):
            templates[path.stem] = read_text(path, MAX_TEMPLATE_BYTES)
    return templates


def _named_templates(path: Path, value: object) -> dict[str, str]:
    """Read a chat_template value: text, a list of {"name", "template"}, or a mapping of names to text."""
    if value is None:
        return {}
    if isinstance(value, str):
        value = {"default": value}
    elif isinstance(value, list) and all(
        isinstance(item, dict) and {"name", "template"} <= set(item) for item in value
    ):
        value = {item["name"]: item["template"] for item in value if isinstance(item["name"], str)}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CheckpointError(f"{path}: chat_template must be text or a list of named templates")
    for name, text in value.items():
        if len(text) > MAX_TEMPLATE_BYTES:
            raise CheckpointError(
                f"{path}: chat template {name[:80]!r} has {len(text)} characters, at most {MAX_TEMPLATE_BYTES} may be"
            )
    return value


def _gguf_templates(path: Path, metadata: dict[str, Any]) -> dict[str, str]:
    """Find the chat templates of a GGUF: tokenizer.chat_template, and one key per further name."""
    templates: dict[str, Any] = {}
    for key, value in metadata.items():
        if key == _GGUF_TEMPLATE:
            templates["default"] = value
        elif key.startswith(_GGUF_TEMPLATE + "."):
            templates[key[len(_GGUF_TEMPLATE) + 1 :]] = value
    return _named_templates(path, templates)
