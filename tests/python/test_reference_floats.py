# SPDX-License-Identifier: Apache-2.0
"""Small floating-point types and scales, to the bit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridkv import SpecError
from hybridkv.reference import BFLOAT16, E2M1, E4M3, ScaleRule, SmallFloat
from hybridkv.reference.quantise import decode_elements, decode_ue8m0, encode_elements, scale_exponents

KINDS = (E4M3, E2M1, BFLOAT16)


def finite_values(kind: SmallFloat) -> np.ndarray[Any, Any]:
    """All finite values from 0 up, in order of their codes."""
    return kind.decode(np.arange(kind.largest + 1))


def by_fractions(kind: SmallFloat, code: int) -> float:
    """The value of a code by the formula of IEEE 754, in rational numbers."""
    sign = -1 if code >> (kind.bits - 1) else 1
    exponent = (code >> kind.mantissa_bits) & ((1 << kind.exponent_bits) - 1)
    fraction = Fraction(code & ((1 << kind.mantissa_bits) - 1), 1 << kind.mantissa_bits)
    leading = 1 if exponent else 0
    return float(sign * (leading + fraction) * Fraction(2) ** (max(exponent, 1) - kind.bias))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_code_has_its_value_and_every_value_its_code(kind: SmallFloat) -> None:
    codes = np.arange(1 << kind.bits)
    values = kind.decode(codes)
    magnitude = codes & ((1 << (kind.bits - 1)) - 1)
    finite = magnitude <= kind.largest
    assert values[finite].tolist() == [by_fractions(kind, int(code)) for code in codes[finite]]
    assert (kind.encode(values)[finite] == codes[finite]).all()  # both zeros too: signs are kept
    special = values[~finite]
    assert np.isnan(special[magnitude[~finite] != (kind.infinity or -1)]).all()
    if kind.infinity is not None:
        sign = 1 << (kind.bits - 1)
        assert kind.decode([kind.infinity, kind.infinity | sign]).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_between_two_values_the_nearer_one_and_halfway_the_even_one(kind: SmallFloat) -> None:
    values = finite_values(kind)
    middles = (values[:-1] + values[1:]) / 2  # exact: one bit more
    codes = np.arange(len(middles))
    assert (kind.encode(middles) == codes + codes % 2).all()
    assert (kind.encode(np.nextafter(middles, -np.inf)) == codes).all()
    assert (kind.encode(np.nextafter(middles, np.inf)) == codes + 1).all()
    assert (kind.encode(-middles) == (codes + codes % 2) | (1 << (kind.bits - 1))).all()


@pytest.mark.parametrize(
    ("kind", "values", "codes"),
    [
        (E4M3, [448.0, 464.0, 465.0, 1e300, np.inf, -np.inf], [0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE]),
        (E4M3, [np.nan, -np.nan, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, -0.0, 5e-324], [0x7F, 0x7F, 1, 0, 1, 0x80, 0]),
        (E4M3, [2.0**-6, 7 * 2.0**-9, 7.5 * 2.0**-9], [8, 7, 8]),  # the smallest normal, the largest subnormal
        (E2M1, [6.0, 7.0, np.inf, -np.inf, np.nan, -np.nan], [7, 7, 7, 15, 7, 7]),
        (E2M1, [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.0], [0, 2, 2, 4, 4, 6, 6, 8]),
        (BFLOAT16, [np.inf, -np.inf, np.nan, -np.nan, 3.3895313892515355e38], [0x7F80, 0xFF80, 0x7FC0, 0x7FC0, 0x7F7F]),
        (BFLOAT16, [3.4e38, 1e300, 2.0**-133, 2.0**-134, 1.5 * 2.0**-134], [0x7F80, 0x7F80, 1, 0, 1]),
        (BFLOAT16, [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-40], [0x3F80, 0x3F82, 0x3F81]),
    ],
)
def test_edges(kind: SmallFloat, values: list[float], codes: list[int]) -> None:
    assert kind.encode(values).tolist() == codes


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_no_finite_value_is_nearer(kind: SmallFloat, value: float) -> None:
    values = finite_values(kind)
    got = abs(float(kind.decode(kind.encode(value))))
    inside = min(abs(value), float(values[-1]))
    if np.isfinite(got):
        nearest = min(abs(Fraction(v) - Fraction(inside)) for v in _near(values, inside))
        assert abs(Fraction(got) - Fraction(inside)) == nearest
    else:  # half a step beyond the largest value, and farther
        assert kind.infinity is not None and abs(value) >= float(values[-1]) + float(values[-1] - values[-2]) / 2


def _near(values: np.ndarray[Any, Any], value: float) -> list[float]:
    at = int(np.searchsorted(values, value))
    return [float(v) for v in values[max(at - 2, 0) : at + 2]]


def test_torch_converts_alike() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    numbers = numbers[(numbers >> 23 & 0xFF) != 0xFF]  # those with all bits set are looked at by name
    numbers = np.append(numbers.view(np.float32), np.array([np.inf, -np.inf, np.nan], np.float32))
    spread = (rng.standard_normal(200_000) * 10.0 ** rng.uniform(-4, 2.6, 200_000)).astype(np.float32)
    for values in (numbers, spread):
        wide = values.astype(np.float64)
        theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        nan = np.isnan(wide)
        assert (BFLOAT16.encode(wide) == theirs)[~nan].all()
        assert np.isnan(BFLOAT16.decode(theirs[nan])).all()
        theirs = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        inside = np.abs(wide) <= 448  # beyond, theirs becomes NaN and ours 448
        assert inside.sum() > 50_000 and (E4M3.encode(wide) == theirs)[inside].all()
    codes = np.arange(256, dtype=np.uint8)
    assert np.array_equal(
        E4M3.decode(codes), torch.from_numpy(codes).view(torch.float8_e4m3fn).double().numpy(), equal_nan=True
    )
    codes16 = np.arange(2**16, dtype=np.uint16)
    assert np.array_equal(
        BFLOAT16.decode(codes16), torch.from_numpy(codes16).view(torch.bfloat16).double().numpy(), equal_nan=True
    )


@pytest.mark.parametrize("limit", [448.0, 6.0])
def test_the_exponent_of_a_scale_is_exact(limit: float) -> None:
    for k in (-140, -126, -22, -1, 0, 1, 60, 127):
        edge = limit * 2.0**k
        around = [np.nextafter(edge, 0), edge, np.nextafter(edge, np.inf)]
        assert scale_exponents(around, limit).tolist() == [k, k, k + 1]
        assert scale_exponents(np.nextafter(edge / 2, np.inf), limit) == k


def test_the_bytes_of_ue8m0() -> None:
    codes = np.arange(256)
    values = decode_ue8m0(codes)
    assert values[:255].tolist() == [float(Fraction(2) ** (code - 127)) for code in range(255)]
    assert np.isnan(values[255])
    rule = ScaleRule("ue8m0", 1e-4)
    tiles = (448.0 * 2.0 ** np.arange(-21, 127.0))[:, None]
    scales, stored = rule.scales(tiles, 448.0)
    assert stored[:, 0].tolist() == list(range(106, 254)) and (rule.decode(stored) == scales).all()


@pytest.mark.parametrize(
    ("rule", "tile", "scale", "stored"),
    [
        (ScaleRule("ue8m0", 1e-4), [0.0, -0.0], 2.0**-22, [105]),
        (ScaleRule("ue8m0", 1e-8), [0.0, 0.0], 2.0**-35, [92]),
        (ScaleRule("ue8m0", 1e-4), [np.nan, 448.0], 1.0, [127]),
        (ScaleRule("ue8m0", 1e-4), [np.nan, np.nan], 2.0**-22, [105]),
        (ScaleRule("ue8m0", 1e-4), [-np.inf, 1.0], 2.0**127, [254]),
        (ScaleRule("float32", 1e-4), [-449.0, 1.0], 2.0, [0, 0, 0, 64]),
        (ScaleRule("float32", 1e-4, power_of_two=False), [672.0, 1.0], 1.5, [0, 0, 192, 63]),
    ],
)
def test_scales_of_a_tile(rule: ScaleRule, tile: list[float], scale: float, stored: list[int]) -> None:
    scales, kept = rule.scales(np.array([tile]), 448.0)
    assert scales.tolist() == [scale] and kept.tolist() == [stored]
    assert rule.decode(kept).tolist() == [scale]


def test_scales_in_e4m3_are_the_nearest_and_never_zero() -> None:
    rule = ScaleRule("float8_e4m3", 6 * 2.0**-9, power_of_two=False)
    scales, stored = rule.scales(np.array([[0.0], [6.0], [6.2], [1e9]]), 6.0)
    assert scales.tolist() == [2.0**-9, 1.0, 1.0, 448.0]
    assert stored[:, 0].tolist() == [0x01, 0x38, 0x38, 0x7E]


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("scale.encoding", ("fp16", 1e-4)),
        ("scale.floor", ("ue8m0", 0.0)),
        ("scale.floor", ("ue8m0", np.inf)),
        ("scale.floor", ("ue8m0", "small")),
        ("scale.power_of_two", ("ue8m0", 1e-4, False)),
        ("scale.power_of_two", ("float8_e4m3", 1e-4, True)),
        ("scale.power_of_two", ("float32", 1e-4, 1)),
    ],
)
def test_a_bad_rule_is_refused_by_name(field: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        ScaleRule(*arguments)
    assert caught.value.field == field


def test_the_even_channel_of_e2m1_has_the_low_bits() -> None:
    values = np.array([[0.5, -6.0, 1.0, 0.0]])
    stored = encode_elements(values, "float4_e2m1")
    assert stored.tolist() == [[0xF1, 0x02]]
    assert decode_elements(stored, "float4_e2m1").tolist() == values.tolist()


def test_elements_are_little_endian() -> None:
    assert encode_elements(np.array([[1.0]]), "bfloat16").tolist() == [[0x80, 0x3F]]
    assert encode_elements(np.array([[1.0]]), "float32").tolist() == [[0, 0, 0x80, 0x3F]]
    assert decode_elements(encode_elements(np.array([[np.pi]]), "float64"), "float64").tolist() == [[np.pi]]
    assert np.isinf(decode_elements(encode_elements(np.array([[1e300]]), "float32"), "float32")).all()
