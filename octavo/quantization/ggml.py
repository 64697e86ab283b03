"""Decode the ggml block formats to float32.

A tensor is a run of blocks; decoders work on a few hundred blocks at a time, so that what they write is still in
the cache when the next pass reads it, and numpy releases the interpreter lock inside each pass. Values are computed
in the order of ggml's reference (scale first, then offset), so they are equal to it bit for bit.

Shapes: n blocks. Layouts are drawn as bytes of one block. Source: block structs in ggml-common.h of ggml, and the
OCP microscaling specification (MXFP4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import numpy as np

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.hf.ggml_types import BLOCK, BlockFormat
from octavo.hf.weight import Weight

__all__ = ["BLOCK", "decode", "decode_many", "decode_rows"]

_CHUNK_ELEMENTS = 1 << 17  # 512 KiB of float32: fits the second-level cache with its temporaries
_TASK_ELEMENTS = 1 << 20  # what one thread takes at a time

_Decoder = Callable[[np.ndarray, np.ndarray], None]

_LOW, _FOUR = np.uint8(0x0F), np.uint8(4)
_CRUMB_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
_BIT_SHIFTS = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)

_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled, so that they are whole numbers


def _byte_tables(values: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Return int8 lookup tables over whole bytes, for the low and for the high nibble."""
    low = bytes(values[byte & 15] & 255 for byte in range(256))
    high = bytes(values[byte >> 4] & 255 for byte in range(256))
    return low, high


_IQ4_TABLES = _byte_tables(_IQ4_VALUES)
_E2M1_TABLES = _byte_tables(_E2M1_VALUES)


def decode(weight: Weight, out: np.ndarray | None = None) -> np.ndarray:
    """Decode a whole weight, of any shape.

    out: C-contiguous float32 of the weight's shape, written if given. Returns it, or a new array.
    Raises UnsupportedModelError for an unknown format, CheckpointError if the bytes do not fit the shape.
    """
    return decode_many([weight], outs=None if out is None else [out])[0]


def decode_rows(weight: Weight, start: int, stop: int, *, out: np.ndarray | None = None) -> np.ndarray:
    """Decode rows start to stop (exclusive); leading dimensions count as rows, [.., D] is [R, D].

    out: C-contiguous float32 [stop - start, D], written if given. Returns it, or a new array. Errors: see `decode`;
    ValueError for rows that do not exist.
    """
    form = _check(weight)
    dim = weight.shape[-1] if weight.shape else 1
    rows = weight.data.size // form.block_bytes * form.block_elements // max(dim, 1)
    if not 0 <= start <= stop <= rows:
        raise ValueError(f"rows {start} to {stop} of {weight.name!r}, which has {rows}")
    row_bytes = dim // form.block_elements * form.block_bytes
    part = Weight(weight.name, (stop - start, dim), weight.format, weight.data[start * row_bytes : stop * row_bytes])
    return decode(part, out)


def decode_many(
    weights: Sequence[Weight], threads: int = 1, *, outs: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """Decode several weights, of any shape, with a pool of threads; a large weight is shared among them.

    outs: one C-contiguous float32 array per weight, written if given. Returns them, or new arrays, in order.
    Errors: see `decode`; all weights are checked before the first is decoded.
    """
    for weight in weights:
        _check(weight)
    if outs is None:
        outs = [np.empty(weight.shape, dtype=np.float32) for weight in weights]
    tasks: list[tuple[_Decoder, np.ndarray, np.ndarray]] = []
    for weight, out in zip(weights, outs, strict=True):
        if out.shape != weight.shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(
                f"{weight.name!r}: out is {out.dtype} {out.shape}, needed is contiguous float32 {weight.shape}"
            )
        form = BLOCK[weight.format]
        blocks = weight.data.reshape(-1, form.block_bytes)
        flat = out.reshape(-1, form.block_elements)
        step = _TASK_ELEMENTS // form.block_elements
        for i in range(0, len(blocks), step):
            tasks.append((_DECODERS[weight.format], blocks[i : i + step], flat[i : i + step]))
    if threads <= 1 or len(tasks) <= 1:
        for task in tasks:
            _run(task)
    else:
        with ThreadPoolExecutor(min(threads, len(tasks)), thread_name_prefix="decode") as pool:
            for _ in pool.map(_run, tasks):
                pass
    return list(outs)


def _check(weight: Weight) -> BlockFormat:
    """Return the weight's format; raises if it is unknown or the bytes do not fit the shape."""
    form = BLOCK.get(weight.format)
    if form is None:
        raise UnsupportedModelError(f"tensor {weight.name!r} has format {weight.format}, not one of {', '.join(BLOCK)}")
    elements = 1
    for dim in weight.shape:
        elements *= dim
    last = weight.shape[-1] if weight.shape else 1
    if last % form.block_elements or elements // form.block_elements * form.block_bytes != weight.data.size:
        raise CheckpointError(
            f"tensor {weight.name!r} of shape {weight.shape} in format {weight.format} ({form.block_bytes} bytes per "
            f"{form.block_elements} elements of the last dimension) cannot have {weight.data.size} bytes"
        )
    return form


def _run(task: tuple[_Decoder, np.ndarray, np.ndarray]) -> None:
    """Decode blocks [n, bytes] uint8 into out [n, elements] float32, a cache-sized chunk at a time."""
    decoder, blocks, out = task
    step = max(1, _CHUNK_ELEMENTS // out.shape[1])
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):  # a hostile scale may be inf or NaN
        for i in range(0, len(blocks), step):
            decoder(blocks[i : i + step], out[i : i + step])


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """Read the float16 at byte `at` of each block [n, bytes]. Returns float32 [n, 1]."""
    value: np.ndarray = blocks[:, at : at + 2].view("<f2").astype(np.float32)
    return value


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Split bytes [n, k, g] into their low, then their high halves: uint8 [n, k, 2, g]."""
    n, k, g = packed.shape
    result = np.empty((n, k, 2, g), dtype=np.uint8)
    np.bitwise_and(packed, _LOW, out=result[:, :, 0])
    np.right_shift(packed, _FOUR, out=result[:, :, 1])
    return result


def _lookup(packed: np.ndarray, tables: tuple[bytes, bytes]) -> np.ndarray:
    """Map the nibbles of bytes [n, k, g] through int8 tables, low halves first: int8 [n, k, 2, g]."""
    n, k, g = packed.shape
    raw = packed.tobytes()
    result = np.empty((n, k, 2, g), dtype=np.int8)
    for half, table in enumerate(tables):
        result[:, :, half] = np.frombuffer(raw.translate(table), dtype=np.int8).reshape(n, k, g)
    return result


def _affine(q: np.ndarray, scale: np.ndarray, offset: np.ndarray | None, out: np.ndarray) -> None:
    """Write scale * q + offset. q: uint8/int8, n * elements; scale, offset: f32 [n, s, 1]; out: f32 [n, elements]."""
    np.copyto(out, q.reshape(out.shape))
    grouped = out.reshape(len(out), scale.shape[1], -1)
    np.multiply(grouped, scale, out=grouped)
    if offset is not None:
        np.add(grouped, offset, out=grouped)


def _plain(dtype: str) -> _Decoder:
    """Make the decoder of a numpy dtype, one element per block."""

    def decode_plain(blocks: np.ndarray, out: np.ndarray) -> None:
        np.copyto(out, blocks.view(dtype), casting="unsafe")

    return decode_plain


def _bf16(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode bfloat16: the upper half of a float32."""
    bits = out.view(np.uint32)
    np.copyto(bits, blocks.view("<u2"))
    np.left_shift(bits, np.uint32(16), out=bits)


def _q4_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode d f16 | qs 16: value = d * (q - 8); low nibbles are the first 16 elements."""
    q = _nibbles(blocks[:, None, 2:18])
    _affine(np.subtract(q, np.uint8(8), out=q).view(np.int8), _half(blocks, 0)[:, :, None], None, out)


def _q4_1(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode d f16 | m f16 | qs 16: value = d * q + m."""
    q = _nibbles(blocks[:, None, 4:20])
    _affine(q, _half(blocks, 0)[:, :, None], _half(blocks, 2)[:, :, None], out)


def _five_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """Join qh 4 | qs 16 at byte `at`: bit i of qh is the fifth bit of element i. Returns uint8 [n, 32]."""
    high = np.unpackbits(blocks[:, at : at + 4].reshape(-1), bitorder="little").reshape(-1, 32)
    q = _nibbles(blocks[:, None, at + 4 : at + 20]).reshape(-1, 32)
    np.left_shift(high, _FOUR, out=high)
    np.bitwise_or(q, high, out=q)
    return q


def _q5_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode d f16 | qh 4 | qs 16: value = d * (q - 16)."""
    q = _five_bits(blocks, 2)
    _affine(np.subtract(q, np.uint8(16), out=q).view(np.int8), _half(blocks, 0)[:, :, None], None, out)


def _q5_1(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode d f16 | m f16 | qh 4 | qs 16: value = d * q + m."""
    _affine(_five_bits(blocks, 4), _half(blocks, 0)[:, :, None], _half(blocks, 2)[:, :, None], out)


def _q8_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode d f16 | qs 32 int8: value = d * q."""
    _affine(blocks[:, 2:34].view(np.int8), _half(blocks, 0)[:, :, None], None, out)


def _crumbs(packed: np.ndarray) -> np.ndarray:
    """Split bytes [n, k, g] into two-bit numbers, lowest bits first: uint8 [n, k, 4, g]."""
    q: np.ndarray = np.right_shift(packed[:, :, None], _CRUMB_SHIFTS)
    np.bitwise_and(q, np.uint8(3), out=q)
    return q


def _q2_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode scales 16 | qs 64 | d f16 | dmin f16: value = d * scale * q - dmin * min, 16 elements per scale."""
    scales = blocks[:, :16]
    d = _half(blocks, 80) * (scales & _LOW).astype(np.float32)
    m = _half(blocks, 82) * (scales >> _FOUR).astype(np.float32)
    q = _crumbs(blocks[:, 16:80].reshape(-1, 2, 32))
    _affine(q, d[:, :, None], np.negative(m, out=m)[:, :, None], out)


def _q3_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode hmask 32 | qs 64 | scales 12 | d f16: value = d * (scale - 32) * (q - 4 where the mask bit is 0).

    Scales are 6 bits: low four in bytes 0-7 (low nibbles first), high two in bytes 8-11 (lowest bits first).
    """
    n = len(blocks)
    low = _nibbles(blocks[:, None, 96:104]).reshape(n, 16)
    high = _crumbs(blocks[:, None, 104:108]).reshape(n, 16)
    scales = (low | high << _FOUR).view(np.int8) - np.int8(32)
    d = _half(blocks, 108) * scales.astype(np.float32)
    q = _crumbs(blocks[:, 32:96].reshape(-1, 2, 32)).reshape(n, 8, 32)
    mask = np.right_shift(blocks[:, None, :32], _BIT_SHIFTS)
    np.bitwise_and(mask, np.uint8(1), out=mask)
    np.left_shift(mask, np.uint8(2), out=mask)
    np.add(q, mask, out=q)
    _affine(np.subtract(q, _FOUR, out=q).view(np.int8), d[:, :, None], None, out)


def _scales_and_mins(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unpack the twelve bytes [n, 12] of Q4_K and Q5_K into eight 6-bit scales and mins, float32 [n, 8] each.

    Bytes 0-3 hold scales 0-3, bytes 4-7 mins 0-3; bytes 8-11 the low nibbles of scales 4-7 and, above them, of mins
    4-7, whose two high bits are on top of the first eight bytes.
    """
    scale, low_min, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    six, two_up = np.uint8(0x3F), np.uint8(0x30)
    scales = np.concatenate([scale & six, rest & _LOW | scale >> np.uint8(2) & two_up], axis=1)
    mins = np.concatenate([low_min & six, rest >> _FOUR | low_min >> np.uint8(2) & two_up], axis=1)
    return scales.astype(np.float32), mins.astype(np.float32)


def _k_affine(blocks: np.ndarray, q: np.ndarray, out: np.ndarray) -> None:
    """Finish Q4_K and Q5_K, which begin d f16 | dmin f16 | scales 12: value = d * scale * q - dmin * min."""
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    np.multiply(scales, _half(blocks, 0), out=scales)
    np.multiply(mins, _half(blocks, 2), out=mins)
    _affine(q, scales[:, :, None], np.negative(mins, out=mins)[:, :, None], out)


def _q4_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode d f16 | dmin f16 | scales 12 | qs 128, 32 elements per scale."""
    _k_affine(blocks, _nibbles(blocks[:, 16:144].reshape(-1, 4, 32)), out)


def _q5_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode d f16 | dmin f16 | scales 12 | qh 32 | qs 128: bit j of qh[i] belongs to element i of group j."""
    q = _nibbles(blocks[:, 48:176].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = np.right_shift(blocks[:, None, 16:48], _BIT_SHIFTS)
    np.bitwise_and(high, np.uint8(1), out=high)
    np.left_shift(high, _FOUR, out=high)
    _k_affine(blocks, np.bitwise_or(q, high, out=q), out)


def _q6_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode ql 128 | qh 64 | scales 16 int8 | d f16: value = d * scale * (q - 32), 16 elements per scale."""
    d = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    q = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    high = _crumbs(blocks[:, 128:192].reshape(-1, 2, 32)).reshape(-1, 8, 32)
    np.left_shift(high, _FOUR, out=high)
    np.bitwise_or(q, high, out=q)
    _affine(np.subtract(q, np.uint8(32), out=q).view(np.int8), d[:, :, None], None, out)


def _iq4_nl(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode d f16 | qs 16: value = d * table[q]."""
    _affine(_lookup(blocks[:, None, 2:18], _IQ4_TABLES), _half(blocks, 0)[:, :, None], None, out)


def _iq4_xs(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode d f16 | scales_h u16 | scales_l 4 | qs 128: value = d * (scale - 32) * table[q], 32 elements per scale."""
    low = np.stack([blocks[:, 4:8] & _LOW, blocks[:, 4:8] >> _FOUR], axis=2).reshape(-1, 8)
    high = _crumbs(blocks[:, 2:4].reshape(-1, 2, 1)).reshape(-1, 8)
    scales = (low | high << _FOUR).view(np.int8) - np.int8(32)
    d = _half(blocks, 0) * scales.astype(np.float32)
    _affine(_lookup(blocks[:, 8:136].reshape(-1, 8, 16), _IQ4_TABLES), d[:, :, None], None, out)


def _mxfp4(blocks: np.ndarray, out: np.ndarray) -> None:
    """Decode e 1 | qs 16: value = 2^(e - 128) * table[q]; the table is doubled. e = 0 and 1 are subnormal scales."""
    e = blocks[:, :1].astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << e, (e - np.uint32(1)) << np.uint32(23))
    _affine(_lookup(blocks[:, None, 1:17], _E2M1_TABLES), bits.view(np.float32)[:, :, None], None, out)


_DECODERS: Mapping[str, _Decoder] = MappingProxyType(
    {
        "F32": _plain("<f4"),
        "F16": _plain("<f2"),
        "BF16": _bf16,
        "F64": _plain("<f8"),
        "I8": _plain("<i1"),
        "I16": _plain("<i2"),
        "I32": _plain("<i4"),
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q8_0": _q8_0,
        "Q2_K": _q2_k,
        "Q3_K": _q3_k,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
        "IQ4_NL": _iq4_nl,
        "IQ4_XS": _iq4_xs,
        "MXFP4": _mxfp4,
    }
)
