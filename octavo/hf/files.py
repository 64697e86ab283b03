"""Open model files without trusting them: read-only maps, and JSON with size, depth and duplicate checks."""

from __future__ import annotations

import json
import mmap
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import CheckpointError

__all__ = ["map_file", "parse_json_object", "read_json_object", "read_text"]

MAX_JSON_BYTES = 16 << 20  # config files are kilobytes; the largest tokenizer_config.json known is about 1 MB
MAX_JSON_DEPTH = 64
MAX_JSON_CONTAINERS = 1 << 18  # these two bound time and memory: a second and 100 MB
MAX_JSON_COMMAS = 1 << 20


def _file_size(path: Path) -> int:
    """Return the size of a regular file in bytes; anything else raises CheckpointError."""
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: is not a regular file")
    return status.st_size


def map_file(path: Path) -> np.ndarray:
    """Map a whole file read-only. Returns a 1-D uint8 array; no byte is read before it is touched.

    The map lives as long as a view of it. A file that another program shortens while it is mapped cannot be
    guarded against here: replace model files by renaming, never in place.
    Raises CheckpointError if there is no such regular file or it is empty.
    """
    if _file_size(path) == 0:
        raise CheckpointError(f"{path}: is empty; download it again")
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be mapped: {error}") from error
    return np.frombuffer(mapped, dtype=np.uint8)


def read_text(path: Path, max_bytes: int) -> str:
    """Read a UTF-8 text file of at most `max_bytes`; raises CheckpointError."""
    size = _file_size(path)
    if size > max_bytes:
        raise CheckpointError(f"{path}: has {size} bytes, at most {max_bytes} are allowed")
    try:
        with path.open("rb") as file:
            return file.read(max_bytes).decode("utf-8-sig")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: is not UTF-8 text: {error}") from error


def read_json_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON file whose top level is an object; raises CheckpointError."""
    return parse_json_object(read_text(path, max_bytes), str(path))


def parse_json_object(text: str, what: str) -> dict[str, Any]:
    """Parse a JSON object; `what` names the source in errors.

    NaN and Infinity are accepted, because published configs hold them; who uses a number checks its range.
    Raises CheckpointError for bad syntax, a key given twice, too many or too deeply nested values, or another type.
    """
    containers, commas = text.count("[") + text.count("{") - 1, text.count(",")
    if containers > MAX_JSON_CONTAINERS or commas > MAX_JSON_COMMAS:
        raise CheckpointError(
            f"{what}: has {containers} lists and objects, at most {MAX_JSON_CONTAINERS} are allowed, "
            f"and {commas} commas, at most {MAX_JSON_COMMAS}"
        )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise CheckpointError(f"{what}: the key {twice[:200]!r} occurs twice")
        return result

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except RecursionError as error:
        raise CheckpointError(f"{what}: JSON nested deeper than {MAX_JSON_DEPTH} levels") from error
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{what}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what}: must hold a JSON object, not {type(value).__name__}")
    _check_depth(value, what)
    return value


def _check_depth(value: dict[str, Any], what: str) -> None:
    """Refuse deep nesting, so that later code may recurse over the value."""
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH):
        inner: list[Any] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item
            inner += [child for child in children if isinstance(child, (dict, list))]
        if not inner:
            return
        level = inner
    raise CheckpointError(f"{what}: JSON nested deeper than {MAX_JSON_DEPTH} levels")
