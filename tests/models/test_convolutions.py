"""cuDNN's convolutions on GPUs: waves, places of a window, rates; against timings that come along."""

import csv
import json
import re

import numpy as np
import pytest

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu import ConvolutionKernel, convolution_us
from gemm_eval.validation.tables import measured_root

H200 = load_arch("h200-sxm", GpuSpec)
MAX_ERROR = {"tensor": (0.15, 0.09), "first layer": (0.14, 0.07), "depthwise": (0.12, 0.06)}
"""MAPE and bias on calls of an H200: constants were fitted on these and on modules on an H100."""


def kernel_us(engine: str, *, dtype: DType = DType.BF16, **sizes: int) -> float:
    """Time of a kernel of one group, of 32,768 positions, 640 filters and windows of 9 unless other sizes are given."""
    of = {"groups": 1, "rows": 32768, "columns": 640, "window": 9, "channels": 320} | sizes
    return convolution_us(H200, ConvolutionKernel(engine, dtype, **of))


def test_waves_of_tiles() -> None:
    """As many tiles as SMs, and one row more: another wave."""
    rows = 256 * H200.num_sms
    one, more, two = (kernel_us("tensor", rows=size, columns=128) for size in (rows, rows + 1, 2 * rows))
    assert one < more <= two < 2 * one
    assert kernel_us("tensor", rows=1) == kernel_us("tensor", rows=64)


def test_time_goes_with_places_and_channels_of_64_bytes() -> None:
    steps = [kernel_us("tensor", window=window) for window in (1, 2, 3)]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0])
    assert kernel_us("tensor", channels=33) >= kernel_us("tensor", channels=64) > kernel_us("tensor", channels=32)
    assert kernel_us("tensor", tile_columns=32) > kernel_us("tensor")


def test_first_layers() -> None:
    patches = {"columns": 768, "window": 256, "channels": 3}
    assert kernel_us("few", rows=1, **patches) == kernel_us("few", rows=128, **patches)
    small, large = (kernel_us("few", rows=rows, columns=64, window=49, channels=3) for rows in (1 << 20, 1 << 21))
    assert large == pytest.approx(2 * small, rel=0.02)


def test_frequencies_are_taken_where_they_are_fewer_products() -> None:
    """An FFT of 32 x 32 for images of 24 x 24; of few channels there is nothing to save."""
    for channels, is_faster in ((72, True), (2, False)):
        sizes = {"rows": 196 * 24 * 24, "columns": 72, "channels": channels}
        windows, either = (kernel_us("fp32", dtype=DType.FP32, images=196, side=side, **sizes) for side in (0, 26))
        assert (either < windows) is is_faster


def test_channels_side_by_side_are_faster() -> None:
    for window in (9, 25, 49):
        first, last = (kernel_us(engine, groups=64, rows=1 << 16, columns=1, channels=1, window=window)
                       for engine in ("planes", "channels"))  # fmt: skip
        assert first > 2 * last


def test_fp16_gathers_eight_channels_a_step() -> None:
    """Filters on their way to shared memory need no steps of 64 bytes: 40 channels take five times as long as 8."""
    sizes = {"dtype": DType.FP16, "rows": 1 << 20, "columns": 24, "window": 25}
    base, one, five = (kernel_us("few", channels=channels, **sizes) for channels in (4, 8, 40))
    assert base == one < five < 5 * one
    assert kernel_us("few", channels=8, **sizes | {"columns": 8}) < one


def test_a_lone_cta_bounds_gradients_of_weights_in_fp32() -> None:
    """Twice as many images are other CTAs, until SMs are full; twice as many positions are not, up to 512."""
    sizes = {"dtype": DType.FP32, "columns": 32, "window": 1, "channels": 32}
    one, two, longer = (
        kernel_us("fp32_weights", rows=rows, images=images, **sizes) for rows, images in ((256, 1), (512, 2), (512, 1))
    )
    assert one == two < longer < 2 * one
    large = {"rows": 1 << 20, "images": 64} | sizes
    assert kernel_us("fp32_weights_last", **large) < kernel_us("fp32_weights", **large)


def test_gradients_of_depthwise_inputs_take_longer() -> None:
    forward, inputs = (kernel_us(engine, groups=64, rows=1 << 18, columns=1, channels=1)
                       for engine in ("planes", "planes_inputs"))  # fmt: skip
    assert inputs > 1.5 * forward


def timed() -> list[tuple[str, float, float]]:
    """Kind of a convolution, its time and what is predicted, of the kernel alone."""
    result = []
    with (measured_root("h200-sxm") / "torch" / "kernels.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["call"].startswith("conv2d")]
    for row in rows:
        is_first = row["call"].split()[1] == "nchw"
        images, channels, side, _, filters, edge, _, stride, pad, groups = map(
            int, re.findall(r"\d+", row["call"].split(" ", 2)[2].removeprefix("bf16"))
        )
        out = (side + 2 * pad - edge) // stride + 1
        M, window = images * out * out, edge * edge
        main = [us for name, us in json.loads(row["kernels"]) if not re.search("Nhwc|Nchw|AddPad|Memset|element", name)]
        sizes = {"rows": M, "columns": filters, "window": window, "channels": channels, "step_bytes": 2 * stride}
        if groups == channels:
            engine = "planes" if is_first else "channels" if images >= 8 else "any_channels"
            sizes |= {"groups": groups, "columns": 1, "channels": 1}
            result.append(("depthwise", sum(main), kernel_us(engine, **sizes)))
        elif channels < 8:
            is_on_cores = window * channels <= 64 or (is_first and M <= 1 << 14 and filters <= 256)
            cores = "cuda_cores" if is_first else "cuda_cores_last"
            result.append(("first layer", sum(main), kernel_us(cores if is_on_cores else "few", **sizes)))
        elif groups == 1 and edge > 1:
            result.append(("tensor", sum(main), kernel_us("tensor", **sizes)))
    return result


def test_timings_that_come_along() -> None:
    rows = timed()
    for kind, (most, most_bias) in MAX_ERROR.items():
        errors = np.array([predicted / measured - 1 for of, measured, predicted in rows if of == kind])
        assert len(errors) >= 16
        assert np.abs(errors).mean() < most, kind
        assert abs(errors.mean()) < most_bias, kind
