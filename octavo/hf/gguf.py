"""Read GGUF files (version 2 and 3, little-endian) without trusting them.

    magic "GGUF" | version u32 | tensor count u64 | key count u64
    key/value pairs: string key, type u32, value
    tensor infos:    string name, n_dims u32, n_dims x u64, type u32, offset u64
    padding to `general.alignment`, then the tensor data; offsets count from there

A string is a u64 length and bytes. Every count is compared with the bytes that are left before anything is
allocated, arithmetic is on Python integers and cannot overflow, and tensor data stays in the file: a `Weight`
is a view of one read-only map. Source: the GGUF specification in the ggml repository (docs/gguf.md).
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.hf.files import map_file
from octavo.hf.ggml_types import BLOCK, FORMAT_BY_ID, UNSUPPORTED_BY_ID
from octavo.hf.weight import Weight

__all__ = ["GGUFFile", "is_gguf", "read_gguf", "split_paths"]

MAGIC = b"GGUF"
MAX_KEYS = 1 << 14  # published files have fewer than 100
MAX_TENSORS = 1 << 16  # published files have fewer than 3,000, experts being stacked
MAX_KEY_BYTES = 65535  # the specification's limit
MAX_NAME_BYTES = 256  # the specification says 64; some converters exceed it
MAX_STRING_BYTES = 64 << 20  # a whole tokenizer.json may be stored as one string
MAX_TOKEN_BYTES = 1 << 20  # one string of an array
MAX_ARRAY_STRINGS = 1 << 20  # over the whole file; the largest known: 262,144 tokens and 514,906 merges
MAX_ARRAY_BYTES = 256 << 20  # numeric arrays over the whole file
MAX_METADATA_BYTES = 512 << 20
MAX_ALIGNMENT = 1 << 20
MAX_SPLITS = 1000
DEFAULT_ALIGNMENT = 32

_SCALARS = {
    0: ("uint8", struct.Struct("<B")),
    1: ("int8", struct.Struct("<b")),
    2: ("uint16", struct.Struct("<H")),
    3: ("int16", struct.Struct("<h")),
    4: ("uint32", struct.Struct("<I")),
    5: ("int32", struct.Struct("<i")),
    6: ("float32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<B")),
    10: ("uint64", struct.Struct("<Q")),
    11: ("int64", struct.Struct("<q")),
    12: ("float64", struct.Struct("<d")),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_MIN_KEY_BYTES = 8 + 1 + 4 + 1  # length, one character, type, one byte of value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length, one character, n_dims, one dimension, type, offset
_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, kw_only=True, slots=True)
class GGUFFile:
    """What a GGUF file, or a set of split files, holds.

    metadata: scalars as Python values, numeric arrays as read-only 1-D numpy arrays, string arrays as list[str].
    weights: by name, in file order; data are views of the mapped files.
    paths: the file, or all files of the set in order.
    """

    path: Path
    version: int
    metadata: dict[str, Any]
    weights: dict[str, Weight]
    paths: tuple[Path, ...]


def is_gguf(path: Path) -> bool:
    """Tell whether the file begins with the GGUF magic; raises CheckpointError if it cannot be read."""
    return map_file(path)[:4].tobytes() == MAGIC


def split_paths(path: Path) -> tuple[Path, ...] | None:
    """Return all paths of a split set if the name is like model-00001-of-00003.gguf, else None."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return None
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count <= MAX_SPLITS:
        return None
    return tuple(path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1))


def read_gguf(path: Path) -> GGUFFile:
    """Read a GGUF file; any file of a split set opens the whole set.

    Raises CheckpointError naming file, key or tensor and the numbers at fault, UnsupportedModelError for a sound
    file with a version, byte order or tensor type that cannot be used.
    """
    first = _read_one(path)
    count = _split_number(first, "split.count") or 1
    if count <= 1:
        return first
    return _read_split(first, count)


def _read_one(path: Path) -> GGUFFile:
    """Read one file, split or not."""
    reader = _Reader(path)
    version, num_tensors, num_keys = reader.header()
    metadata = reader.metadata(num_keys)
    weights = reader.weights(num_tensors, _alignment(path, metadata))
    return GGUFFile(path=path, version=version, metadata=metadata, weights=weights, paths=(path,))


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    """Return general.alignment in bytes: a power of two."""
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(value) is not int or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise CheckpointError(
            f"{path}: general.alignment is {_short(value)}; allowed is a power of two up to {MAX_ALIGNMENT}"
        )
    return value


def _split_number(file: GGUFFile, key: str) -> int | None:
    """Return a split.* number, or None if the file has none."""
    value = file.metadata.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise CheckpointError(f"{file.path}: {key} must be a whole number, not {_short(value)}")
    return value


def _read_split(opened: GGUFFile, count: int) -> GGUFFile:
    """Join the files of a split set; `opened` is one of them. Metadata is the first file's."""
    paths = split_paths(opened.path)
    if paths is None or len(paths) != count:
        raise CheckpointError(
            f"{opened.path}: split.count is {count}, so the name must be like NAME-00001-of-{count:05d}.gguf, at most "
            f"{MAX_SPLITS} files; rename the files to what they were called when they were made"
        )
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise CheckpointError(
            f"{opened.path}: {len(missing)} of {count} split files are missing: {', '.join(missing[:8])}"
        )
    files = [opened if path == opened.path else _read_one(path) for path in paths]
    weights: dict[str, Weight] = {}
    for index, file in enumerate(files):
        number, own_count = _split_number(file, "split.no"), _split_number(file, "split.count")
        if number != index or own_count != count:
            raise CheckpointError(
                f"{file.path}: says split.no={number} split.count={own_count}, expected {index} and {count}"
            )
        for name, weight in file.weights.items():
            if name in weights:
                raise CheckpointError(f"{file.path}: tensor {name!r} is also in an earlier file of the set")
            weights[name] = weight
    expected = _split_number(files[0], "split.tensors.count")
    if expected is not None and expected != len(weights):
        raise CheckpointError(f"{paths[0]}: split.tensors.count is {expected}, the {count} files hold {len(weights)}")
    return GGUFFile(path=paths[0], version=files[0].version, metadata=files[0].metadata, weights=weights, paths=paths)


def _short(value: object) -> str:
    """Return a repr fit for an error message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class _Reader:
    """A cursor over one mapped file; every read is checked against the end of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = map_file(path)
        self.view = self.data.data
        self.size = self.data.size
        self.pos = 0
        self.array_strings = 0
        self.array_bytes = 0

    def fail(self, message: str) -> CheckpointError:
        """Make the error for something wrong at the cursor."""
        return CheckpointError(f"{self.path}: {message} (at byte {self.pos} of {self.size})")

    def number(self, form: struct.Struct, what: str) -> Any:
        """Read one number."""
        if form.size > self.size - self.pos:
            raise self.fail(f"the file ends inside {what}; it is truncated, download it again")
        value = form.unpack_from(self.view, self.pos)[0]
        self.pos += form.size
        return value

    def string(self, what: str, limit: int) -> str:
        """Read one string of at most `limit` bytes."""
        length = self.number(_U64, what)
        if length > limit:
            raise self.fail(f"{what} has a length of {length} bytes, at most {limit} are allowed")
        if length > self.size - self.pos:
            raise self.fail(f"{what} has {length} bytes, only {self.size - self.pos} are left")
        raw = self.view[self.pos : self.pos + length].tobytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not valid UTF-8: {error.reason} at its byte {error.start}") from error
        self.pos += length
        return text

    def header(self) -> tuple[int, int, int]:
        """Read magic, version and counts. Returns (version, tensors, keys)."""
        if self.size < 4 or self.view[:4].tobytes() != MAGIC:
            raise self.fail(f"is not a GGUF file: begins with {self.view[:4].tobytes()!r}, not {MAGIC!r}")
        self.pos = 4
        version = self.number(_U32, "the header")
        if version & 0xFFFF == 0 and version:
            raise UnsupportedModelError(f"{self.path}: is a big-endian GGUF file; only little-endian files can be read")
        if version not in (2, 3):
            raise UnsupportedModelError(f"{self.path}: is GGUF version {version}; versions 2 and 3 can be read")
        num_tensors = self.number(_U64, "the header")
        num_keys = self.number(_U64, "the header")
        for count, what, limit, least in (
            (num_tensors, "tensors", MAX_TENSORS, _MIN_TENSOR_BYTES),
            (num_keys, "metadata keys", MAX_KEYS, _MIN_KEY_BYTES),
        ):
            if count > min(limit, (self.size - self.pos) // least):
                raise self.fail(f"claims {count} {what}; at most {limit} are allowed and must fit in the file")
        return version, num_tensors, num_keys

    def metadata(self, num_keys: int) -> dict[str, Any]:
        """Read the key/value pairs."""
        result: dict[str, Any] = {}
        for index in range(num_keys):
            key = self.string(f"metadata key {index}", MAX_KEY_BYTES)
            if not key or key in result:
                raise self.fail(f"metadata key {_short(key)} is empty or occurs twice")
            result[key] = self.value(key)
            if self.pos > MAX_METADATA_BYTES:
                raise self.fail(f"metadata is larger than {MAX_METADATA_BYTES} bytes")
        return result

    def value(self, key: str) -> Any:
        """Read one typed value."""
        what = f"the value of {_short(key)}"
        kind = self.number(_U32, what)
        if kind == _STRING:
            return self.string(what, MAX_STRING_BYTES)
        if kind == _ARRAY:
            return self.array(what)
        if kind not in _SCALARS:
            raise self.fail(f"{what} has the unknown type {kind}")
        name, form = _SCALARS[kind]
        value = self.number(form, what)
        if name != "bool":
            return value
        if value > 1:
            raise self.fail(f"{what} is a bool of {value}; allowed are 0 and 1")
        return bool(value)

    def array(self, what: str) -> np.ndarray | list[str]:
        """Read an array of scalars (1-D, its own dtype, read-only copy) or of strings."""
        kind = self.number(_U32, what)
        count = self.number(_U64, what)
        if kind == _STRING:
            return self.strings(count, what)
        if kind == _ARRAY:
            raise self.fail(f"{what} is an array of arrays, which no key uses")
        if kind not in _SCALARS:
            raise self.fail(f"{what} is an array of the unknown type {kind}")
        name, form = _SCALARS[kind]
        num_bytes = count * form.size
        if num_bytes > self.size - self.pos:
            raise self.fail(f"{what} has {count} elements of {form.size} bytes, {self.size - self.pos} bytes are left")
        self.array_bytes += num_bytes
        if self.array_bytes > MAX_ARRAY_BYTES:
            raise self.fail(f"{what} brings metadata arrays to more than {MAX_ARRAY_BYTES} bytes")
        raw = self.data[self.pos : self.pos + num_bytes]
        if name == "bool" and raw.size and int(raw.max()) > 1:
            raise self.fail(f"{what} has a bool of {int(raw.max())}; allowed are 0 and 1")
        values = np.frombuffer(raw.tobytes(), dtype=np.dtype(name).newbyteorder("<"))
        self.pos += num_bytes
        return values

    def strings(self, count: int, what: str) -> list[str]:
        """Read `count` strings."""
        if count > (self.size - self.pos) // 8:
            raise self.fail(f"{what} has {count} strings, only {self.size - self.pos} bytes are left")
        self.array_strings += count
        if self.array_strings > MAX_ARRAY_STRINGS:
            raise self.fail(f"{what} brings string arrays to more than {MAX_ARRAY_STRINGS} entries")
        texts = self._strings_at_once(count)
        return texts if texts is not None else self._strings_one_by_one(count, what)

    def _strings_at_once(self, count: int) -> list[str] | None:
        """Read `count` strings that are valid UTF-8 without NUL, or return None and do not move.

        Following the lengths, turning them into separators and splitting one decoded text takes 60 % of the time
        of decoding string by string: a vocabulary has 262,144 entries and as many merges.
        """
        view, pos, unpack = self.view, self.pos, _U64.unpack_from
        starts: list[int] = []
        append = starts.append
        try:
            for _ in range(count):
                append(pos)
                pos += unpack(view, pos)[0] + 8
        except (struct.error, IndexError, OverflowError):
            return None
        if not count or pos > self.size:
            return None
        region = self.data[self.pos : pos].copy()
        lengths = np.ndarray(shape=(region.size - 7,), dtype="<u8", buffer=region.data, strides=(1,))
        at = np.array(starts, dtype=np.int64) - self.pos
        if int(lengths[at].max()) > MAX_TOKEN_BYTES:
            return None
        lengths[at] = 0
        if region.size - np.count_nonzero(region) != 8 * count:
            return None
        try:
            texts = region.tobytes().decode("utf-8").split("\0" * 8)
        except UnicodeDecodeError:
            return None
        self.pos = pos
        return texts[1:]

    def _strings_one_by_one(self, count: int, what: str) -> list[str]:
        """Read `count` strings, any valid UTF-8; names the one at fault."""
        result: list[str] = []
        append, unpack, view, size = result.append, _U64.unpack_from, self.view, self.size
        pos = self.pos
        try:
            for _ in range(count):
                start = pos + 8
                if start > size:
                    raise self.fail(f"the file ends inside {what}, after {len(result)} of {count} strings")
                length = unpack(view, pos)[0]
                pos = start + length
                if length > MAX_TOKEN_BYTES or pos > size:
                    raise self.fail(
                        f"{what}: string {len(result)} has a length of {length} bytes; allowed are {MAX_TOKEN_BYTES}, "
                        f"and {size - start} are left in the file"
                    )
                append(str(view[start:pos], "utf-8"))
        except UnicodeDecodeError as error:
            raise self.fail(f"{what}: string {len(result)} is not valid UTF-8: {error.reason}") from error
        self.pos = pos
        return result

    def weights(self, num_tensors: int, alignment: int) -> dict[str, Weight]:
        """Read the tensor infos and make views of the data, checked against file, alignment and each other."""
        infos = [self.tensor_info(index, alignment) for index in range(num_tensors)]
        for name, occurrences in Counter(info[0] for info in infos).items():
            if occurrences > 1:
                raise self.fail(f"tensor {name!r} occurs {occurrences} times")
        base = -(-self.pos // alignment) * alignment
        end_of_previous, previous = 0, ""
        for name, _, _, offset, num_bytes in sorted(infos, key=lambda info: info[3]):
            if offset < end_of_previous:
                raise self.fail(
                    f"tensor {name!r} at offset {offset} overlaps {previous!r}, ending at {end_of_previous}"
                )
            end_of_previous, previous = offset + num_bytes, name
            if base + end_of_previous > self.size:
                raise self.fail(
                    f"tensor {name!r} needs bytes {base + offset} to {base + end_of_previous}, "
                    f"the file ends at {self.size}; it is truncated, download it again"
                )
        return {
            name: Weight(name, shape, form, self.data[base + offset : base + offset + num_bytes])
            for name, shape, form, offset, num_bytes in infos
        }

    def tensor_info(self, index: int, alignment: int) -> tuple[str, tuple[int, ...], str, int, int]:
        """Read one tensor info. Returns (name, row-major shape, format, offset, bytes)."""
        name = self.string(f"the name of tensor {index}", MAX_NAME_BYTES)
        what = f"tensor {name!r}"
        num_dims = self.number(_U32, what)
        if not name or not 1 <= num_dims <= 4:
            raise self.fail(f"{what} has {num_dims} dimensions; allowed are 1 to 4, and a name")
        dims = [self.number(_U64, what) for _ in range(num_dims)]
        kind = self.number(_U32, what)
        offset = self.number(_U64, what)
        form = FORMAT_BY_ID.get(kind)
        if form is None:
            known = UNSUPPORTED_BY_ID.get(kind)
            error = UnsupportedModelError if known else CheckpointError
            raise error(
                f"{self.path}: {what} has type {known or kind}, which cannot be read; supported are {', '.join(BLOCK)}"
            )
        elements = 1
        for dim in dims:
            elements *= dim
        if elements == 0 or elements >= 1 << 63 or dims[0] % form.block_elements:
            raise self.fail(
                f"{what} has dimensions {dims}; each must be positive, their product below 2^63 "
                f"and the first a multiple of {form.block_elements} for {form.name}"
            )
        if offset % alignment:
            raise self.fail(f"{what} has offset {offset}, not a multiple of the alignment {alignment}")
        num_bytes = elements // form.block_elements * form.block_bytes
        return name, tuple(reversed(dims)), form.name, offset, num_bytes
