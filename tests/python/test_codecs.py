"""Element codecs against ml_dtypes: every bfloat16 input, every code."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import mpfa

ALL_BF16 = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
FINITE = ALL_BF16[np.isfinite(ALL_BF16)]


def as_matrix(x, d):
    """x in rows of d, the last row filled with zeros."""
    return np.concatenate([x, np.zeros(-len(x) % d, np.float32)]).reshape(-1, d)


@pytest.mark.parametrize(
    "name, dtype, largest, nan",
    [("fp8_e4m3_static", ml_dtypes.float8_e4m3fn, 448, 0x7F), ("fp8_e5m2_static", ml_dtypes.float8_e5m2, 57344, 0x7F)],
)
def test_fp8_codes(name, dtype, largest, nan):
    x = as_matrix(FINITE, 128)
    codes = mpfa.quantize(x, name, scale=[1.0]).data
    expected = np.clip(x, -largest, largest).astype(dtype).view(np.uint8)
    assert np.array_equal(codes, expected)
    special = np.zeros((1, 128), np.float32)
    special[0, :3] = np.nan, np.inf, -np.inf
    codes = mpfa.quantize(special, name, scale=[1.0]).data[0]
    top = np.float32(largest).astype(dtype).view(np.uint8)
    assert codes[0] & 0x7F == nan and codes[1] == top and codes[2] == top | 0x80
    assert not codes[3:].any()


@pytest.mark.parametrize(
    "name, dtype", [("fp8_e4m3_static", ml_dtypes.float8_e4m3fn), ("fp8_e5m2_static", ml_dtypes.float8_e5m2)]
)
def test_every_fp8_code_decodes(name, dtype):
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    packed = dataclasses.replace(mpfa.quantize(np.zeros((2, 128), np.float32), name, scale=[1.0]), data=codes)
    assert np.array_equal(mpfa.dequantize(packed), codes.view(dtype).astype(np.float32), equal_nan=True)


def test_e2m1_codes_of_every_bf16_in_range():
    inside = FINITE[np.abs(FINITE) <= 6]
    blocks = as_matrix(inside, 15)
    blocks = np.concatenate([np.full((len(blocks), 1), 6, np.float32), blocks], axis=1)  # amax 6: the scale is 1
    packed = mpfa.quantize(blocks, "nvfp4")
    assert (packed.scales == 0x38).all()
    nibbles = np.stack([packed.data & 15, packed.data >> 4], axis=-1).reshape(blocks.shape)
    assert np.array_equal(nibbles, blocks.astype(ml_dtypes.float4_e2m1fn).view(np.uint8))
    assert np.array_equal(mpfa.dequantize(packed), blocks.astype(ml_dtypes.float4_e2m1fn).astype(np.float32))


def test_e2m1_ties_go_to_the_even_code():
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, np.nextafter(np.float32(0.25), 1)]
    x = np.zeros((1, 16), np.float32)
    x[0, 0], x[0, 1:9] = 6, ties
    assert mpfa.dequantize(mpfa.quantize(x, "nvfp4"))[0, 1:9].tolist() == [0, 1, 1, 2, 2, 4, 4, 0.5]


def test_e8m0_scales_of_every_byte_decode():
    scales = np.arange(256, dtype=np.uint8).reshape(256, 1)
    one = np.zeros((256, 32), np.float32)
    one[:, 0] = 1
    packed = mpfa.quantize(one, "mxfp4_ocp")
    packed = dataclasses.replace(packed, scales=scales, data=np.full_like(packed.data, 0x22))  # every code is 1.0
    expected = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(mpfa.dequantize(packed), np.repeat(expected, 32, axis=1), equal_nan=True)


@pytest.mark.parametrize(
    "name, exponent",
    [
        ("mxfp4_ocp", lambda m, e: e - 1 - 2),  # floor(log2 amax) - 2 with amax = m * 2^e, m in [0.5, 1)
        ("mxfp4_ceil", lambda m, e: np.where(m <= 0.75, e - 3, e - 2)),  # ceil(log2(amax / 6))
        ("mxfp4", lambda m, e: np.where(m <= 7.25 / 8, e - 3, e - 2)),  # ceil(log2(amax / 7.25))
    ],
)
def test_e8m0_rules_for_every_amax(name, exponent):
    amax = FINITE[FINITE > 0]
    x = np.zeros((len(amax), 32), np.float32)
    x[:, 7] = -amax
    mantissa, power = np.frexp(amax.astype(np.float64))
    wanted = np.clip(exponent(mantissa, power) + 127, 0, 252)  # above 252 the code 6 would read as infinity
    packed = mpfa.quantize(x, name)
    scale = packed.scales[:, 0]
    flushed = (packed.data == 0).all(axis=1) & (scale == 0)  # scale code 0 and codes 0: the block reads as zero
    assert np.array_equal(scale[~flushed], wanted[~flushed])
    assert (wanted[flushed] == 0).all()


def test_plain_16_bit_formats():
    x = as_matrix(np.random.default_rng(3).standard_normal(4096).astype(np.float32) * 100, 64)
    assert np.array_equal(mpfa.quantize(x, "bf16").data, x.astype(ml_dtypes.bfloat16).view(np.uint8))
    assert np.array_equal(mpfa.quantize(x, "fp16").data, x.astype(np.float16).view(np.uint8))
    everything = as_matrix(ALL_BF16, 128)
    assert np.array_equal(mpfa.dequantize(mpfa.quantize(everything, "bf16")), everything, equal_nan=True)
    small = as_matrix(FINITE[np.abs(FINITE) <= 65504], 128)
    assert np.array_equal(mpfa.quantize(small, "fp16").data, small.astype(np.float16).view(np.uint8))


@pytest.mark.parametrize("name", mpfa.formats())
def test_round_trip_of_every_format(name):
    x = np.random.default_rng(5).standard_normal((2, 3, 64, 64)).astype(np.float32)
    kwargs = {"scale": [0.01] * 6} if "static" in name else {}
    packed = mpfa.quantize(x, name, **kwargs)
    back = mpfa.dequantize(packed)
    assert back.shape == x.shape and np.linalg.norm(back - x) < 0.25 * np.linalg.norm(x)
    assert packed.nbytes == packed.data.nbytes + packed.scales.nbytes
    assert packed.data.shape[:2] == (2, 3) and mpfa.format_description(name)
    meta = packed.metadata
    assert meta["nibble_order"] == ("interleaved" if meta["element_bits"] == 4 else "none")


def test_a_bad_value_spoils_its_block_only():
    x = np.random.default_rng(6).standard_normal((1, 128)).astype(np.float32)
    clean = mpfa.dequantize(mpfa.quantize(x, "mxfp4"))
    for bad in (np.nan, np.inf):
        y = x.copy()
        y[0, 40] = bad
        packed = mpfa.quantize(y, "mxfp4")
        back = mpfa.dequantize(packed)
        assert packed.counters["nonfinite"] == 1 and packed.scales[0, 1] == 0xFF
        assert np.isnan(back[0, 32:64]).all()
        assert np.array_equal(np.delete(back, np.s_[32:64], 1), np.delete(clean, np.s_[32:64], 1))
