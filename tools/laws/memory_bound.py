"""Laws of memory-bound kernels on GPUs, on random kernels of engines and of PyTorch, through the public batch call.

More bytes in the same rows never take less time, and neither do more rows of the same size: corrections keep both as
the terms do. An interval holds its latency, and terms add up.
"""

import random
from typing import Any

from gemm_eval.evaluate.operations import MemoryBoundResult, memory_bounds
from tools.laws.draws import NVIDIA_GPUS
from tools.laws.report import Report

ROUNDING = 1e-12
_KERNELS = 250  # of one GPU
_WIDER = (1.001, 1.3, 2.0, 16.0)
_NAMES = (
    "", "act", "act_mul", "rms_norm", "rotary", "qk_norm", "gather", "permute", "weighted_sum", "top_k", "cast", "sort",
    "torch_vector", "torch_cast", "torch_layer_norm", "torch_softmax", "torch_sum",
)  # fmt: skip

_Kernel = tuple[float, float, int, int, str]


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random kernels."""
    rng, report = random.Random(seed), Report()
    for start in range(0, count, _KERNELS):
        arch = rng.choice(NVIDIA_GPUS)
        kernels = [_draw(rng) for _ in range(min(_KERNELS, count - start))]
        more = [_with_more_bytes(kernel, rng) for kernel in kernels]
        rows = [_with_more_rows(kernel, rng) for kernel in kernels]
        results, of_bytes, of_rows = (memory_bounds(arch, part) for part in (kernels, more, rows))
        for kernel, result, larger, longer in zip(kernels, results, of_bytes, of_rows, strict=True):
            _check(report, "terms add up, within an interval", kernel, _is_sound(result), result)
            _is_no_faster(report, "more bytes are not faster", kernel, result, larger)
            if kernel[3]:
                _is_no_faster(report, "more rows are not faster", kernel, result, longer)
    return report


def _draw(rng: random.Random) -> _Kernel:
    read, written = (float(int(2.0 ** rng.uniform(0.0, 34.0))) for _ in range(2))
    num_rows = int(2.0 ** rng.uniform(0.0, 20.0)) * (rng.random() < 0.8)
    row_elements = int(2.0 ** rng.uniform(0.0, 16.0)) * (rng.random() < 0.8)
    return read, written, row_elements, num_rows, rng.choice(_NAMES)


def _with_more_bytes(kernel: _Kernel, rng: random.Random) -> _Kernel:
    read, written, row_elements, num_rows, what = kernel
    factor, which = rng.choice(_WIDER), rng.choice(("read", "written", "both"))
    read = read if which == "written" else read * factor + 1.0
    written = written if which == "read" else written * factor + 1.0
    return read, written, row_elements, num_rows, what


def _with_more_rows(kernel: _Kernel, rng: random.Random) -> _Kernel:
    read, written, row_elements, num_rows, what = kernel
    more = max(num_rows + 1, round(num_rows * rng.choice(_WIDER)))
    factor = more / max(1, num_rows)
    return read * factor, written * factor, row_elements, more, what


def _is_sound(result: MemoryBoundResult) -> bool:
    adds_up = abs(sum(result.breakdown.values()) - result.latency_us) <= 1e-9 * result.latency_us
    return adds_up and result.low_us <= result.latency_us <= result.high_us


def _is_no_faster(report: Report, law: str, kernel: _Kernel, fewer: MemoryBoundResult, more: MemoryBoundResult) -> None:
    _check(report, law, kernel, more.latency_us >= fewer.latency_us * (1.0 - ROUNDING), (fewer, more))


def _check(report: Report, law: str, kernel: _Kernel, holds: bool, found: Any) -> None:
    report.checked[law] += 1
    if not holds:
        report.violations.append(f"{law}: {kernel}: {found}")
