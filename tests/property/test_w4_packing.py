"""Laws of packed weights: KERNELS.md bit by bit, exact round trips, and how far quantizing moves a weight."""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gemm_eval.kernels.weights import PackedW4, dequantize, pack_w4, quantize_w4, unpack_w4

# (w / s) and s x (u - z) are rounded to fp32 on the way; 15 scales at most.
HALF = 0.5 + 16 * 2**-24


class Case(NamedTuple):
    K: int
    N: int
    mode: str
    group_size: int | None
    activation: str
    seed: int

    @property
    def groups(self) -> int:
        return -(-self.K // (self.group_size or self.K))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    mode = draw(st.sampled_from(["column", "group", "group_zero"]))
    return Case(
        K=8 * draw(st.integers(1, 40)),
        N=8 * draw(st.integers(1, 20)),
        mode=mode,
        group_size=None if mode == "column" else draw(st.sampled_from([32, 64, 128])),
        activation=draw(st.sampled_from(["fp16", "bf16"])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def random_integers(case: Case) -> tuple[Any, Any, Any, PackedW4]:
    rng = np.random.default_rng(case.seed)
    integers = rng.integers(0, 16, (case.K, case.N), dtype=np.uint8)
    # 8 significant bits: both types hold them
    scales = (rng.integers(128, 256, (case.groups, case.N)) * rng.choice([-1, 1], case.N) / 2**12).astype(np.float32)
    zeros = rng.integers(0, 16, (case.groups, case.N), dtype=np.uint8) if case.mode == "group_zero" else None
    packed = pack_w4(integers, case.group_size, case.mode, scales=scales, zeros=zeros, activation=case.activation)
    return integers, scales, zeros, packed


@given(case=cases())
def test_round_trip_is_exact(case: Case) -> None:
    integers, scales, zeros, packed = random_integers(case)
    found = unpack_w4(packed)

    np.testing.assert_array_equal(found.integers, integers)
    np.testing.assert_array_equal(found.scales, scales)
    assert (found.zeros is None) == (zeros is None)
    if zeros is not None:
        np.testing.assert_array_equal(found.zeros, zeros)
    again = pack_w4(
        found.integers, case.group_size, case.mode, scales=found.scales, zeros=found.zeros, activation=case.activation
    )
    np.testing.assert_array_equal(again.qweight, packed.qweight)
    np.testing.assert_array_equal(again.scales, packed.scales)


def bound(case: Case, weights: Any) -> None:
    """No weight moves by more than half a scale, as computed with the scale that is stored."""
    quantized = quantize_w4(weights, case.group_size, case.mode, case.activation)
    found = dequantize(pack_w4(weights, case.group_size, case.mode, activation=case.activation))
    rows = np.arange(case.K) // (case.group_size or case.K)
    scales = np.abs(quantized.scales[rows].astype(np.float64))

    assert (np.abs(found - weights) <= HALF * scales).all()
    assert not found[weights == 0].any()
    # The scale is no larger than 15 steps need, but for rounding to the type (and its smallest value).
    parts = [
        weights[start : start + (case.group_size or case.K)] for start in range(0, case.K, case.group_size or case.K)
    ]
    span = np.array([np.maximum(p.max(0), 0) - np.minimum(p.min(0), 0) for p in parts], np.float64)
    furthest = np.array([np.abs(p).max(0) for p in parts], np.float64)
    needed = span / 15 if case.mode == "group_zero" else furthest / 7.5
    precision, smallest = (2**-10, 2.0**-24) if case.activation == "fp16" else (2**-7, 2.0**-133)
    assert (np.abs(quantized.scales) <= needed * (1 + precision) + smallest).all()


@given(case=cases(), exponent=st.integers(-30, 11), skew=st.floats(-3, 3))
def test_random_weights_move_by_half_a_scale_at_most(case: Case, exponent: int, skew: float) -> None:
    rng = np.random.default_rng(case.seed)
    bound(case, ((rng.standard_t(3, (case.K, case.N)).clip(-9, 9) + skew) * 2.0**exponent).astype(np.float32))


@given(case=cases(), column=arrays.arrays(np.float32, 40, elements=st.floats(-4096, 4096, width=32)))
def test_nasty_weights_move_by_half_a_scale_at_most(case: Case, column: Any) -> None:
    """Values that Hypothesis picks: ties, signed zeros, subnormals, one large among small."""
    case = case._replace(K=40, N=8)
    bound(case, np.stack([np.roll(column, i) * np.float32((-1) ** i) for i in range(8)], axis=1))


@given(case=cases())
def test_zero_points_halve_the_step_of_weights_on_one_side(case: Case) -> None:
    """15 steps instead of 8, up to rounding of both scales."""
    weights = np.random.default_rng(case.seed).uniform(0.5, 1, (128, 8)).astype(np.float32)
    symmetric = quantize_w4(weights, 128, "group", case.activation).scales
    with_zero = quantize_w4(weights, 128, "group_zero", case.activation).scales

    assert (with_zero <= np.abs(symmetric) * 8 / 15 * (1 + 2**-6)).all()
