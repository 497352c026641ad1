"""The time of attention on one arch, by fused kernels or by two GEMMs with a softmax between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gemm_eval.arch import SM_ARCHS, ArchSpec, GpuSpec, MulticoreSpec, check_carried
from gemm_eval.dtypes import DType
from gemm_eval.errors import InfeasibleError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate.interval import (
    CORRECTION,
    CORRECTION_MEANING,
    chip_interval,
    interval_line,
    source_of,
    sum_interval,
)
from gemm_eval.evaluate.operations import MemoryBoundResult, memory_bound
from gemm_eval.evaluate.result import GEMMResult, Result, term_lines
from gemm_eval.frozen import FrozenDict
from gemm_eval.mapping import AttentionMapping
from gemm_eval.models.gpu.attention import (
    AITER,
    ATTENTION_FAMILIES,
    ATTENTION_LIBRARIES,
    DEFAULT_ATTENTION,
    attention_answers,
    attention_coefficients,
    attention_costs,
    attention_rows,
    check_attention_library,
    library_of_gradients,
)
from gemm_eval.models.multicore import BOUNDS, OTHER_SOFTMAX_OPS_PER_SCORE, TERMS, unpack_attention_cost
from gemm_eval.search import find_best_fused_attention
from gemm_eval.units import bytes_per_us, cycles_per_us, tflop_per_s, time_text, us_at_peak
from gemm_eval.words import check_flag, check_word
from gemm_eval.workload import AttentionProblem, GemmProblem

_SHOWN_FROM_US = 0.005


@dataclass(frozen=True, slots=True)
class AttentionResult(Result):
    """The time of attention on an arch, term by term.

    Attributes:
        breakdown: microseconds by term, in the order they run. On multi-core chips they are the times of the parts, and
            what of them overlaps is below 0, `hidden_us`.
        term_meanings: what the time of each term goes to.
        bound: what limits: ``matrix`` (both products), ``exp`` (the exponentials), ``dram`` or ``launch`` (fixed
            times), the largest of these, where it is at least half of the latency; else ``latency`` (CTAs that wait,
            or too few of them). Fused on multi-core chips: ``matrix``, ``vector``, ``dram``, ``shared``, ``noc``,
            ``feed``, ``reduction``, ``launch`` or ``sync``, as in `GEMMResult`.
        kernel: family of kernels, the mapping of a multi-core chip, or ``unfused``.
        library: whose fused kernels; empty: unfused, or a multi-core chip.
        is_fused: scores stay on the chip; else two batched GEMMs with a softmax between them, through DRAM.
        has_positions: rotary positions and the write of new keys and values to the cache are in it.
        roofs: microseconds that the products, the exponentials and the compulsory DRAM bytes take at least.
        origin: where its coefficients come from, in words.
        mapping: fused on multi-core chips: which core computes what, in which tiles; else None.
        dram_bytes: fused on multi-core chips: bytes that the chip moves; else None.
    """

    problem: AttentionProblem
    arch_name: str
    latency_us: float
    low_us: float
    high_us: float
    breakdown: FrozenDict[str, float]
    term_meanings: FrozenDict[str, str]
    bound: str
    kernel: str
    is_fused: bool
    has_positions: bool
    roofs: FrozenDict[str, float]
    source: str
    origin: str
    mapping: AttentionMapping | None = None
    dram_bytes: int | None = None
    library: str = ""
    _derived: ClassVar = ("flop", "tflop_per_s", "gb_per_s")

    def __repr__(self) -> str:
        return (
            f"<AttentionResult {self.problem} on {self.arch_name}: {self.latency_us:.4g} us, bound {self.bound}, "
            f"{self.source}>"
        )

    @property
    def flop(self) -> int:
        """Operations of its products, a multiply-accumulate being two, without what masks leave out."""
        return self.problem.flop

    @property
    def tflop_per_s(self) -> float:
        """Achieved rate, in 1e12 FLOP/s."""
        return tflop_per_s(self.flop, self.latency_us)

    @property
    def gb_per_s(self) -> float:
        """Compulsory bytes over the latency, in 1e9 bytes/s."""
        return self.problem.num_bytes / self.latency_us / 1e3

    def explain(self) -> str:
        """Return a short text: how long, what bounds it, and where the time goes."""
        at_least = ", ".join(f"{name} {time_text(us)}" for name, us in self.roofs.items())
        lines = [
            f"{self.problem} on {self.arch_name}: {time_text(self.latency_us)}, {self.tflop_per_s:,.1f} TFLOP/s, "
            f"{self.gb_per_s:,.0f} GB/s, bound by {self.bound}.",
            f"Kernel: {self.kernel}{' of ' * bool(self.library)}{self.library}; source: {self.source}; coefficients "
            f"{self.origin}.",
            interval_line(self.low_us, self.high_us),
            *term_lines(self.breakdown, self.term_meanings, _SHOWN_FROM_US),
            f"At least: {at_least}.",
        ]
        return "\n".join(lines)


CORES, CORES_IF_THEY_CAN = "cores", "cores if they can"
"""In the place of a library, the fused form of multi-core chips; or, where that is not possible, the unfused one."""

_DECISIVE_FRAC = 0.5
_ROW_BITS = 128  # at a multiple of which TMA and wide loads want rows to begin
_UNFUSED_TERMS = {
    "scores_us": "queries times keys, all pairs, scores written",
    "softmax_us": "scores read twice and written once",
    "values_us": "scores times values",
}
_UNFUSED_GRADIENTS = {
    "shares_us": "gradients of shares: those of outputs times values, all pairs, written",
    "values_us": "gradients of values: shares times gradients of outputs",
    "softmax_us": "shares and their gradients read, gradients of scores written",
    "queries_us": "gradients of queries: those of scores times keys",
    "keys_us": "gradients of keys: those of scores times queries",
}


def attention_kernels(arch: ArchSpec, fused: bool | None, library: str | None) -> str | None:
    """Return whose fused kernels run, on multi-core chips `CORES` or `CORES_IF_THEY_CAN`; None: it is not fused."""
    if fused is not None:
        check_flag("fused", fused)
    if library is not None:
        check_word("library", library, (*ATTENTION_LIBRARIES, AITER))
    is_gpu = isinstance(arch, GpuSpec)
    is_other_maker = isinstance(arch, GpuSpec) and arch.sm_arch not in SM_ARCHS
    if library is not None and is_gpu and (library == AITER) != is_other_maker:
        raise UnsupportedError(
            f"attention by {library} is for {'AMD' if library == AITER else 'NVIDIA'} GPUs, and {arch.name} is none"
        )
    if library is not None and (fused is False or not is_gpu):
        raise InvalidOptionError(f"library={library!r} is of fused attention on GPUs")
    if fused is False:
        return None
    if not is_gpu:
        return CORES if fused else CORES_IF_THEY_CAN
    return DEFAULT_ATTENTION if library in (None, AITER) else library


def attention_results(
    arch: ArchSpec, problems: Sequence[AttentionProblem], kernels: str | None,
    evaluate: Callable[[GemmProblem], GEMMResult],
) -> list[AttentionResult]:  # fmt: skip
    """Return the times of attention by `attention_kernels`; `evaluate` answers for the GEMMs of unfused attention."""
    check_carried(arch, "attention")
    if isinstance(arch, GpuSpec) and kernels is not None:
        of_gradients = library_of_gradients(arch) if kernels == DEFAULT_ATTENTION else kernels
        libraries = [of_gradients if problem.backward else kernels for problem in problems]
        runs: dict[str, list[AttentionProblem]] = {}
        for library, problem in zip(libraries, problems, strict=True):
            runs.setdefault(library, []).append(problem)
        by_library = {library: iter(_fused_on_gpu(arch, run, library)) for library, run in runs.items()}
        return [next(by_library[library]) for library in libraries]
    results = []
    for problem in problems:
        result = None
        if isinstance(arch, MulticoreSpec) and kernels is not None:
            try:
                if problem.backward:
                    raise UnsupportedError("gradients of fused attention: not modelled on multi-core chips")
                result = _fused_on_cores(arch, problem)
            except (UnsupportedError, InfeasibleError):
                if kernels == CORES:
                    raise
        results.append(_unfused(arch, problem, evaluate) if result is None else result)
    return results


def _fused_on_gpu(arch: GpuSpec, problems: Sequence[AttentionProblem], library: str) -> list[AttentionResult]:
    for problem in problems:
        check_attention_library(problem, library)
        if problem.dtype not in arch.tensor_flop_per_cycle:
            known = ", ".join(arch.tensor_flop_per_cycle)
            raise UnsupportedError(f"{arch.name} has no tensor cores for {problem.dtype} attention, but for {known}")
    coefficients = attention_coefficients(arch, library)
    rows = attention_rows(problems)
    costs = attention_costs(arch, coefficients.values, rows, library)
    answers = attention_answers(arch, library, rows, costs).tolist()
    has_positions = library == DEFAULT_ATTENTION
    name = library if arch.sm_arch in SM_ARCHS else AITER
    results = []
    for problem, family, of_model, (factor, low, high, _) in zip(
        problems, costs.families.tolist(), costs.terms, answers, strict=True
    ):
        origin, meanings, terms = coefficients.origins[family], ATTENTION_FAMILIES[family].term_meanings, of_model
        physics_us, roofs = sum(of_model.values()), _roofs(arch, problem)
        us = max(physics_us * factor, min(physics_us, max(roofs.values())))  # a correction never beats the data sheet
        source = source_of(origin, us, physics_us)
        if us != physics_us:
            terms, meanings = {**terms, CORRECTION: us - physics_us}, {**meanings, CORRECTION: CORRECTION_MEANING}
        ends_us = us * low, us * high
        results.append(
            _result(arch, problem, terms, ends_us, meanings, family, has_positions, source, origin.text, roofs, name)
        )
    return results


def _unfused(
    arch: ArchSpec, problem: AttentionProblem, evaluate: Callable[[GemmProblem], GEMMResult]
) -> AttentionResult:
    """Return the time of batched GEMMs over the full square of queries and keys, and of a softmax through DRAM.

    Query heads of a group stand in the rows of its KV head's GEMM. Rows of scores begin at multiples of 16 bytes, as
    whoever lays them out would have it: kernels for other rows are slower. Backward, shares are kept since the forward
    pass: gradients of shares and values, of the softmax, of queries and keys.
    """
    num, rows = problem.batch * problem.num_kv_heads, problem.q_len * problem.group
    types = problem.dtype, problem.dtype, problem.output_dtype
    step = _ROW_BITS // problem.dtype.bits
    keys = -(-problem.kv_len // step) * step
    size, value_size = problem.head_dim, problem.value_dim
    score_bytes = num * rows * keys * problem.output_dtype.half_bits / 16
    softmax = memory_bound(arch, 2 * score_bytes, score_bytes, keys)
    sizes = [(rows, size, keys), (rows, keys, value_size)]
    meanings = _UNFUSED_TERMS
    if problem.backward:
        sizes = [(rows, value_size, keys), (keys, rows, value_size), (rows, keys, size), (keys, rows, size)]
        meanings = _UNFUSED_GRADIENTS
    products = [evaluate(GemmProblem(num, *each, *types)) for each in sizes]
    parts: list[GEMMResult | MemoryBoundResult] = [*products]
    parts.insert(len(products) // 2, softmax)
    terms = dict(zip(meanings, (part.latency_us for part in parts), strict=True))
    ends = sum_interval((part.latency_us, part.low_us, part.high_us) for part in parts)
    source = "analytic" if products[0].source == "analytic" else "calibrated"
    origin = "none" if source == "analytic" else "of the GEMMs"
    roofs = _roofs(arch, problem, recomputes=False)
    return _result(arch, problem, terms, ends, meanings, "unfused", False, source, origin, roofs)


def _result(
    arch: ArchSpec, problem: AttentionProblem, terms: Mapping[str, float], interval_us: tuple[float, float],
    meanings: Mapping[str, str], kernel: str, has_positions: bool, source: str, origin: str, roofs: dict[str, float],
    library: str = "",
) -> AttentionResult:  # fmt: skip
    latency_us = sum(terms.values())
    limits = roofs | {"launch": terms.get("fixed_us", 0.0) + terms.get("sum_us", 0.0)}
    largest = max(limits, key=lambda name: limits[name])
    bound = largest if limits[largest] >= _DECISIVE_FRAC * latency_us else "latency"
    return AttentionResult(
        problem, arch.name, latency_us, *interval_us, FrozenDict(terms), FrozenDict(meanings), bound, kernel,
        kernel != "unfused", has_positions, FrozenDict(roofs), source, origin, library=library,
    )  # fmt: skip


def _roofs(arch: ArchSpec, problem: AttentionProblem, *, recomputes: bool = True) -> dict[str, float]:
    roofs = {"dram": problem.num_bytes / bytes_per_us(arch.dram_gb_per_s)}
    if isinstance(arch, GpuSpec):
        is_narrow = problem.kv_type is DType.FP8 and DType.FP8 in arch.tensor_flop_per_cycle
        rate = arch.peak_tflop_per_s(DType.FP8 if is_narrow else problem.dtype)
        exps = problem.batch * problem.num_heads * problem.num_pairs
        roofs["exp"] = exps / (arch.exps_per_cycle * arch.num_sms) / cycles_per_us(arch.max_clock_ghz)
    else:
        rate = arch.peak_tflop_per_s(problem.dtype)
    flop = problem.flop if recomputes or not problem.backward else 2 * replace(problem, backward=False).flop
    return {"matrix": us_at_peak(flop, rate)} | roofs


_BOUNDS = tuple("matrix" if name == "compute" else name for name in BOUNDS)
_TERM_NAMES = {"dram_a_us": "dram_q_us", "dram_b_us": "dram_kv_us", "dram_c_us": "dram_o_us"}
_MEANINGS = {_TERM_NAMES.get(name, name): term.meaning for name, term in TERMS.items() if name != "pack_us"} | {
    "launch_us": "the fixed cost of a kernel and of its tasks, and what a queue makes it wait",
    "fill_drain_us": "the matrix unit's pipeline, filled and drained twice at every visit, and its keys and values",
    "vector_us": "the vector unit: softmax, rescaling of outputs, narrow keys and values",
    "dram_q_us": "queries from DRAM, at a core's share of the bandwidth",
    "dram_kv_us": "keys and values from DRAM",
    "dram_o_us": "outputs to DRAM, spills and refills of partial ones with them",
    "hidden_us": "what of these runs side by side",
    "reduction_dram_us": "partial outputs through DRAM",
    "reduction_noc_us": "partial outputs over the network",
    "reduction_add_us": "merging partial outputs",
}


def _fused_on_cores(arch: MulticoreSpec, problem: AttentionProblem) -> AttentionResult:
    """Return what fused attention takes with its best mapping; `packs` and `rules` of the spec are of GEMMs alone.

    Keys and values of a whole prompt are read as the projection leaves them: only the cache, which nothing reads yet,
    is narrow.
    """
    is_fresh = problem.q_len == problem.kv_len and not problem.is_latent
    as_read = replace(problem, kv_dtype=problem.dtype) if is_fresh else problem
    cost = unpack_attention_cost(find_best_fused_attention(arch, as_read)[0])
    terms = {_TERM_NAMES.get(name, name): us for name, us in cost.breakdown.items() if name != "pack_us"}
    return AttentionResult(
        problem, arch.name, cost.latency_us, *chip_interval(arch, cost.latency_us), FrozenDict(terms),
        FrozenDict(_MEANINGS), _BOUNDS[cost.bound],
        f"fused {cost.mapping}", is_fused=True, has_positions=False, roofs=FrozenDict(_chip_roofs(arch, as_read)),
        source="analytic", origin="of the chip, fitted on its GEMMs" if arch.calibration else "none",
        mapping=cost.mapping, dram_bytes=cost.dram_bytes,
    )  # fmt: skip


def _chip_roofs(arch: MulticoreSpec, problem: AttentionProblem) -> dict[str, float]:
    arch = arch.for_dtype(problem.dtype)
    scores = problem.batch * problem.num_heads * problem.num_pairs
    assert arch.vector_ops_per_cycle is not None
    per_us = arch.vector_ops_per_cycle * arch.num_cores * cycles_per_us(arch.frequency_ghz)
    of = {"A": problem.q_bytes, "B": problem.kv_bytes}
    read = sum(num_bytes for name, num_bytes in of.items() if name not in arch.resident)
    written = 0 if "C" in arch.resident else problem.output_bytes
    write_gb_per_s = arch.dram_write_gb_per_s or arch.dram_gb_per_s
    return {
        "matrix": us_at_peak(problem.flop, arch.peak_tflop_per_s(problem.dtype)),
        "vector": (arch.exp_ops_per_elem + OTHER_SOFTMAX_OPS_PER_SCORE) * scores / per_us,
        "dram": read / bytes_per_us(arch.dram_gb_per_s) + written / bytes_per_us(write_gb_per_s),
    }
