"""Write GGUF files byte by byte, right or wrong ones; the gguf package's writer only makes right ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

KINDS = {
    "uint8": (0, "<B"), "int8": (1, "<b"), "uint16": (2, "<H"), "int16": (3, "<h"), "uint32": (4, "<I"),
    "int32": (5, "<i"), "float32": (6, "<f"), "bool": (7, "<B"), "string": (8, ""), "uint64": (10, "<Q"),
    "int64": (11, "<q"), "float64": (12, "<d"),
}  # fmt: skip


def string(value: str | bytes) -> bytes:
    """Encode a GGUF string."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: str, value: object) -> bytes:
    """Encode a value without its type."""
    return string(value) if kind == "string" else struct.pack(KINDS[kind][1], value)


def key(name: str | bytes, kind: str, value: object) -> bytes:
    """Encode a key/value pair; a list becomes an array."""
    if isinstance(value, list):
        body = struct.pack("<IIQ", 9, KINDS[kind][0], len(value)) + b"".join(scalar(kind, item) for item in value)
    else:
        body = struct.pack("<I", KINDS[kind][0]) + scalar(kind, value)
    return string(name) + body


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    """Encode a tensor info; dims are in file order, innermost first."""
    return (
        string(name)
        + struct.pack("<I", len(dims))
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


@dataclass(kw_only=True)
class GGUFBytes:
    """The parts of a file; every count can be overridden to lie."""

    keys: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    version: int = 3
    num_tensors: int | None = None
    num_keys: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        """Join the parts."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        head = b"GGUF" + struct.pack("<IQQ", self.version, num_tensors, num_keys)
        head += b"".join(self.keys) + b"".join(self.tensors)
        return head + b"\0" * (-len(head) % self.alignment) + self.data


def small_file() -> bytes:
    """Make a sound small file with every kind of value and three tensors."""
    keys = [key(f"k.{kind}", kind, 1) for kind in KINDS if kind not in ("string", "bool")]
    keys += [key(f"a.{kind}", kind, [0, 1, 1]) for kind in KINDS if kind not in ("string", "bool")]
    keys += [key("k.bool", "bool", True), key("a.bool", "bool", [True, False]), key("k.string", "string", "octavo")]
    keys += [key("tokenizer.ggml.tokens", "string", ["a", "", "\u20ac", "b c"])]
    tensors = [tensor("f", [4, 2], 0, 0), tensor("q", [32, 3], 8, 32), tensor("h", [8], 1, 160)]
    return GGUFBytes(keys=keys, tensors=tensors, data=bytes(range(256))).build()
