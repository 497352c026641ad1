"""Memory-bound kernels that were timed: a fit finds what was planted, widths held out, the committed calibration."""

from typing import Any

import pytest

from gemm_eval.arch import GpuSpec, load_arch, read_yaml
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import memory_bound as model
from gemm_eval.validation.exam import FITTED, MODEL, NAIVE, TABLE, score
from gemm_eval.validation.subjects import memory_bound as subject

GPU = "h200-sxm"
MAX_ERROR, MAX_ERROR_OF_SORT = 0.11, 0.17
"""MAPE that widths held out may have, of every kernel, and of a sort, which does not know the number of experts."""
ENGINES, TORCH = "memory-bound/kernels", "memory-bound/torch"
MAX_ERROR_OF_TORCH = 0.13
ROUGH = (
    "torch_exp", "torch_sum", "torch_sum_cta", "torch_bilinear", "torch_columns", "torch_gather", "inductor_map",
    "inductor_rows",
)  # fmt: skip
"""Kinds of PyTorch's that are more than a sixth off: how rows are split among threads is more than the model knows, or
few rows (four gathers) decide."""


def timings_of(data: str) -> subject.MemoryBoundTable:
    (found,) = [timings for timings in subject.tables(GPU) if timings.name == data]
    return found


def test_a_fit_finds_what_was_planted() -> None:
    arch, timings = load_arch(GPU, GpuSpec), timings_of(ENGINES)
    planted = {item.name: 1.2 * item.default for item in model.MEMORY_BOUND_COEFFICIENTS} | {"dram_frac": 0.8}
    found = subject.fit_memory_bound(arch, timings.rows, model.memory_bound_us(arch, planted, timings.rows))
    assert found == pytest.approx(planted, rel=0.02)


def test_what_is_held_out() -> None:
    """Widths of engines' kernels, as MODEL.md has them: better than rooflines for each, and in all than a table.

    Octaves of PyTorch's, as TORCH.md has them: half as far off as overhead and rate fitted for each kind.
    """
    found: dict[str, dict[tuple[str, str], Any]] = {ENGINES: {}, TORCH: {}}
    for line in score(subject.exam()._replace(learns=None), [GPU]):  # terms alone
        found[line.labels["data"]][line.labels["what"], line.group] = line.errors
    lines = found[ENGINES]
    for what, errors in ((what, lines[what, "all"]) for what, group in lines if group == "all"):
        assert errors[MODEL].mape_frac < (MAX_ERROR_OF_SORT if what == "sort" else MAX_ERROR)
        assert errors[MODEL].mape_frac < min(errors[FITTED].mape_frac, errors[NAIVE].mape_frac)
    everything = lines["all", "all"]
    assert everything[MODEL].mape_frac < everything[TABLE].mape_frac
    for group in ("up to 16", "17 to 256", "more"):
        assert lines["all", group][MODEL].mape_frac < MAX_ERROR
    lines = found[TORCH]
    everything = lines["all", "all"]
    assert everything[MODEL].mape_frac < MAX_ERROR_OF_TORCH
    assert everything[MODEL].mape_frac < 0.5 * min(everything[FITTED].mape_frac, everything[TABLE].mape_frac)
    for what in {what for what, _ in lines} - {*ROUGH, "all"}:
        assert lines[what, "all"][MODEL].mape_frac < 1 / 6, what


@pytest.mark.parametrize("library", ["engines", "torch"])
def test_committed_calibration_is_what_the_command_writes(library: str) -> None:
    found = model.MemoryBoundCalibration.model_validate(read_yaml(model.memory_bound_calibration_path(GPU, library)))
    arch = load_arch(GPU, GpuSpec)
    again = subject.calibrate_memory_bound(arch, library)
    assert again.coefficients == pytest.approx(found.coefficients, rel=0.01)
    assert model.memory_bound_coefficients(arch, library)[0] == pytest.approx(found.coefficients)
    assert model.memory_bound_coefficients(load_arch("b200", GpuSpec), library)[0] == pytest.approx(found.coefficients)


def test_a_table_of_one_width_is_refused() -> None:
    timings = timings_of(ENGINES)
    with pytest.raises(InvalidInputError, match="one width"):
        subject.exam().held_out(load_arch(GPU, GpuSpec), [timings.select(timings.column("width") == 1024)])
