"""Committed calibrations of vendors' kernels are fitted on the timings that are committed with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.models.gpu import Calibration, load_calibration
from gemm_eval.models.gpu.families import GENERIC, QUANTIZE
from gemm_eval.validation.predictors.dense_rows import pack_problems
from gemm_eval.validation.predictors.quantization import QUANT_COLUMN, hash_of_times, times_of_quantization
from gemm_eval.validation.tables import find_timings

FILES = tuple(sorted((data_root() / "calibration").glob("*/*.yaml")))
OF_FAMILIES = [path for path in FILES if path.stem.partition("-")[2] in GENERIC]
OF_QUANTIZATION = [path for path in FILES if path.stem.partition("-")[2] == QUANTIZE.name]


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def test_every_gpu_with_timings_of_block_scaled_types_has_calibrations() -> None:
    names = {named(path) for path in FILES}
    assert names >= {
        "h200-sxm/trtllm-sm90_block_fp8", "b200/trtllm-sm100_block_fp8", "b200/trtllm-sm100_block_fp4",
        "l40s/trtllm-sm89_block_fp8", "rtx-pro-6000-server/trtllm-sm120_block_fp8",
        "rtx-pro-6000-server/trtllm-sm120_block_fp4",
    }  # fmt: skip
    assert {path.parent.name for path in OF_QUANTIZATION} == {"h200-sxm", "b200", "l40s", "rtx-pro-6000-server"}


@pytest.mark.parametrize("path", OF_FAMILIES, ids=named)
def test_a_family_is_fitted_on_these_timings(path: Path) -> None:
    found = load_calibration(path)
    arch = load_arch(found.gpu, GpuSpec)
    for errors in found.errors:
        (timings,) = find_timings(found.gpu, [errors.data])
        is_of_family = pack_problems(arch, found.library, [timings]).family_of == found.family
        rows = timings.select(is_of_family & ~timings.in_band)
        assert len(rows) == errors.num_rows, errors.data
        assert rows.content_hash == f"sha256:{errors.sha256}", errors.data


@pytest.mark.parametrize("path", OF_QUANTIZATION, ids=named)
def test_quantization_is_fitted_on_these_timings(path: Path) -> None:
    found = load_calibration(path)
    (errors,) = found.errors
    data, column = errors.data.split()
    times = times_of_quantization(find_timings(found.gpu, [data]))

    assert column == QUANT_COLUMN
    assert (len(times), hash_of_times(times)) == (errors.num_rows, errors.sha256)
    check_is_useful(found)


def check_is_useful(found: Calibration) -> None:
    """Held out, it foresees the quantization of sizes of A within a few percent."""
    (errors,) = found.errors
    assert errors.mape_percent < 7
    assert abs(errors.bias_percent) < 3
    assert "by (M, K)" in found.folds
