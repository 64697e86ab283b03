"""Decoders of the ggml block formats against the gguf package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.hf.ggml_types import BLOCK, FORMAT_BY_ID, UNSUPPORTED_BY_ID
from octavo.hf.gguf import read_gguf
from octavo.hf.weight import Weight
from octavo.quantization.ggml import _DECODERS, decode, decode_many, decode_rows
from tests.hf.real_models import DEMO, GEMMA, QWEN, model_file

BLOCK_FORMATS = [name for name, form in BLOCK.items() if form.block_elements > 1]
# Byte positions of the float16 numbers in a block, kept sane in random blocks.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
}  # fmt: skip


def random_blocks(name: str, num_blocks: int, seed: int = 0) -> np.ndarray:
    """Make blocks of random bytes with finite scales of both signs; uint8 [num_blocks, block_bytes]."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_blocks, BLOCK[name].block_bytes), dtype=np.uint8)
    for at in HALVES[name]:
        blocks[:, at : at + 2] = rng.standard_normal((num_blocks, 1)).astype("<f2").view(np.uint8)
    return blocks


def oracle(blocks: np.ndarray, name: str) -> np.ndarray:
    """Decode with the gguf package; its MXFP4 may overflow to infinity, as ours."""
    with np.errstate(over="ignore"):
        return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])


def assert_bits_equal(ours: np.ndarray, expected: np.ndarray) -> None:
    """Compare float32 arrays bit for bit."""
    assert ours.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(ours.reshape(-1).view(np.uint32), expected.reshape(-1).view(np.uint32))


def test_every_format_has_a_decoder_and_the_sizes_of_the_gguf_package() -> None:
    assert set(_DECODERS) == set(BLOCK)
    for form in BLOCK.values():
        kind = gguf.GGMLQuantizationType[form.name]
        assert (int(kind), gguf.GGML_QUANT_SIZES[kind]) == (form.type_id, (form.block_elements, form.block_bytes))
    assert not set(FORMAT_BY_ID) & set(UNSUPPORTED_BY_ID)
    assert {int(kind) for kind in gguf.GGMLQuantizationType} <= set(FORMAT_BY_ID) | set(UNSUPPORTED_BY_ID)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_random_blocks_decode_bit_exactly(name: str) -> None:
    form = BLOCK[name]
    blocks = random_blocks(name, 1200 if form.block_elements == 256 else 6000)  # several chunks and a rest
    weight = Weight("w", (blocks.shape[0] // 4, 4 * form.block_elements), name, blocks.reshape(-1))
    assert_bits_equal(decode(weight), oracle(blocks, name))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_quantised_data_decodes_bit_exactly_and_near_the_original(name: str) -> None:
    data = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    packed = gguf.quants.quantize(data, gguf.GGMLQuantizationType[name])
    ours = decode(Weight("w", data.shape, name, packed.reshape(-1)))
    assert_bits_equal(ours, oracle(packed, name))
    # Largest step of the format: MXFP4 rounds 6 to 8 (a third of the largest value), the others 1/7 of it or less.
    assert np.abs(ours - data).max() <= np.abs(data).max() / (3 if name == "MXFP4" else 7)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_hostile_scales_do_not_warn(name: str) -> None:
    blocks = np.full((3, BLOCK[name].block_bytes), 0xFF, dtype=np.uint8)
    for at in HALVES[name]:
        blocks[0, at : at + 2] = (0x00, 0x7C)  # inf
    decode(Weight("w", (3, BLOCK[name].block_elements), name, blocks.reshape(-1)))


def test_every_mxfp4_exponent_decodes_bit_exactly() -> None:
    blocks = random_blocks("MXFP4", 256)
    blocks[:, 0] = np.arange(256)
    assert_bits_equal(decode(Weight("w", (256, 32), "MXFP4", blocks.reshape(-1))), oracle(blocks, "MXFP4"))


def test_every_bf16_pattern_is_the_upper_half_of_a_float32() -> None:
    patterns = np.arange(65536, dtype="<u2")
    weight = Weight("w", (256, 256), "BF16", patterns.view(np.uint8))
    assert_bits_equal(decode(weight), (patterns.astype(np.uint32) << 16).view(np.float32))


def test_plain_formats_decode_as_numpy_casts_them() -> None:
    values = np.array([[-3.0, 0.5, 100.0, -0.0]])
    for name, dtype in (("F32", "f4"), ("F16", "f2"), ("F64", "f8"), ("I8", "i1"), ("I16", "i2"), ("I32", "i4")):
        stored = values.astype(dtype)
        weight = Weight("w", values.shape, name, stored.reshape(-1).view(np.uint8))
        assert_bits_equal(decode(weight), stored.astype(np.float32))


def test_rows_are_those_of_the_whole() -> None:
    blocks = random_blocks("Q4_K", 24)
    weight = Weight("w", (2, 6, 512), "Q4_K", blocks.reshape(-1))
    whole = decode(weight).reshape(12, 512)
    out = np.empty((4, 512), dtype=np.float32)
    assert decode_rows(weight, 5, 9, out=out) is out
    assert_bits_equal(out, whole[5:9])
    assert decode_rows(weight, 3, 3).shape == (0, 512)
    with pytest.raises(ValueError, match="has 12"):
        decode_rows(weight, 5, 13)


def test_threads_change_nothing() -> None:
    weights = [
        Weight(name, (70, 32 * BLOCK[name].block_elements), name, random_blocks(name, 70 * 32).reshape(-1))
        for name in ("Q4_1", "Q8_0", "Q6_K", "Q4_K")
    ]
    big = random_blocks("Q4_0", 1 << 17)  # two tasks
    weights.append(Weight("big", (1 << 17, 32), "Q4_0", big.reshape(-1)))
    for alone, shared in zip(decode_many(weights), decode_many(weights, threads=3), strict=True):
        assert_bits_equal(alone, shared)
    assert_bits_equal(decode_many(weights, threads=2)[-1], oracle(big, "Q4_0"))


def test_out_is_written_and_returned() -> None:
    weight = Weight("w", (4, 32), "Q8_0", random_blocks("Q8_0", 4).reshape(-1))
    out = np.full((4, 32), np.nan, dtype=np.float32)
    assert decode(weight, out) is out
    assert_bits_equal(out, oracle(random_blocks("Q8_0", 4), "Q8_0"))


@pytest.mark.parametrize(
    "out",
    [np.empty((4, 31), np.float32), np.empty((4, 32), np.float64), np.empty((32, 4), np.float32).T],
    ids=["shape", "dtype", "layout"],
)
def test_unfit_out_is_refused(out: np.ndarray) -> None:
    with pytest.raises(ValueError, match="contiguous float32"):
        decode(Weight("w", (4, 32), "Q8_0", random_blocks("Q8_0", 4).reshape(-1)), out)


def test_scalar_and_empty_tensors_decode() -> None:
    assert decode(Weight("w", (), "F32", np.float32([2.5]).view(np.uint8))) == np.float32(2.5)
    for shape in ((0, 4), (4, 0), (0,)):
        empty = Weight("w", shape, "BF16", np.empty(0, dtype=np.uint8))
        assert decode(empty).shape == shape
        assert decode_rows(empty, 0, 0).size == 0


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    data = np.zeros(34 * 4, dtype=np.uint8)
    for shape in ((5, 32), (4, 33), (8, 16), (4, 64)):
        with pytest.raises(CheckpointError, match="cannot have 136 bytes"):
            decode(Weight("w", shape, "Q8_0", data))


def test_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="IQ1_S.*not one of.*Q4_K"):
        decode(Weight("w", (256,), "IQ1_S", np.zeros(50, dtype=np.uint8)))


def check_real_model(name: str) -> None:
    """Compare up to three tensors of each format of a real model, the first 2 million elements of each."""
    seen: dict[str, int] = {}
    for weight in read_gguf(model_file(name)).weights.values():
        seen[weight.format] = seen.get(weight.format, 0) + 1
        if seen[weight.format] > 3:
            continue
        rows = min(2_000_000 // weight.shape[-1], weight.shape[0]) if len(weight.shape) > 1 else 1
        row_bytes = weight.data.size // (weight.shape[0] if len(weight.shape) > 1 else 1)
        packed = weight.data[: rows * row_bytes].reshape(rows, row_bytes)
        assert_bits_equal(decode_rows(weight, 0, rows), oracle(packed, weight.format))
    assert len(seen) >= 3


def test_demo_model_decodes_bit_exactly() -> None:
    check_real_model(DEMO)


@pytest.mark.slow
@pytest.mark.parametrize("name", [QWEN, GEMMA])
def test_real_model_decodes_bit_exactly(name: str) -> None:
    check_real_model(name)
