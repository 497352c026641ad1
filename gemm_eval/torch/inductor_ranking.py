"""Rank the configs of Inductor's Triton templates by the Triton model, else by a roofline; compare them with libraries.

Nothing here imports torch. TORCH.md, "prune_inductor", says where Inductor's kernels differ from those of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.autotune.triton import dtype_of, reject_configs
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.models.gpu.triton import (
    KernelCode,
    TritonConfig,
    estimate_code,
    launch_times,
    pack_launches,
    triton_coefficients,
    triton_costs,
)
from gemm_eval.units import bytes_per_us, cycles_per_us
from gemm_eval.workload import GemmProblem

GROUPED_TEMPLATES = ("triton_grouped_mm", "triton_scaled_grouped_mm")
"""Names, less their number, of the candidates that Inductor appends without asking its choices handler."""

_COPY_BYTES = 16
_DEFAULT_GROUP_M = 8  # of Inductor's templates
_TWO_PRODUCTS = "mm_plus_mm"


class Operand(NamedTuple):
    """A matrix, or a batch of them: sizes and strides in elements, with hints in place of symbols, and torch's type."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any

    @property
    def copy_bytes(self) -> int:
        """The widest piece of a row or column, whichever lies together, that is aligned: 1 to 16."""
        elem_bytes: int = self.dtype.itemsize
        others = [stride for size, stride in zip(self.sizes, self.strides, strict=True) if size > 1 and stride > 1]
        if not any(stride == 1 for stride in self.strides):
            return elem_bytes
        return math.gcd(_COPY_BYTES, *(stride * elem_bytes for stride in others))


def gemm_of(inputs: Any, op_name: str, *, is_tf32: bool) -> tuple[GemmProblem, Operand, Operand]:
    """Return the GEMM of an `MMKernelInputs` of Inductor, with its operands.

    The two products of an mm_plus_mm are one of twice the K. `is_tf32`: fp32 is multiplied as tf32.
    """
    nodes, sizes, strides = inputs.nodes(), inputs.shapes_hinted(), inputs.strides_hinted()
    a, b = (
        Operand(sizes[i], strides[i], nodes[i].get_dtype())
        for i in (next(i for i, node in enumerate(nodes) if node is one) for one in inputs.mat1mat2())
    )
    M, N, K = inputs.mnk_hinted()
    G = math.prod(a.sizes[:-2])
    K = 2 * K if op_name == _TWO_PRODUCTS else K
    return _problem((G, M, K, N), (a.dtype, b.dtype, inputs.output_layout(flexible=False).dtype), is_tf32), a, b


def grouped_gemm_of(
    choice: Any, hint: Callable[[Sequence[Any]], tuple[int, ...]]
) -> tuple[GemmProblem, Operand, Operand]:
    """Return the GEMM of a candidate of a grouped template, its groups as a batch, for rows that are dealt out evenly.

    `choice` is Inductor's caller of a template's kernel; `hint` makes integers of sizes.
    """
    a, b = (
        Operand(hint(node.get_size()), hint(node.get_stride()), node.get_dtype()) for node in choice.input_nodes[:2]
    )
    M, K, N = a.sizes[-2], a.sizes[-1], b.sizes[-1]
    if len(a.sizes) == 3 or len(b.sizes) == 3:
        G = a.sizes[0] if len(a.sizes) == 3 else b.sizes[0]
    else:
        G = hint(choice.input_nodes[-1].get_size())[0]  # of the offsets
    if len(a.sizes) == 2 and len(b.sizes) == 3:
        M = math.ceil(M / G)
    elif len(a.sizes) == 3 and len(b.sizes) == 2:
        N = math.ceil(N / G)
    elif len(a.sizes) == 2:
        K = math.ceil(K / G)
    return _problem((G, M, K, N), (a.dtype, b.dtype, choice.layout.dtype), False), a, b


def config_of(values: Mapping[str, Any], band_rows: int | None = None) -> TritonConfig | None:
    """Return what a candidate is launched with; None if it is no tiled kernel.

    `values` are what Inductor makes its kernel of, by name. `band_rows` are rows whose tiles are finished before the
    next columns'; None: as `values` say.
    """
    if not {"BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"} <= values.keys():
        return None
    m, n, k = (int(values[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    group_m = values.get("GROUP_M", _DEFAULT_GROUP_M) if band_rows is None else math.ceil(band_rows / m)
    return TritonConfig(m, n, k, int(values["num_warps"]), int(values["num_stages"]), int(group_m))


def traits_of(values: Mapping[str, Any], a: Operand, b: Operand) -> KernelTraits:
    """Return what else a template's kernels are, of the values that Inductor makes them of, and the operands."""
    is_tma = "TMA_SIZE" in values or bool(values.get("USE_TMA_LOAD")) or "WARP_SPECIALIZE" in values
    return KernelTraits("NUM_SMS" in values, is_tma, a.copy_bytes, b.copy_bytes)


def _problem(sizes: tuple[int, int, int, int], torch_dtypes: tuple[Any, Any, Any], is_tf32: bool) -> GemmProblem:
    result = [dtype_of(dtype) for dtype in torch_dtypes]
    if None in result:
        a, b, c = torch_dtypes
        raise UnsupportedError(f"GEMMs of {a} and {b} to {c} are not in the Triton model")
    # `dtype_of` takes all fp32 for what it is usually multiplied as
    types = [DType.FP32 if dtype is DType.TF32 and not is_tf32 else dtype for dtype in result]
    types[2] = DType.FP32 if result[2] is DType.TF32 else result[2]
    return GemmProblem(*sizes, *types)  # type: ignore[arg-type]


Array = npt.NDArray[np.float64]

TRITON_ERROR_FRAC = 0.19
"""Of 16-bit kernels that were held out 90% are nearer (arch/calibration/h200-sxm/triton.yaml: p90_percent)."""

_EVENTS_US = 2.7  # around a graph of one empty kernel (floor_us in arch/measured/h200-sxm/cublas/*.meta.yaml)
_DTYPES = (DType.FP16, DType.BF16)
_BITS_PER_BYTE = 8
_NOT_FUSED = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "_grouped_mm", "convolution")


class LibraryTime(NamedTuple):
    """The time of a GEMM without templates, in us: of the library's kernel, and with the kernel behind it.

    A template would save the latter. Nine of ten such GEMMs are faster than `latest_us`.
    """

    latency_us: float
    latest_us: float

    def beats(self, graph_us: float) -> bool:
        """Say whether a candidate is slower even if its prediction is too long by as much as one in ten or twenty."""
        return graph_us > self.latest_us * (1.0 + TRITON_ERROR_FRAC)


class Library:
    """Predicts the library's kernels of one GPU."""

    def __init__(self, arch: GpuSpec) -> None:
        self.arch = arch
        self._evaluator = GEMMEvaluator(arch, l2="cold", disk_cache=False)

    def time(self, problem: GemmProblem, *, has_epilogue: bool) -> LibraryTime | None:
        """Return what the library takes; None: what is predicted is not sure enough to drop anything.

        `has_epilogue`: a template would also do what the next kernel does, which otherwise reads and writes C.
        """
        is_timed = {problem.input_dtype, problem.weight_dtype, problem.output_dtype} <= set(_DTYPES)
        if not is_timed or not _is_timed_generation(self.arch):
            return None
        result = self._evaluator.evaluate_problem(problem)
        if result.high_us is None:
            return None
        epilogue_us = 0.0
        if has_epilogue:
            c_bytes = problem.rows * problem.N * problem.types.c.bits / _BITS_PER_BYTE
            epilogue_us = self._evaluator.evaluate_memory_bound(c_bytes, c_bytes).latency_us
        return LibraryTime(result.latency_us, result.high_us + epilogue_us)


@cache
def _is_timed_generation(arch: GpuSpec) -> bool:
    timed = triton_coefficients(arch)[1].gpu
    if timed is None:
        return False
    try:
        spec = load_arch(timed)
    except ArchError:
        return timed == arch.name
    return isinstance(spec, GpuSpec) and spec.sm_arch == arch.sm_arch


def graph_times_us(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], traits: KernelTraits
) -> Array | None:
    """Return what candidates that `rank_times` knows by the model take in a CUDA graph; None: none was timed."""
    if traits.is_tma or traits.is_persistent or min(traits.a_copy_bytes, traits.b_copy_bytes) < _COPY_BYTES:
        return None
    fitted = triton_coefficients(arch)[0]
    in_graph = {**fitted, "evict_frac": 0.0, "kernel_us": max(0.0, fitted["kernel_us"] - _EVENTS_US)}
    return model_times_us(arch, problem, configs, traits, in_graph)


def has_epilogue(node: Any) -> bool:
    """Return whether a template's kernel may do more than a node of torch.fx says; in doubt it may.

    The node is a GEMM, or a view of its result.
    """
    if node is None:
        return True
    return any(_may_be_fused(user) for user in node.users if user.op != "output")


def _may_be_fused(user: Any) -> bool:
    if getattr(user.target, "is_view", False):
        return has_epilogue(user)
    name = str(user.target).partition(".")[2].partition(".")[0]  # aten.mm.default
    return name not in _NOT_FUSED and not name.startswith("_scaled_dot_product")


_LEAST_ASYNC_BYTES = 4  # of cp.async (PTX ISA: cp-size is 4, 8 or 16)
_ISSUE_PER_COPY = 3.5  # of 96 kernels of Inductor's, compiled for sm_90: strides are constants
_ISSUE_PER_COPY_ESTIMATED = 7.0  # of the examples', in gemm_eval/models/gpu/triton/code.py
_REGISTERS_BASE, _REGISTERS_PER_COPY = 21, 2.4  # beside accumulators of wgmma, of the same kernels
_ISSUE_PER_TMA = 10  # of one thread: an mbarrier's arrival and wait, the copy, its coordinates
_WGMMA_M = 64
_LANES = 32
_FLOP_PER_FMA = 2.0
_LOADED_ELEMS = 4.0  # of fp32, by a load of 16 bytes
_TIE_FRAC = 1e-3  # parts equals, and no more


class KernelTraits(NamedTuple):
    """Facts of a kernel that its config does not say.

    `is_persistent`: as many CTAs as SMs loop over the tiles; `is_tma`: operands come by bulk tensor copies. The widest
    piece of a row of an operand that is aligned has `a_copy_bytes` or `b_copy_bytes`, at most 16.
    """

    is_persistent: bool = False
    is_tma: bool = False
    a_copy_bytes: int = _COPY_BYTES
    b_copy_bytes: int = _COPY_BYTES


class RankedTimes(NamedTuple):
    """Predicted times of configs, [num_configs], by ``"model"`` or ``"roofline"``, and why not by the model.

    A time is infinite where the config does not compile, or cannot be launched.
    """

    times_us: Array
    ranked_by: str
    reason: str = ""


def rank_times(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], traits: KernelTraits
) -> RankedTimes:
    """Return what configs (at least one) of one template are ranked by, the least first; ties stay in their order.

    The problem of a grouped GEMM has the groups as a batch.
    """
    rejected = np.array([no is not None and not no.can_run for no in reject_configs(arch, problem, configs)])
    try:
        if problem.input_dtype is DType.FP32:
            raise UnsupportedError("fp32 without tensor cores is not in the Triton model")
        times, ranked_by, reason = model_times_us(arch, problem, configs, traits), "model", ""
    except UnsupportedError as error:
        times, ranked_by, reason = _roofline_us(arch, problem, configs), "roofline", str(error)
    return RankedTimes(np.where(rejected, np.inf, times), ranked_by, reason)


def model_times_us(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], traits: KernelTraits,
    coefficients: Mapping[str, float] | None = None,
) -> Array:  # fmt: skip
    """Return the Triton model's times of configs of one template.

    `coefficients` None: those of the GPU, for times as tuners take them.
    """
    if coefficients is None:
        coefficients = triton_coefficients(arch)[0]
    codes = [expected_code(arch, problem, config, traits) for config in configs]
    if min(traits.a_copy_bytes, traits.b_copy_bytes) < _LEAST_ASYNC_BYTES:
        configs = [config._replace(num_stages=1) for config in configs]
    triton_costs(arch, problem, configs, codes, coefficients)  # refuses what is not in the model
    launches = pack_launches(arch, problem, configs, codes)
    if traits.is_persistent:
        launches = launches._replace(ctas_per_sm=np.minimum(launches.ctas_per_sm, 1.0))
    if not traits.is_tma:
        whole_m = np.ceil(launches.M / launches.block_m) * launches.block_m
        whole_n = np.ceil(launches.N / launches.block_n) * launches.block_n
        launches = launches._replace(M=whole_m, N=whole_n)
    return launch_times(arch, launches, coefficients).latency_us


def expected_code(arch: GpuSpec, problem: GemmProblem, config: TritonConfig, traits: KernelTraits) -> KernelCode:
    """Return what the model expects of the code of a config: `estimate_code`, with the copies of Inductor's kernels."""
    code = estimate_code(arch, problem, config)
    loop, threads = code.loop, config.num_warps * _LANES
    copies = float(loop.copy)
    for rows, bits, width in (
        (config.block_m, problem.types.a.dtype.bits, traits.a_copy_bytes),
        (config.block_n, problem.types.b.dtype.bits, traits.b_copy_bytes),
    ):
        whole = rows * config.block_k * bits / _BITS_PER_BYTE / (_COPY_BYTES * threads)
        copies += whole * (_COPY_BYTES / width - 1)
    issue = loop.issue - _ISSUE_PER_COPY_ESTIMATED * loop.copy + _ISSUE_PER_COPY * copies
    if traits.is_tma:
        issue, copies = issue - _ISSUE_PER_COPY * copies + _ISSUE_PER_TMA, 0.0
    registers = code.registers + _REGISTERS_PER_COPY * max(0.0, copies - loop.copy)
    if any(one.m == _WGMMA_M for one in loop.mma):
        registers = config.block_m * config.block_n / threads + _REGISTERS_BASE + _REGISTERS_PER_COPY * copies
    return code._replace(
        registers=min(arch.max_registers_per_thread, round(registers)),
        loop=loop._replace(issue=round(issue), copy=max(1, round(copies))),
    )


def _roofline_us(arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig]) -> Array:
    """Return the least time of whole tiles dealt to SMs, by FLOP, L2 and DRAM; then bytes in flight.

    Deeper pipelines with wider steps are first among equals: nothing here says what a stage is worth.
    """
    G, M, K, N = problem.sizes
    types = problem.types
    a, b, c = (dtype.bits / _BITS_PER_BYTE for dtype in (types.a.dtype, types.b.dtype, types.c))
    tensor_flop = arch.tensor_flop_per_cycle.get(problem.input_dtype)
    flop_per_cycle = tensor_flop or arch.issue_slots_per_cycle * _LANES * _FLOP_PER_FMA
    flop_per_us = flop_per_cycle * cycles_per_us(arch.boost_clock_ghz)
    dram_us = G * (M * K * a + K * N * b + M * N * c) / bytes_per_us(arch.dram_achievable_gb_per_s)
    times = []
    for one in configs:
        tiles = G * math.ceil(M / one.block_m) * math.ceil(N / one.block_n)
        whole_k = math.ceil(K / one.block_k) * one.block_k
        compute_us = math.ceil(tiles / arch.num_sms) * 2.0 * one.block_m * one.block_n * whole_k / flop_per_us
        l2_us = tiles * whole_k * (one.block_m * a + one.block_n * b) / bytes_per_us(arch.l2_gb_per_s)
        if tensor_flop is None:  # a thread has a square of C, and loads both its sides for each step of K
            side = math.sqrt(one.block_m * one.block_n / (one.num_warps * _LANES))
            compute_us *= 1.0 + 2.0 / (_LOADED_ELEMS * side)
        in_flight = one.num_stages * one.block_k * (one.block_m * a + one.block_n * b)
        times.append(max(compute_us, l2_us, dram_us) * (1.0 + _TIE_FRAC * (1.0 - in_flight / arch.smem_per_cta_bytes)))
    return np.array(times)
