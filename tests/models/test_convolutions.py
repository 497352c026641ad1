"""cuDNN's convolutions on GPUs: waves, places of a window, rates; against timings that come along."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu import depthwise_us, few_channels_us, has_few_channels_on_cuda_cores, implicit_gemm_us
from gemm_eval.validation.tables import measured_root

H200 = load_arch("h200-sxm", GpuSpec)
MAX_ERROR = {"window": 0.15, "few": 0.12, "depthwise": 0.10}
"""MAPE on calls that constants were fitted on."""


def implicit_us(M: int = 32768, N: int = 640, window: int = 9, channels: int = 320, dtype: DType = DType.BF16) -> float:
    return implicit_gemm_us(H200, M, N, window, channels, dtype)


def few_us(M: int, N: int, K: int, window: int, *, is_channels_first: bool = False) -> float:
    return few_channels_us(H200, M, N, K, window, is_channels_first=is_channels_first)


def test_waves_of_tiles() -> None:
    """As many tiles as SMs, and one row more: another wave."""
    rows = 128 * H200.num_sms
    assert implicit_us(rows, 128) < implicit_us(rows + 1, 128)
    assert implicit_us(2 * rows, 128) - implicit_us(rows, 128) < implicit_us(rows, 128)
    assert implicit_us(M=1) == implicit_us(M=64)


def test_time_goes_with_places_and_channels_of_128_bytes() -> None:
    steps = [implicit_us(window=window) for window in (1, 2, 3)]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0])
    assert implicit_us(channels=65) == implicit_us(channels=128) > implicit_us(channels=64)
    assert implicit_us(channels=128, dtype=DType.FP8) == pytest.approx(implicit_us(channels=64), rel=0.5)


def test_large_ones_come_close_to_the_peak() -> None:
    flop = 2 * 32768 * 640 * 9 * 320
    rate = flop / implicit_us() / 1e6
    assert 0.7 < rate / H200.peak_tflop_per_s(DType.BF16) < 0.97


def test_first_layers() -> None:
    for M, K, is_first, expected in ((1 << 20, 48, False, True), (1 << 20, 147, True, False), (1024, 147, True, True),
                                     (1024, 147, False, False)):  # fmt: skip
        assert has_few_channels_on_cuda_cores(M, 64, K, is_channels_first=is_first) is expected
    assert few_us(1, 768, 768, 256) == few_us(128, 768, 768, 256)
    small, large = (few_us(M, 64, 147, 49) for M in (1 << 20, 1 << 21))
    assert large == pytest.approx(2 * small, rel=0.02)


def test_channels_side_by_side_are_faster() -> None:
    for window in (9, 25, 49):
        first, last = (depthwise_us(H200, 1 << 22, window, is_channels_first=is_first) for is_first in (True, False))
        assert first > 2 * last


def timed() -> list[tuple[str, float, float]]:
    """Kind of a convolution, its time and what is predicted, of the kernel alone."""
    found = []
    with (measured_root("h200-sxm") / "torch" / "kernels.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["call"].startswith("conv2d")]
    for row in rows:
        layout = row["call"].split()[1]
        images, channels, side, _, filters, edge, _, stride, pad, groups = map(
            int, re.findall(r"\d+", row["call"].split(" ", 2)[2].removeprefix("bf16"))
        )
        out = (side + 2 * pad - edge) // stride + 1
        M, window = images * out * out, edge * edge
        main = [us for name, us in json.loads(row["kernels"]) if not re.search("Nhwc|Nchw|AddPad|Memset|element", name)]
        if groups == channels:
            predicted_us = depthwise_us(H200, M * filters, window, is_channels_first=layout == "nchw")
            found.append(("depthwise", sum(main), predicted_us))
        elif channels < 8:
            found.append(
                ("few", sum(main), few_us(M, filters, window * channels, window, is_channels_first=layout == "nchw"))
            )
        elif groups == 1 and edge > 1:
            found.append(("window", sum(main), implicit_gemm_us(H200, M, filters, window, channels, DType.BF16)))
    return found


def test_timings_that_come_along() -> None:
    rows = timed()
    for kind, most in MAX_ERROR.items():
        errors = np.array([predicted / measured - 1 for of, measured, predicted in rows if of == kind])
        assert len(errors) >= 16
        assert np.abs(errors).mean() < most, kind
        assert abs(errors.mean()) < most / 2, kind
