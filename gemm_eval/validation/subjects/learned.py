"""Files of learned corrections, as `gemm-eval calibrate correction` writes them: of GEMMs, and of other subjects."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu.learned import learned_path
from gemm_eval.validation.exam import Exam
from gemm_eval.validation.report import report_table
from gemm_eval.validation.subjects import Fitted
from gemm_eval.words import refusal

DENSE = "dense"
_MODULES = {
    "attention": "attention", "collective": "collective", "memory-bound": "memory_bound", "moe": "experts",
    "w4a16": "w4a16",
}  # fmt: skip


def calibrate_correction(
    arch: str, subject: str, family: str | None, library: str, data: list[str] | None, seed: int
) -> Iterator[Fitted]:
    """Learn the corrections of a subject on a GPU; parameters are the options of the command."""
    if subject != DENSE:
        return _calibrate_learned(arch, subject)
    if family is None:
        raise InvalidOptionError("corrections of GEMMs are of one kernel family: give --family, such as sm90_wgmma")
    from gemm_eval.validation.subjects.gemms import calibrate_correction as of_gemms

    return of_gemms(arch, family, library, data, seed)


def _calibrate_learned(arch: str, subject: str) -> Iterator[Fitted]:
    exam, spec = _exam_of(subject), load_arch(arch, GpuSpec)
    sets = exam.read(spec.name)
    if not sets:
        raise InvalidOptionError(f"no timings of {subject} on {spec.name} are committed")
    for result in exam.corrections(spec, sets):
        learned = result.correction
        verdict = "on" if learned.is_on else "off: not better than the terms alone"
        title = f"{learned.subject} {learned.group} on {learned.gpu}: MAPE {learned.folds}; {verdict}"
        table = report_table(("rows of", "rows", "model", "corrected"), title, 1)
        for item in learned.data:
            percents = (item.physics_mape_percent, item.corrected_mape_percent)
            table.add_row(item.data, f"{item.num_rows:,}", *(f"{percent:.2f}%" for percent in percents))
        yield Fitted(learned_path(learned.gpu, learned.subject, learned.group), result.write, (table,))


def _exam_of(subject: str) -> Exam[Any]:
    """Return the exam of a subject that has a learned correction."""
    if subject not in _MODULES:
        raise InvalidOptionError(refusal("subject", subject, (DENSE, *_MODULES)))
    module = import_module(f"gemm_eval.validation.subjects.{_MODULES[subject]}")
    exam: Exam[Any] | None = module.exam() if hasattr(module, "exam") else None
    if exam is None or exam.learns is None:
        raise InvalidOptionError(f"nothing is learned of {subject} beyond the terms of its model")
    return exam
