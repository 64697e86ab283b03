"""Read safetensors files without trusting them, and without torch.

    header length u64 | header, a JSON object | data
    header: {"__metadata__": {str: str}, name: {"dtype": str, "shape": [..], "data_offsets": [begin, end]}, ..}

Offsets count from the end of the header; together the tensors must cover the data exactly, as the format's
specification asks. Parsed here rather than by the safetensors package, because that hands bfloat16 and float8 to
numpy only as copies; the tests compare with it.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.hf.files import map_file, parse_json_object, read_json_object
from octavo.hf.weight import Weight

__all__ = ["DTYPE_BITS", "INDEX_NAME", "read_index", "read_safetensors", "read_sharded"]

INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER_BYTES = 8 << 20  # about 65,000 tensors in one file; the format itself allows 100 MB
MAX_INDEX_BYTES = 32 << 20  # about 300,000 tensors
MAX_DIMS = 16
MAX_SHARDS = 10_000

DTYPE_BITS = MappingProxyType(
    {
        "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
        "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
        "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
        "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    }
)  # fmt: skip
"""Bits per element of each dtype; kept by name as a weight's format."""

_SHARD_NAME = re.compile(r"[^/\\\0]{1,200}\.safetensors")


def read_safetensors(path: Path) -> dict[str, Weight]:
    """Read one file. Returns its weights by name, in the order of their data; views of one read-only map.

    Raises CheckpointError naming file, tensor and numbers; UnsupportedModelError for a dtype that is not known.
    """
    data = map_file(path)
    if data.size < 8:
        raise CheckpointError(f"{path}: has {data.size} bytes, a safetensors file begins with 8; download it again")
    header_bytes = int(data[:8].view("<u8")[0])
    if header_bytes > min(MAX_HEADER_BYTES, data.size - 8):
        raise CheckpointError(
            f"{path}: claims a header of {header_bytes} bytes; at most {MAX_HEADER_BYTES} are allowed, and "
            f"{data.size - 8} are left in the file; it is not a safetensors file or truncated"
        )
    try:
        text = data[8 : 8 + header_bytes].tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: the header is not UTF-8 text") from error
    header = parse_json_object(text, f"{path}: the header")
    _check_metadata(path, header.pop("__metadata__", {}))
    body = data[8 + header_bytes :]
    tensors = sorted((_tensor(path, name, entry) for name, entry in header.items()), key=lambda tensor: tensor[3:])
    weights: dict[str, Weight] = {}
    covered = 0
    for name, shape, dtype, begin, end in tensors:
        if begin != covered:
            fault = "overlaps the one before, which ends at" if begin < covered else "leaves a hole after"
            raise CheckpointError(f"{path}: tensor {name!r} begins at byte {begin} and {fault} byte {covered}")
        if end > body.size:
            raise CheckpointError(
                f"{path}: tensor {name!r} ends at byte {end} of the data, which has {body.size}; "
                "the file is truncated, download it again"
            )
        weights[name] = Weight(name, shape, dtype, body[begin:end])
        covered = end
    if covered != body.size:
        raise CheckpointError(f"{path}: {body.size - covered} bytes after the last tensor belong to none")
    return weights


def _check_metadata(path: Path, metadata: object) -> None:
    """Check that __metadata__ maps text to text, as the format asks."""
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must map names to strings")


def _whole_numbers(value: object, limit: int) -> bool:
    """Tell whether value is a list of at most `limit` whole numbers, none negative or above 2^63."""
    return (
        isinstance(value, list)
        and len(value) <= limit
        and all(type(number) is int and 0 <= number < 1 << 63 for number in value)
    )


def _tensor(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], str, int, int]:
    """Check one header entry. Returns (name, shape, dtype, begin, end)."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{path}: tensor {name[:200]!r} must have dtype, shape and data_offsets, nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not _whole_numbers(shape, MAX_DIMS) or not _whole_numbers(offsets, 2) or len(offsets) != 2:
        raise CheckpointError(
            f"{path}: tensor {name[:200]!r} has shape {str(shape)[:80]} and data_offsets {str(offsets)[:80]}; allowed "
            f"are at most {MAX_DIMS} dimensions and two offsets, whole numbers from 0 to 2^63"
        )
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise UnsupportedModelError(
            f"{path}: tensor {name[:200]!r} has dtype {str(dtype)[:40]!r}; known are {', '.join(DTYPE_BITS)}"
        )
    begin, end = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        raise CheckpointError(
            f"{path}: tensor {name[:200]!r} of shape {shape} and dtype {dtype} needs {bits / 8:.10g} bytes, "
            f"data_offsets {begin} to {end} hold {end - begin}"
        )
    return name, tuple(shape), dtype, begin, end


def read_index(path: Path) -> dict[str, list[str]]:
    """Read model.safetensors.index.json. Returns the tensor names of each shard file, by file name.

    Raises CheckpointError for a shard name that is not a plain *.safetensors file name: no folder, no "..".
    """
    weight_map = read_json_object(path, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map must map tensor names to files")
    shards: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
            raise CheckpointError(
                f"{path}: tensor {name[:200]!r} is said to be in {str(shard)[:200]!r}; allowed is the name of a "
                ".safetensors file in the same folder"
            )
        shards.setdefault(shard, []).append(name)
    if len(shards) > MAX_SHARDS:
        raise CheckpointError(f"{path}: names {len(shards)} files, at most {MAX_SHARDS} are allowed")
    return shards


def read_sharded(index_path: Path) -> dict[str, Weight]:
    """Read all shards of an index. Every name of the index must be in its shard, and the other way round.

    Raises CheckpointError listing the files or the first names at fault.
    """
    shards = read_index(index_path)
    folder = index_path.parent
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(shards)} weight files are missing: {', '.join(sorted(missing)[:8])}; "
            "download them again"
        )
    weights: dict[str, Weight] = {}
    for shard, names in sorted(shards.items()):
        found = read_safetensors(folder / shard)
        absent, extra = sorted(set(names) - set(found)), sorted(set(found) - set(names))
        if absent or extra:
            fault = f"lacks {_some(absent)}" if absent else f"also holds {_some(extra)}"
            raise CheckpointError(f"{folder / shard}: does not agree with {index_path.name}: it {fault}")
        weights.update(found)
    return weights


def _some(names: list[str]) -> str:
    """Return a count and the first few names, for an error."""
    return f"{len(names)} tensors ({', '.join(name[:80] for name in names[:4])}{', ..' if len(names) > 4 else ''})"
