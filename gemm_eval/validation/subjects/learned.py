"""Files of learned corrections, as `gemm-eval calibrate correction` writes them: of GEMMs, and of other subjects."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from gemm_eval.arch import GpuSpec, MulticoreSpec, load_arch
from gemm_eval.checks import check_word
from gemm_eval.errors import InvalidOptionError
from gemm_eval.evaluate import CHIPS
from gemm_eval.models.gpu import ALL_OURS
from gemm_eval.models.gpu.triton import TRITON
from gemm_eval.validation.exam import Exam
from gemm_eval.validation.learned import FittedCorrection
from gemm_eval.validation.subjects import Fitted, chips, triton, written
from gemm_eval.validation.subjects.chip_timings import read_chip_timings

DENSE = "dense"
_EXAMS = {"attention": "attention", "collective": "collective", "memory-bound": "memory_bound", "moe": "experts"}
"""Subjects whose tables are all committed, and their modules."""
SUBJECTS = (DENSE, *_EXAMS, TRITON, ALL_OURS, CHIPS)


def calibrate_correction(
    arch: str, subject: str, family: str | None, library: str, data: list[str] | None, seed: int
) -> Iterator[Fitted]:
    """Learn the corrections of a subject on a GPU; parameters are the options of the command."""
    check_word("subject", subject, SUBJECTS)
    if subject == ALL_OURS:
        return _of_ours(arch, data, seed)
    if subject != DENSE:
        return written(_fitted_by_subject(arch, subject, None if data is None else Path(data[0])))
    if family is None:
        raise InvalidOptionError("corrections of GEMMs are of one kernel family: give --family, such as sm90_wgmma")
    from gemm_eval.validation.subjects.gemms import calibrate_correction as of_gemms

    return of_gemms(arch, family, library, data, seed)


def _of_ours(arch: str, data: list[str] | None, seed: int) -> Iterator[Fitted]:
    """Learn the corrections of our W4A16 kernels."""
    from gemm_eval.validation.subjects import w4a16

    spec = load_arch(arch, GpuSpec)
    paths = [Path(name) for name in data] if data else w4a16.list_w4a16_tables(spec.name)
    return written(w4a16.w4a16_corrections(spec, paths, seed=seed))


def _fitted_by_subject(arch: str, subject: str, path: Path | None) -> Iterator[FittedCorrection]:
    """Yield the corrections of a GPU or chip; `path`: timings, where they are not the committed ones."""
    if subject == CHIPS:
        chip = load_arch(arch, MulticoreSpec, calibrated=False)
        return chips.chip_corrections(chip, read_chip_timings(chip.name, path))
    spec = load_arch(arch, GpuSpec)
    if subject == TRITON:
        return triton.triton_corrections(spec, path or triton.triton_table(spec.name))
    exam: Exam[Any] = import_module(f"gemm_eval.validation.subjects.{_EXAMS[subject]}").exam()
    sets = exam.read(spec.name)
    if not sets:
        raise InvalidOptionError(f"no timings of {subject} on {spec.name} are committed")
    return exam.corrections(spec, sets)
