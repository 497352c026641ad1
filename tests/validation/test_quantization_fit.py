"""The fit of the quantization of A: it finds what was planted, holds sizes of A out, and refuses what it cannot use."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import load_calibration, pack_coefficients, pack_gpu, quantize_rows
from gemm_eval.models.gpu.families import QUANTIZE
from gemm_eval.validation.subjects.dense import calibrate_quantization
from gemm_eval.validation.tables import QUANT_COLUMN, Floats, Timings
from gemm_eval.workload import GemmTypes, RunOptions
from tests.cli.commands import Ran
from tests.validation.inputs import H200

PLANTED = QUANTIZE.defaults | {
    "quantize_us": 3.1, "quantize_row_ns": 1.5, "quantize_l2_frac": 0.45, "quantize_dram_frac": 0.7,
}  # fmt: skip
SIZES = [(m, k) for m in (1, 16, 64, 256, 1024, 4096, 16384, 32768) for k in (128, 1024, 4096, 8192, 65536)]


def planted_us(sizes: list[tuple[int, int]]) -> Floats:
    params = pack_gpu(H200, GemmTypes.parse("fp8"), RunOptions(quantize_from="bf16")).params
    out = np.empty(len(sizes))
    quantize_rows(params, pack_coefficients(params, PLANTED), np.array(sizes, np.int64), out)
    return out


def timings_of(sizes: list[tuple[int, int]] = SIZES, dtype: str = "fp8", **settings: Any) -> Timings:
    """Two GEMMs of each A, of which one has an outlier for its quantization, and one the truth twice."""
    us = planted_us(sizes)
    rows = [
        (1, m, k, n, 10.0, value * noise)
        for (m, k), value in zip(sizes, us.tolist(), strict=True)
        for n, noise in ((128, 1.0), (256, 1.0), (512, 1.7))
    ]
    frame = pd.DataFrame(rows, columns=["G", "M", "K", "N", "latency_us", QUANT_COLUMN]).assign(
        input_dtype=dtype, weight_dtype=dtype, output_dtype="bf16", group_size=-1
    )
    said = {"name": "own/fp8", "gpu": "h200-sxm", "library": "cublas", "quantize_from": "bf16", "is_net": True}
    return Timings(frame, **(said | settings))


def test_a_fit_finds_what_was_planted() -> None:
    found = calibrate_quantization(H200, [timings_of()])
    assert {name: found.coefficients[name] for name in PLANTED} == pytest.approx(PLANTED, rel=1e-3)
    assert found.fitted == ("quantize_us", "quantize_row_ns", "quantize_l2_frac", "quantize_dram_frac")
    assert found.coefficients["scale_cast_us"] == QUANTIZE.defaults["scale_cast_us"]  # not in these times
    assert (found.gpu, found.library, found.family) == ("h200-sxm", "trtllm", "quantize")
    (errors,) = found.errors
    assert errors.data == "own/fp8 quant_us"
    assert errors.num_rows == len(SIZES)
    assert errors.mape_percent < 0.5
    assert "by (M, K)" in found.folds


def test_sizes_of_a_are_held_out() -> None:
    """Errors are those of fits that did not see the size: another seed deals other folds."""
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.05, len(SIZES) * 3))
    timings = timings_of()
    noisy = replace(timings, frame=timings.frame.assign(quant_us=timings.frame[QUANT_COLUMN] * noise))
    without = replace(noisy, frame=timings.frame.drop(columns=QUANT_COLUMN), is_net=False)  # plays no part
    one, two = (calibrate_quantization(H200, sets, seed=seed) for seed, sets in ((0, [without, noisy]), (1, [noisy])))
    assert one.coefficients == two.coefficients
    assert one.errors != two.errors


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([], "needs 30 sizes of A with quant_us, got 0"),
        ([timings_of(SIZES[:29])], "needs 30 sizes of A with quant_us, got 29"),
        ([timings_of(quantize_from="")], "got 0"),
        ([timings_of(), timings_of(dtype="int8")], "one type on h200-sxm, got fp8 from bf16, int8 from bf16"),
        ([timings_of(), timings_of(quantize_from="fp16")], "got fp8 from bf16, fp8 from fp16"),
        ([timings_of(gpu="b200")], "on b200"),
    ],
)
def test_what_cannot_be_fitted_is_refused(sets: list[Timings], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        calibrate_quantization(H200, sets)


def test_the_command_writes_what_was_fitted(tmp_path: Path) -> None:
    table = tmp_path / "fp8.csv"
    timings_of().frame.to_csv(table, index=False)
    meta = {"gpu": "h200-sxm", "library": "cublas", "dtype": "fp8", "quantize_from": "bf16", "is_net": True}
    table.with_suffix(".meta.yaml").write_text(json.dumps(meta))
    out = tmp_path / "h200-sxm" / "trtllm-quantize.yaml"
    out.parent.mkdir()
    ran = Ran("calibrate", "quantization", "--arch", "h200-sxm", "--data", table, "--out", out, columns=120)
    assert ran.code == 0, ran.err
    found = load_calibration(out)
    assert found.coefficients["quantize_us"] == pytest.approx(PLANTED["quantize_us"], rel=1e-3)
    assert "fp8 quant_us" in ran.out
