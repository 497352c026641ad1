"""Committed calibrations of vendors' kernels are fitted on the timings that are committed with them."""

import hashlib
from pathlib import Path

import pytest

from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.models.gpu import library_of, load_calibration
from gemm_eval.models.gpu.families import FAMILIES, GENERIC, QUANTIZE
from gemm_eval.validation.exam import gpus_with
from gemm_eval.validation.subjects import experts
from gemm_eval.validation.subjects.dense import times_of_quantization
from gemm_eval.validation.subjects.dense_rows import pack_problems
from gemm_eval.validation.subjects.experts import find_tables, free_coefficients
from gemm_eval.validation.tables import QUANT_COLUMN, find_timings, measured_root

FILES = tuple(sorted((data_root() / "calibration").glob("*/*.yaml")))


def family_of(path: Path) -> str:
    """Of <library>-<family>, where a library may have a hyphen in its name."""
    return path.stem.rpartition("-")[2]


IS_GROUPED = {name: FAMILIES[name].for_types is not None for name in GENERIC}
OF_FAMILIES = [path for path in FILES if IS_GROUPED.get(family_of(path)) is False]
OF_GROUPED = [path for path in FILES if IS_GROUPED.get(family_of(path))]
OF_QUANTIZATION = [path for path in FILES if family_of(path) == QUANTIZE.name]


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


@pytest.mark.parametrize("path", OF_GROUPED, ids=named)
def test_a_grouped_family_is_fitted_on_these_layers(path: Path) -> None:
    found = load_calibration(path)
    (errors,) = found.errors
    (timings,) = [timings for timings in find_tables(found.gpu) if timings.name == errors.data]
    family = library_of(timings.library).family(load_arch(found.gpu, GpuSpec), timings.types)
    assert (timings.gpu, timings.library, family) == (found.gpu, found.library, found.family)
    assert named(path) == f"{found.gpu}/{found.library}-{found.family}"
    table = (measured_root(found.gpu) / timings.name).with_suffix(".parquet")
    assert hashlib.sha256(table.read_bytes()).hexdigest() == errors.sha256
    # but for layers whose rank has no token: of one or two tokens there may be many
    assert 0.9 * len(timings) < errors.num_rows <= len(timings)
    of_regimes = {interval.regime: interval.num_rows for interval in found.intervals}
    assert of_regimes.pop("all") == errors.num_rows >= sum(of_regimes.values())  # regimes of few rows have none
    # a router that chooses groups first costs time in DeepSeek-V3's layers alone: without such rows nothing tells it
    told = set(free_coefficients(FAMILIES[family]))
    untold = {"moe_grouped_router_ns"} | found.shared.keys()
    assert told - set(found.fitted) <= untold >= set(found.fitted) - told
    told_or_shared = {*found.fitted, *found.shared}
    assert "moe_grouped_router_ns" in told_or_shared or found.coefficients.get("moe_grouped_router_ns", 0.0) == 0.0
    assert set(found.fitted) <= found.coefficients.keys()
    num_folds = max(2, len(set(timings.models)))  # of one model halves
    assert f"{num_folds}-fold by model" in found.folds


def test_every_table_of_layers_has_its_calibration() -> None:
    expected = {
        f"{gpu}/{timings.library}-{library_of(timings.library).family(load_arch(gpu, GpuSpec), timings.types)}"
        for gpu in gpus_with(experts.exam())
        for timings in find_tables(gpu)
    }
    assert expected == {named(path) for path in OF_GROUPED}


@pytest.mark.parametrize("path", OF_QUANTIZATION, ids=named)
def test_quantization_is_fitted_on_these_timings(path: Path) -> None:
    found = load_calibration(path)
    (errors,) = found.errors
    data, column = errors.data.split()
    times = times_of_quantization(find_timings(found.gpu, [data]))
    assert column == QUANT_COLUMN
    times_hash = hashlib.sha256(times.to_csv(index=False, lineterminator="\n").encode()).hexdigest()
    assert (len(times), times_hash) == (errors.num_rows, errors.sha256)
    assert errors.mape_percent < 7
    assert abs(errors.bias_percent) < 3
    assert "by (M, K)" in found.folds
