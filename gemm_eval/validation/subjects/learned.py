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
from gemm_eval.models.gpu import ALL_OURS, OURS, correction_path, learned_path
from gemm_eval.models.gpu.triton import TRITON
from gemm_eval.validation.exam import Exam
from gemm_eval.validation.learned import FittedLearned
from gemm_eval.validation.report import report_table
from gemm_eval.validation.subjects import Fitted, chips, triton
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
        return _written(_fitted_by_subject(arch, subject, None if data is None else Path(data[0])))
    if family is None:
        raise InvalidOptionError("corrections of GEMMs are of one kernel family: give --family, such as sm90_wgmma")
    from gemm_eval.validation.subjects.gemms import calibrate_correction as of_gemms

    return of_gemms(arch, family, library, data, seed)


def _of_ours(arch: str, data: list[str] | None, seed: int) -> Iterator[Fitted]:
    """Learn the corrections of our W4A16 kernels."""
    from gemm_eval.validation.subjects import w4a16
    from gemm_eval.validation.subjects.gemms import written

    spec = load_arch(arch, GpuSpec)
    paths = [Path(name) for name in data] if data else w4a16.list_w4a16_tables(spec.name)
    return written(
        correction_path(spec.name, OURS, ALL_OURS, "").parent, w4a16.w4a16_corrections(spec, paths, seed=seed)
    )


def _fitted_by_subject(arch: str, subject: str, path: Path | None) -> Iterator[FittedLearned]:
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


def _written(results: Iterator[FittedLearned]) -> Iterator[Fitted]:
    for result in results:
        learned = result.correction
        verdict = "on" if learned.is_on else "off: not better than the terms alone"
        title = f"{learned.subject} {learned.group} on {learned.gpu}: MAPE {learned.folds}; {verdict}"
        table = report_table(("rows of", "rows", "model", "corrected"), title, 1)
        for item in learned.data:
            percents = (item.physics_mape_percent, item.corrected_mape_percent)
            table.add_row(item.data, f"{item.num_rows:,}", *(f"{percent:.2f}%" for percent in percents))
        yield Fitted(learned_path(learned.gpu, learned.subject, learned.group), result.write, (table,))
