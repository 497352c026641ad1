"""The time of kernels of linear attention and of sparse attention on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gemm_eval.arch import ArchSpec, GpuSpec, check_carried
from gemm_eval.checks import check_word
from gemm_eval.errors import UnsupportedError
from gemm_eval.evaluate.interval import interval_line, source_of
from gemm_eval.evaluate.result import Result, term_lines
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu.mixers import MIXER_LIBRARIES, MIXER_TERMS, mixer_model, mixer_rows, mixer_terms
from gemm_eval.units import time_text
from gemm_eval.workload import MIXER_KERNELS, MixerProblem

_SHOWN_FROM_US = 0.005


@dataclass(frozen=True, slots=True)
class MixerResult(Result):
    """The time of a kernel of linear or sparse attention, term by term.

    Attributes:
        low_us, high_us: 80% of measured times lie between, by the held-out errors of the kernel's fit.
        breakdown: microseconds by term; they add up to `latency_us`.
        bound: what limits: ``lines`` (chunks one after the other, or too few CTAs), ``bytes`` or ``launch``.
        library: whose kernel it is.
        source: ``calibrated`` where coefficients were fitted on this very GPU, else ``analytic``.
        origin: where they come from, in words.
    """

    problem: MixerProblem
    arch_name: str
    latency_us: float
    low_us: float
    high_us: float
    breakdown: FrozenDict[str, float]
    bound: str
    library: str
    source: str
    origin: str

    def explain(self) -> str:
        """Return a short text: how long, what bounds it, and where the time goes."""
        lines = [
            f"{self.problem} on {self.arch_name}: {time_text(self.latency_us)}, bound by {self.bound}.",
            f"Kernel: {MIXER_KERNELS[self.problem.kernel].meaning}, of {self.library}; coefficients {self.origin}.",
            interval_line(self.low_us, self.high_us),
            *term_lines(self.breakdown, MIXER_TERMS, _SHOWN_FROM_US),
        ]
        return "\n".join(lines)


def mixer_results(arch: ArchSpec, problems: Sequence[MixerProblem], library: str | None) -> list[MixerResult]:
    """Return the times of kernels by a library's coefficients, or by those of the next library that has the kernel.

    Raises:
        InvalidOptionError: no such library.
        UnsupportedError: the arch is no GPU, or one of another maker whose spec names none to carry over from.
    """
    if library is not None:
        check_word("library", library, MIXER_LIBRARIES)
    check_carried(arch, "linear and sparse attention")
    if not isinstance(arch, GpuSpec):
        raise UnsupportedError(f"linear and sparse attention were timed on NVIDIA GPUs alone, and {arch.name} is none")
    by_kernel: dict[str, list[int]] = {}
    for index, problem in enumerate(problems):
        by_kernel.setdefault(problem.kernel, []).append(index)
    results: dict[int, MixerResult] = {}
    for kernel, chosen in by_kernel.items():
        results |= zip(chosen, _of_kernel(arch, kernel, [problems[i] for i in chosen], library), strict=True)
    return [results[index] for index in range(len(problems))]


def _of_kernel(
    arch: GpuSpec, kernel: str, problems: Sequence[MixerProblem], library: str | None
) -> Iterator[MixerResult]:
    model = mixer_model(arch, kernel, library)
    terms = mixer_terms(arch, model.coefficients, mixer_rows(arch, problems))
    source = source_of(model.origin, 0.0, 0.0)
    for problem, values in zip(problems, np.array(list(terms.values())).T.tolist(), strict=True):
        breakdown = FrozenDict(zip(MIXER_TERMS, values, strict=True))
        latency_us = sum(values)
        largest = max(MIXER_TERMS, key=lambda name: breakdown[name])
        bound = {"fixed_us": "launch", "lines_us": "lines", "bytes_us": "bytes"}[largest]
        low_us, high_us = (latency_us * end for end in model.ends)
        yield MixerResult(
            problem, arch.name, latency_us, low_us, high_us, breakdown, bound, model.library, source, model.origin.text
        )
