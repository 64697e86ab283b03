"""The safetensors reader: right files of the safetensors package, wrong ones refused fast and clearly."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.hf.safetensors import INDEX_NAME, read_index, read_safetensors, read_sharded


def build(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Join a header (JSON value, or raw bytes) and data; `length` overrides the header length."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    """Make a header entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


TORCH_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def test_every_dtype_of_a_written_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    generator = torch.Generator().manual_seed(0)
    tensors = {name: (torch.randn(3, 5, generator=generator) * 4).to(dtype) for name, dtype in TORCH_DTYPES.items()} | {
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 4),
        "4d": torch.arange(24).reshape(2, 3, 2, 2),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    weights = read_safetensors(path)
    assert set(weights) == set(tensors)
    for name, tensor in tensors.items():
        weight = weights[name]
        assert weight.shape == tuple(tensor.shape)
        assert weight.format == (name if name in TORCH_DTYPES else {"4d": "I64"}.get(name, "F32"))
        assert weight.data.tobytes() == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        assert not weight.data.flags.writeable
        assert not weight.data.flags.owndata


HOSTILE: dict[str, tuple[bytes, str]] = {
    "short": (b"\1\2\3", "has 3 bytes"),
    "header length 2^64": (build({}, length=(1 << 64) - 1), "claims a header of 18446744073709551615"),
    "header length limit": (build(b"{}", bytes(64), length=(8 << 20) + 1), "at most 8388608"),
    "header beyond file": (build(b"{}", length=3), "claims a header of 3 bytes"),
    "no json": (build(b"hello"), "not valid JSON"),
    "empty header": (build(b""), "not valid JSON"),
    "not utf-8": (build(b'{"\xff":1}'), "not UTF-8"),
    "list": (build([]), "JSON object, not list"),
    "deep": (build(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested deeper"),
    "medium deep": (build(b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"), "nested deeper"),
    "many lists": (build(b'{"a":[' + b"[]," * 300_000 + b"0]}"), "300001 lists and objects, at most 262144"),
    "many numbers": (build(b'{"a":[' + b"0," * 1_100_000 + b"0]}"), "1100000 commas, at most 1048576"),
    "long number": (build(b'{"a":' + b"9" * 5000 + b"}"), "not valid JSON"),
    "name twice": (build(b'{"a":1,"a":1}'), "'a' occurs twice"),
    "metadata": (build({"__metadata__": {"a": 1}}), "__metadata__"),
    "metadata list": (build({"__metadata__": []}), "__metadata__"),
    "entry list": (build({"w": []}), "'w' must have dtype"),
    "entry lacks": (build({"w": {"dtype": "F32", "shape": [2]}}, bytes(8)), "'w' must have dtype"),
    "entry extra": (build({"w": entry() | {"x": 1}}, bytes(8)), "nothing else"),
    "shape negative": (build({"w": entry(shape=[-2])}, bytes(8)), r"shape \[-2\]"),
    "shape float": (build({"w": entry(shape=[2.0])}, bytes(8)), "whole numbers"),
    "shape bool": (build({"w": entry(shape=[True, 2])}, bytes(8)), "whole numbers"),
    "shape text": (build({"w": entry(shape="22")}, bytes(8)), "whole numbers"),
    "shape NaN": (build(b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', bytes(8)), "whole numbers"),
    "17 dims": (build({"w": entry(shape=[1] * 16 + [2])}, bytes(8)), "at most 16 dimensions"),
    "shape huge": (build({"w": entry(shape=[1 << 63])}, bytes(8)), "whole numbers"),
    "product wraps": (build({"w": entry(shape=[1 << 62, 4, 2])}, bytes(8)), "hold 8"),
    "offsets reversed": (build({"w": entry(offsets=[8, 0])}, bytes(8)), "hold -8"),
    "offsets negative": (build({"w": entry(offsets=[-8, 0])}, bytes(8)), "whole numbers"),
    "one offset": (build({"w": entry(offsets=[8])}, bytes(8)), "two offsets"),
    "three offsets": (build({"w": entry(offsets=[0, 8, 8])}, bytes(8)), "two offsets"),
    "size": (build({"w": entry(shape=[3])}, bytes(8)), "needs 12 bytes"),
    "half byte": (build({"w": entry("F4", [3], [0, 1])}, bytes(1)), "needs 1.5 bytes"),
    "beyond end": (build({"w": entry()}, bytes(7)), "'w' ends at byte 8 of the data, which has 7"),
    "left over": (build({"w": entry()}, bytes(9)), "1 bytes after the last tensor"),
    "hole": (build({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)), "leaves a hole after byte 8"),
    "overlap": (build({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)), "'b' begins at byte 4 and overlaps"),
    "same place": (build({"a": entry(), "b": entry()}, bytes(8)), "overlaps"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_by_name_and_number(tmp_path: Path, case: str) -> None:
    raw, message = HOSTILE[case]
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(CheckpointError, match=message) as caught:
        read_safetensors(path)
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not isinstance(caught.value, UnsupportedModelError)
    assert "m.safetensors" in str(caught.value)
    assert seconds < 1
    assert peak < 16 << 20


@pytest.mark.parametrize("dtype", ["F3", 7, None, ["F32"]])
def test_unknown_dtype_is_unsupported(tmp_path: Path, dtype: Any) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(build({"w": entry(dtype)}, bytes(8)))
    with pytest.raises(UnsupportedModelError, match="'w' has dtype .*known are .*BF16"):
        read_safetensors(path)


def test_four_bit_floats_are_half_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(build({"w": entry("F4", [2, 4], [0, 4])}, b"abcd"))
    assert read_safetensors(path)["w"].data.tobytes() == b"abcd"


def test_damaged_bytes_end_in_success_or_checkpoint_error(tmp_path: Path) -> None:
    sound = build({"__metadata__": {"a": "b"}, "w": entry("BF16", [2, 2]), "v": entry("F32", [3], [8, 20])}, bytes(20))
    rng = np.random.default_rng(21)
    path = tmp_path / "m.safetensors"
    accepted = 0
    for round_ in range(2000):
        damaged = bytearray(sound)
        for _ in range(int(rng.integers(1, 4))):
            damaged[int(rng.integers(len(damaged)))] = int(rng.integers(256))
        if round_ % 4 == 0:
            damaged = damaged[: int(rng.integers(1, len(damaged)))]
        elif round_ % 4 == 1:
            at = int(rng.integers(len(damaged)))
            damaged[at:at] = rng.bytes(int(rng.integers(1, 20)))
        path.unlink(missing_ok=True)  # overwriting a file makes some file systems wait for the disk
        path.write_bytes(damaged)
        start = time.process_time()
        try:
            read_safetensors(path)
        except CheckpointError:
            continue
        finally:
            assert time.process_time() - start < 1
        accepted += 1
        try:  # whatever we accept, the reference accepts
            with safe_open(path, "np") as reference:
                assert set(reference.keys()) == set(read_safetensors(path))
        except SafetensorError as error:
            raise AssertionError(f"the safetensors package refuses {bytes(damaged)!r}: {error}") from error
    assert 30 < accepted < 1700


def write_shards(folder: Path, shards: dict[str, list[str]], weight_map: dict[str, Any] | None = None) -> Path:
    """Write shards of one-element tensors and an index; `weight_map` overrides what the index says."""
    for shard, names in shards.items():
        save_file({name: torch.tensor([float(i)]) for i, name in enumerate(names)}, folder / shard)
    right = {name: shard for shard, names in shards.items() for name in names}
    path = folder / INDEX_NAME
    path.write_text(json.dumps({"metadata": {}, "weight_map": right if weight_map is None else weight_map}))
    return path


A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_shards_are_joined(tmp_path: Path) -> None:
    index = write_shards(tmp_path, {A: ["x", "y"], B: ["z"]})
    assert set(read_sharded(index)) == {"x", "y", "z"}
    assert read_index(index) == {A: ["x", "y"], B: ["z"]}


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"x": A, "y": A, "z": B, "u": B}, "it lacks 1 tensors .u."),
        ({"x": A, "z": B}, "it also holds 1 tensors .y."),
        ({"x": A, "y": B, "z": B}, "it also holds 1 tensors .y."),
        ({"x": A, "y": A, "z": "c.safetensors"}, r"1 of 2 weight files are missing: c\.safetensors"),
        ({"x": "../a.safetensors"}, r"'x' is said to be in '\.\./a\.safetensors'"),
        ({"x": "sub/a.safetensors"}, "in the same folder"),
        ({"x": "sub\\a.safetensors"}, "in the same folder"),
        ({"x": "/etc/passwd"}, "in the same folder"),
        ({"x": "pytorch_model.bin"}, "in the same folder"),
        ({"x": "a\0.safetensors"}, "in the same folder"),
        ({"x": 1}, "in the same folder"),
        ({}, "weight_map must map"),
        ([], "weight_map must map"),
    ],
)
def test_index_that_disagrees_or_leaves_the_folder_is_refused(tmp_path: Path, weight_map: Any, message: str) -> None:
    index = write_shards(tmp_path, {A: ["x", "y"], B: ["z"]}, weight_map)
    with pytest.raises(CheckpointError, match=message):
        read_sharded(index)


def test_shard_names_of_dots_stay_in_the_folder(tmp_path: Path) -> None:
    index = write_shards(tmp_path, {"...safetensors": ["x"]})
    assert list(read_sharded(index)) == ["x"]
