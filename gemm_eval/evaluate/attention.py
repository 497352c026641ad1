"""Attention on an arch: fused kernels of a GPU, or two batched GEMMs with a softmax between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.checks import check_flag, check_word
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.evaluate.attention_result import AttentionResult
from gemm_eval.evaluate.memory_bound import memory_bound
from gemm_eval.evaluate.result import GEMMResult
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu.attention import (
    ATTENTION_FAMILIES,
    ATTENTION_LIBRARIES,
    DEFAULT_ATTENTION,
    EXPS_PER_CYCLE,
    attention_coefficients,
    attention_costs,
    attention_rows,
    check_attention_library,
)
from gemm_eval.units import bytes_per_us, cycles_per_us, us_at_peak
from gemm_eval.workload import AttentionProblem, GemmProblem

CORES, CORES_IF_THEY_CAN = "cores", "cores if they can"
"""In the place of a library, the fused form of multi-core chips; or, where that is not possible, the unfused one."""

_DECISIVE_FRAC = 0.5
_ROW_BITS = 128  # at a multiple of which TMA and wide loads want rows to begin
_UNFUSED_TERMS = {
    "scores_us": "queries times keys, all pairs, scores written",
    "softmax_us": "scores read twice and written once",
    "values_us": "scores times values",
}


def attention_library(arch: ArchSpec, fused: bool | None, library: str | None) -> str | None:
    """Return whose fused kernels run, on multi-core chips `CORES` or `CORES_IF_THEY_CAN`; None: attention is not fused.

    Raises:
        InvalidOptionError: `fused` or `library` is no such thing, or `library` asked of a multi-core chip.
    """
    if fused is not None:
        check_flag("fused", fused)
    if library is not None:
        check_word("library", library, ATTENTION_LIBRARIES)
    is_gpu = isinstance(arch, GpuSpec)
    if library is not None and (fused is False or not is_gpu):
        raise InvalidOptionError(f"library={library!r} is of fused attention on GPUs")
    if fused is False:
        return None
    if not is_gpu:
        return CORES if fused else CORES_IF_THEY_CAN
    return library or DEFAULT_ATTENTION


def fused_attention(arch: GpuSpec, problems: Sequence[AttentionProblem], library: str) -> list[AttentionResult]:
    """Return what fused kernels of a GPU take, as a library of `ATTENTION_LIBRARIES` runs them.

    Raises:
        UnsupportedError: the tensor cores do not take a type of queries, or the library has no kernel.
    """
    for problem in problems:
        check_attention_library(problem, library)
        if problem.dtype not in arch.tensor_flop_per_cycle:
            known = ", ".join(arch.tensor_flop_per_cycle)
            raise UnsupportedError(f"{arch.name} has no tensor cores for {problem.dtype} attention, but for {known}")
    coefficients = attention_coefficients(arch, library)
    costs = attention_costs(arch, coefficients.values, attention_rows(problems), library)
    return [
        _result(
            arch, problem, FrozenDict(terms), ATTENTION_FAMILIES[family].term_meanings, kernel=family, is_fused=True,
            has_positions=library == DEFAULT_ATTENTION, is_calibrated=coefficients.origins[family].is_calibrated,
            origin=coefficients.origins[family].text,
        )
        for problem, family, terms in zip(problems, costs.families.tolist(), costs.terms, strict=True)
    ]  # fmt: skip


def unfused_attention(
    arch: ArchSpec, problem: AttentionProblem, evaluate: Callable[[GemmProblem], GEMMResult]
) -> AttentionResult:
    """Return what two batched GEMMs take, over the full square of queries and keys, and a softmax through DRAM.

    Query heads of a group stand in the rows of its KV head's GEMM. Rows of scores begin at multiples of 16 bytes, as
    whoever lays them out would have it: kernels for other rows are slower.

    Args:
        arch: the chip.
        problem: sizes and types; masks save nothing here.
        evaluate: of a GEMM.
    """
    num, rows = problem.batch * problem.num_kv_heads, problem.q_len * problem.group
    types = problem.dtype, problem.dtype, problem.output_dtype
    step = _ROW_BITS // problem.dtype.bits
    keys = -(-problem.kv_len // step) * step
    scores = evaluate(GemmProblem(num, rows, problem.head_dim, keys, *types))
    values = evaluate(GemmProblem(num, rows, keys, problem.value_dim, *types))
    score_bytes = num * rows * keys * problem.output_dtype.half_bits / 16
    terms = {
        "scores_us": scores.latency_us,
        "softmax_us": memory_bound(arch, 2 * score_bytes, score_bytes, keys).latency_us,
        "values_us": values.latency_us,
    }
    is_calibrated = scores.source != "analytic"
    origin = "of the GEMMs" if is_calibrated else "none"
    return _result(
        arch, problem, FrozenDict(terms), _UNFUSED_TERMS, kernel="unfused", is_fused=False,
        has_positions=False, is_calibrated=is_calibrated, origin=origin,
    )  # fmt: skip


def _result(
    arch: ArchSpec, problem: AttentionProblem, terms: FrozenDict[str, float], meanings: Mapping[str, str], *,
    kernel: str, is_fused: bool, has_positions: bool, is_calibrated: bool, origin: str,
) -> AttentionResult:  # fmt: skip
    latency_us = sum(terms.values())
    roofs = _roofs(arch, problem)
    limits = roofs | {"launch": terms.get("fixed_us", 0.0) + terms.get("sum_us", 0.0)}
    largest = max(limits, key=lambda name: limits[name])
    bound = largest if limits[largest] >= _DECISIVE_FRAC * latency_us else "latency"
    return AttentionResult(
        problem, arch.name, latency_us, terms, FrozenDict(meanings), bound, kernel, is_fused,
        has_positions, FrozenDict(roofs), "calibrated" if is_calibrated else "analytic", origin,
    )  # fmt: skip


def _roofs(arch: ArchSpec, problem: AttentionProblem) -> dict[str, float]:
    roofs = {"dram": problem.num_bytes / bytes_per_us(arch.dram_gb_per_s)}
    if isinstance(arch, GpuSpec):
        is_narrow = problem.kv_type is DType.FP8 and DType.FP8 in arch.tensor_flop_per_cycle
        rate = arch.peak_tflop_per_s(DType.FP8 if is_narrow else problem.dtype)
        exps = problem.batch * problem.num_heads * problem.num_pairs
        roofs["exp"] = exps / (EXPS_PER_CYCLE * arch.num_sms) / cycles_per_us(arch.max_clock_ghz)
    else:
        rate = arch.peak_tflop_per_s(problem.dtype)
    return {"matrix": us_at_peak(problem.flop, rate)} | roofs
