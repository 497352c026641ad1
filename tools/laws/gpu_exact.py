"""The search over kernel configs of a GPU against brute force, on random problems.

`evaluate` must be `top(..., 1)[0]`, and no raster, split or number of stages of any kernel may beat it. Among rasters
of one config, more bytes from DRAM must not take less time.
"""

import random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval import GemmProblem, UnsupportedError
from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu import Packed, library_of, load_bytes_of, pack_gpu
from gemm_eval.search.gpu import find_best_config_many, find_top_configs
from gemm_eval.workload import RunOptions
from tests.oracle import naive_gpu
from tools.laws import draws
from tools.laws.kernel_space import library_for
from tools.laws.report import Report

_PROBLEMS_OF_TYPES = 400  # of one chip and its types, whose kernels are listed once
_COUNTS = ["num_candidates", "num_bounded"]


class _Generic(NamedTuple):
    """Kernels of a library for rows that start on 16 bytes, or for others."""

    packed: Packed
    kernels: naive_gpu.Kernels


def run(seed: int, count: int) -> Report:
    """Check `count` random problems."""
    rng, report = random.Random(seed), Report()
    while report.checked["equals brute force"] < count:
        arch = draws.draw_arch(rng)
        types = draws.draw_types(rng, arch)
        options = draws.draw_options(rng, types)
        try:
            packed = pack_gpu(arch, types.types, options)
        except UnsupportedError:
            continue
        left = count - report.checked["equals brute force"]
        _check_types(arch, types, options, packed, draws.draw_sizes(rng, min(_PROBLEMS_OF_TYPES, left)), report)
    return report


def _check_types(
    arch: GpuSpec, types: GemmProblem, options: RunOptions, packed: Packed,
    sizes: npt.NDArray[np.int64], report: Report,
) -> None:  # fmt: skip
    many = find_best_config_many([packed], np.zeros(len(sizes), np.int64), sizes)
    generic: dict[tuple[str, int], _Generic] = {}
    for row, found in zip(sizes.tolist(), many, strict=True):
        problem = naive_gpu.with_sizes(types, row)
        what = f"{arch.name} ({arch.num_sms} SMs, {arch.smem_per_cta_bytes} B) {problem} {options}"
        is_ours = packed.for_sizes(*problem.sizes).is_ours
        report.checked["equals brute force"] += 1
        if found["active_sms"] == 0:
            report.checked["has no kernel"] += 1
            continue
        top = find_top_configs(arch, problem, packed, 1)[0]
        if _without_counts(top) != _without_counts(found):
            report.violations.append(f"{what}: evaluate {found['latency_us']}, top {top['latency_us']}")
        if is_ours:
            report.checked["ours: top is brute force"] += 1
            continue
        library = library_for(arch, problem, options.library)
        loads = load_bytes_of(problem, library_of(library).padding(arch.sm_arch, problem.types))
        if (library, loads) not in generic:
            of_types = (packed.fallback if packed.is_ours else packed).for_sizes(*problem.sizes)
            generic[library, loads] = _Generic(of_types, naive_gpu.kernels_of(arch, problem, library))
        of_types, kernels = generic[library, loads]
        splits = naive_gpu.splits_of(kernels, arch, problem)
        best_us, num_odd = naive_gpu.walk(
            of_types.params, of_types.coefficients, kernels.menu, splits, naive_gpu.RASTERS, *problem.sizes
        )
        if not best_us * (2.0 - naive_gpu.EXACT) >= found["latency_us"] >= best_us:
            report.violations.append(f"{what}: evaluate {found['latency_us']}, brute force {best_us}")
        report.checked["more traffic of a config is no faster"] += 1
        if num_odd:
            report.violations.append(f"{what}: {num_odd} pairs of rasters with more traffic in less time")


def _without_counts(record: np.void) -> tuple[Any, ...]:
    record = record.copy()
    for name in _COUNTS:
        record[name] = 0
    return tuple(record.tolist())
