"""The tensor types of a GGUF file: type number, name, elements and bytes per block.

Source: the type enumeration and block structs of ggml (ggml.h, ggml-common.h); data, written once, used by the
reader (sizes) and by the decoders (layouts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["BLOCK", "FORMAT_BY_ID", "UNSUPPORTED_BY_ID", "BlockFormat"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFormat:
    """One way to store a row: `block_bytes` bytes hold `block_elements` consecutive elements."""

    name: str
    type_id: int
    block_elements: int
    block_bytes: int


_FORMATS = tuple(
    BlockFormat(name=name, type_id=type_id, block_elements=elements, block_bytes=size)
    for name, type_id, elements, size in (
        ("F32", 0, 1, 4),
        ("F16", 1, 1, 2),
        ("Q4_0", 2, 32, 18),
        ("Q4_1", 3, 32, 20),
        ("Q5_0", 6, 32, 22),
        ("Q5_1", 7, 32, 24),
        ("Q8_0", 8, 32, 34),
        ("Q2_K", 10, 256, 84),
        ("Q3_K", 11, 256, 110),
        ("Q4_K", 12, 256, 144),
        ("Q5_K", 13, 256, 176),
        ("Q6_K", 14, 256, 210),
        ("IQ4_NL", 20, 32, 18),
        ("IQ4_XS", 23, 256, 136),
        ("I8", 24, 1, 1),
        ("I16", 25, 1, 2),
        ("I32", 26, 1, 4),
        ("F64", 28, 1, 8),
        ("BF16", 30, 1, 2),
        ("MXFP4", 39, 32, 17),
    )
)

BLOCK: Mapping[str, BlockFormat] = MappingProxyType({f.name: f for f in _FORMATS})
"""Every format that can be read and decoded, by name."""

FORMAT_BY_ID: Mapping[int, BlockFormat] = MappingProxyType({f.type_id: f for f in _FORMATS})
"""The same, by the number a GGUF file uses."""

UNSUPPORTED_BY_ID: Mapping[int, str] = MappingProxyType(
    {
        4: "Q4_2 (removed from the format)",
        5: "Q4_3 (removed from the format)",
        9: "Q8_1 (an activation format)",
        15: "Q8_K (an activation format)",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        21: "IQ3_S",
        22: "IQ2_S",
        27: "I64",
        29: "IQ1_M",
        31: "Q4_0_4_4 (removed from the format)",
        32: "Q4_0_4_8 (removed from the format)",
        33: "Q4_0_8_8 (removed from the format)",
        34: "TQ1_0",
        35: "TQ2_0",
        36: "IQ4_NL_4_4 (removed from the format)",
        37: "IQ4_NL_4_8 (removed from the format)",
        38: "IQ4_NL_8_8 (removed from the format)",
        40: "NVFP4",
        41: "Q1_0",
    }
)
"""Known type numbers that have no decoder here; named in the refusal."""
