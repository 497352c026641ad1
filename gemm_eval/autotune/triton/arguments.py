"""The GEMM that a call of a Triton kernel computes, and what can be said of its configs before anything is compiled."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import GemmProblem

NumberSource = str | int | Callable[[Mapping[str, Any]], int]
"""Source of a number: the name of an argument or config value, the number, or a function of all of them."""

TensorSource = str | Callable[[Mapping[str, Any]], Any]
"""Source of a tensor: the name of an argument, or a function of all arguments."""

_DTYPES = {
    "float16": DType.FP16, "half": DType.FP16, "fp16": DType.FP16,
    "bfloat16": DType.BF16, "bf16": DType.BF16,
    "float32": DType.TF32, "fp32": DType.TF32, "tf32": DType.TF32,  # what tl.dot makes of fp32 unless told otherwise
    "float8_e4m3fn": DType.FP8, "float8_e5m2": DType.FP8, "fp8e4nv": DType.FP8, "fp8e5": DType.FP8, "fp8": DType.FP8,
    "int8": DType.INT8, "int32": DType.INT32,
}  # fmt: skip
_TRITON_DTYPES = {"fp8": "fp8e4nv", "tf32": "fp32"}  # Triton's names of ours, where they differ
_OPTIONAL = {"group_m": "GROUP_M", "split_k": "SPLIT_K"}  # and their default names
_IN_TUTORIAL = {
    "BLOCK_M": "BLOCK_SIZE_M", "BLOCK_N": "BLOCK_SIZE_N", "BLOCK_K": "BLOCK_SIZE_K", "GROUP_M": "GROUP_SIZE_M",
}  # fmt: skip
"""Default names -> those of Triton's tutorial "Matrix Multiplication", which are taken where a kernel has them."""
_BY_TRITON = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # of every triton.Config; None is left out
_SIZES = ("G", "M", "N", "K")
_TENSORS = ("a", "b", "c")
_BLOCKS = ("block_m", "block_n", "block_k")


@dataclass(frozen=True)
class TensorArgument:
    """Stands for a tensor where there is none, as on a machine without a GPU: ranking and compiling need its type only.

    Attributes:
        dtype: ``"fp16"``, ``"fp8"``, ``"uint8"``, a `DType`, a torch dtype, or what Triton calls a type.
    """

    dtype: Any

    def __post_init__(self) -> None:
        if isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", _TRITON_DTYPES.get(str(self.dtype), str(self.dtype)))

    @staticmethod
    def data_ptr() -> int:
        """Return an address that is a multiple of 16, as those of whole tensors are."""
        return 0


@dataclass(frozen=True, kw_only=True)
class KernelArguments:
    """The meaning of a kernel's arguments and of its configs' values.

    Defaults are those of `examples/triton_gemm.py`, or of Triton's tutorial (``BLOCK_SIZE_M``, ``GROUP_SIZE_M``) where
    the kernel has these. A kernel without ``GROUP_M`` or ``SPLIT_K`` has no such thing.

    Attributes:
        M, N, K, G: sizes of C[G,M,N] = A[G,M,K] x B[G,K,N]: names, numbers, or functions of a mapping from all names
            (arguments and config values) to their values.
        a, b, c: the tensors, or descriptors of them, whose types are read.
        block_m, block_n, block_k: the tile of a program, and its step along K.
        group_m, split_k: None if the kernel has no such thing, whatever its names.
        num_warps, num_stages, num_ctas, maxnreg: as `triton.Config` calls them; another name if the kernel has its own.
        input_dtype: type of A as multiplied, if it is not that of the tensor; fp32 is taken for tf32.
        weight_dtype: type of B as stored; must be given (``"int4"``) where elements are packed into another type.
        output_dtype: type of C; None: that of the tensor, or the usual one where `c` is None.
        group_size: weights along K that share a scale, or -1 or None: one scale per column. Quantized weights only.
        zero_dtype: type of the zero points, if there are any.
    """

    M: NumberSource = "M"
    N: NumberSource = "N"
    K: NumberSource = "K"
    G: NumberSource = 1
    a: TensorSource | None = "a_ptr"
    b: TensorSource | None = "b_ptr"
    c: TensorSource | None = "c_ptr"
    block_m: NumberSource = "BLOCK_M"
    block_n: NumberSource = "BLOCK_N"
    block_k: NumberSource = "BLOCK_K"
    group_m: NumberSource | None = "GROUP_M"
    split_k: NumberSource | None = "SPLIT_K"
    num_warps: NumberSource = "num_warps"
    num_stages: NumberSource = "num_stages"
    num_ctas: NumberSource = "num_ctas"
    maxnreg: NumberSource | None = "maxnreg"
    input_dtype: str | None = None
    weight_dtype: str | None = None
    output_dtype: str | None = None
    group_size: NumberSource | None = None
    zero_dtype: str | None = None

    def problem(self, values: Mapping[str, Any]) -> GemmProblem:
        """Return the GEMM of a call, from its arguments and the values of one config, by name."""
        sizes = {name: self._number(name, values) for name in _SIZES}
        a = self._dtype("input_dtype", "a", values)
        if a is None:
            raise InvalidOptionError(
                "arguments: no type of A: name its tensor in KernelArguments(a=...), or give input_dtype"
            )
        b = self._dtype("weight_dtype", "b", values)
        c = self._dtype("output_dtype", "c", values)
        if c is DType.TF32:
            c = DType.FP32
        group = None if self.group_size is None else self._number("group_size", values)
        return GemmProblem(
            **sizes, input_dtype=a, weight_dtype=b, output_dtype=c,
            group_size=None if group == -1 else group, zero_dtype=self.zero_dtype,  # type: ignore[arg-type]
        )  # fmt: skip

    def config(self, values: Mapping[str, Any]) -> TritonConfig:
        """Return a config in this library's words, from the arguments of a call and the config's values, by name."""
        numbers: dict[str, Any] = {name: self._number(name, values) for name in _BLOCKS}
        for name in _OPTIONAL:
            numbers[name] = 1 if getattr(self, name) is None else self._number(name, values)
        for name in _BY_TRITON:
            if getattr(self, name) != name or name in values:
                numbers[name] = None if getattr(self, name) is None else self._number(name, values)
        numbers.setdefault("num_warps", 4)  # Triton's defaults
        numbers.setdefault("num_stages", 3)
        return TritonConfig(**numbers)

    def check(self, names: Iterable[str]) -> None:
        """Check that every name is one that the kernel's arguments and configs have."""
        known = {*names, *_BY_TRITON}
        for field in fields(self):
            source = getattr(self, field.name)
            if isinstance(source, str) and not field.name.endswith("dtype") and self._is_read(field.name):
                _find(field.name, source, dict.fromkeys(known))

    def _is_read(self, name: str) -> bool:
        dtype = dict(zip(_TENSORS, ("input_dtype", "weight_dtype", "output_dtype"), strict=True)).get(name)
        return dtype is None or getattr(self, dtype) is None

    def _number(self, name: str, values: Mapping[str, Any]) -> Any:
        source = getattr(self, name)
        if callable(source):
            return source(values)
        return _find(name, source, values) if isinstance(source, str) else source

    def _dtype(self, given: str, name: str, values: Mapping[str, Any]) -> DType | None:
        if (dtype := getattr(self, given)) is not None:
            return DType(dtype) if dtype in DType.__members__.values() else dtype  # GemmProblem refuses others
        source = getattr(self, name)
        if source is None:
            return None
        tensor = source(values) if callable(source) else _find(name, source, values)
        dtype_of_tensor = dtype_of(tensor)
        if dtype_of_tensor is None or (name != "c" and dtype_of_tensor is DType.INT32):
            what = f"{name} ({source!r})" if isinstance(source, str) else name
            raise InvalidOptionError(
                f"arguments: {what} is of type {_name_of_dtype(tensor)}, which does not say what its elements are: "
                f"give {given}, one of {', '.join(DType)}"
            )
        return dtype_of_tensor


def dtype_of(tensor: Any) -> DType | None:
    """Return the type of the elements of a tensor or of a descriptor, or of a type itself; None: none of ours."""
    return _DTYPES.get(_name_of_dtype(tensor))


def _name_of_dtype(tensor: Any) -> str:
    dtype = getattr(tensor, "dtype", None)
    if dtype is None:
        dtype = getattr(getattr(tensor, "base", None), "dtype", None)
    return str(tensor if dtype is None else dtype).rsplit(".", maxsplit=1)[-1]


def _find(what: str, name: str, values: Mapping[str, Any]) -> Any:
    if name in values:
        return values[name]
    if _IN_TUTORIAL.get(name) in values:
        return values[_IN_TUTORIAL[name]]
    if _OPTIONAL.get(what) == name:
        return 1
    hint = ", or None if the kernel has none" if what in _OPTIONAL else ""
    raise InvalidOptionError(
        f"arguments: {what} is {name!r}, but the kernel and its configs have {', '.join(sorted(values))}: "
        f"name the right one in KernelArguments({what}=...){hint}"
    )


MAX_THREADS_PER_CTA = 1024
"""Largest CTA of every CUDA GPU (CUDA C++ Programming Guide, compute capabilities)."""

MIN_K_ELEMS, MIN_K_ELEMS_8BIT = 16, 32
"""Least K of `tl.dot` (triton/backends/nvidia/compiler.py: min_dot_size): that of one mma.sync or wgmma."""

MIN_MMA_M, MIN_MMA_N = 16, 8
"""The smallest tensor-core instruction, mma.sync m16n8: less than that of a warp is computed twice, or thrown away."""

MIN_OTHER_REGISTERS = 26
"""Registers that a main loop needs beside its accumulators. ptxas refuses a wgmma with fewer ("Try to compile with
register target of 154 or higher" for 128 accumulators, 90 for 64, 58 for 32, 42 for 16); on sm_80 all these spill."""

_BITS_PER_BYTE = 8
_SHARED_EXTRA_BYTES = 1024  # mbarriers, the scales of a step


class Rejection(NamedTuple):
    """The rule by which a config falls, and why, in one line; `can_run`: it would run, badly."""

    rule: str
    reason: str
    can_run: bool


def reject_alone(arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> Rejection | None:
    """Return the first rule that a config breaks by itself, or None."""
    warps, stages, ctas, split_k = config.num_warps, config.num_stages, config.num_ctas, config.split_k
    for name, value in zip("MNK", config[:3], strict=True):
        if not _is_power_of_two(value):
            return Rejection("blocks", f"block {name} {value} is no power of two, as Triton's tiles are", False)
    most_warps = MAX_THREADS_PER_CTA // arch.threads_per_warp
    if not _is_power_of_two(warps) or warps > most_warps:
        return Rejection("launch", f"{warps} warps: a program has a power of two of them, at most {most_warps}", False)
    if stages < 1:
        return Rejection("launch", f"{stages} stages: there must be at least 1", False)
    if ctas > arch.max_cluster_ctas:
        text = f"{ctas} CTAs in a cluster: {arch.sm_arch} has at most {arch.max_cluster_ctas}"
        return Rejection("launch", text, False)
    if split_k < 1 or config.group_m < 1:
        return Rejection("launch", f"split-K {split_k}, group {config.group_m}: both are at least 1", False)
    step = MIN_K_ELEMS_8BIT if problem.input_dtype.bits == 8 else MIN_K_ELEMS
    if config.block_k % step:
        what = f"block K {config.block_k} is no multiple of {step}"
        return Rejection("k_step", f"{what}, the K of a tensor-core instruction of {problem.input_dtype}", False)
    elems, least = config.block_m * config.block_n, warps * MIN_MMA_M * MIN_MMA_N
    if elems < least:
        text = f"{elems} elements of C for {warps} warps: a tensor-core instruction m16n8 each is {least}"
        return Rejection("mma_shape", text, True)
    if arch.mma_accumulators_in == "registers":
        threads = warps * arch.threads_per_warp
        limit = min(arch.max_registers_per_thread, arch.registers_per_sm // threads, config.maxnreg or 1 << 30)
        demand = elems // threads + MIN_OTHER_REGISTERS
        if demand > limit:
            text = f"{elems // threads} accumulators a thread + {MIN_OTHER_REGISTERS} are {demand} registers"
            return Rejection("registers", f"{text}, there are {limit}: it spills, or does not compile", True)
    smem_bytes, limit = shared_bytes_bounds(problem, config)[0], arch.smem_per_cta_bytes
    if smem_bytes > limit:
        text = f"at least {smem_bytes:,} bytes of shared memory in {stages} stages, a CTA has {limit:,}"
        return Rejection("shared_memory", text, False)
    steps = -(-problem.K // config.block_k)
    if split_k > steps:
        return Rejection("split_k", f"split-K {split_k} of {steps} steps along K: some parts are empty", True)
    return None


def shared_bytes_bounds(problem: GemmProblem, config: TritonConfig) -> tuple[int, int]:
    """Return the least and the most shared memory that Triton may give a config, in bytes.

    Of `num_stages` steps Triton holds one less in shared memory for mma.sync, and all for wgmma; for quantized weights
    only A is sure to be there, while B may be as wide as A, once unpacked. At the end, C may pass through it. Compiled
    kernels of sm_80, sm_89, sm_90 and sm_100 in fp16, fp8 and W4A16 lie between (tests/autotune/test_asm_triton.py).
    """
    a_bytes = config.block_m * config.block_k * problem.input_dtype.bits // _BITS_PER_BYTE
    b_bytes = config.block_n * config.block_k * problem.input_dtype.bits // _BITS_PER_BYTE
    c_bytes = config.block_m * config.block_n * DType.FP32.bits // _BITS_PER_BYTE
    sure = a_bytes if problem.is_weight_quantized else a_bytes + b_bytes
    least = 0 if config.num_stages == 1 else (config.num_stages - 1) * sure
    return least, max(config.num_stages * (a_bytes + b_bytes), c_bytes) + _SHARED_EXTRA_BYTES


def reject_configs(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig]
) -> tuple[Rejection | None, ...]:
    """Return for each config why it falls, or None; a pointless one falls only if a better one stands to the end."""
    rejections = [reject_alone(arch, problem, config) for config in configs]
    blocks = zip("MNK", (problem.M, problem.N, problem.K), ("block_m", "block_n", "block_k"), strict=True)
    for name, size, field in blocks:
        # the rows of one instruction are no waste, be they M or, in a transposed product, N
        enough = max(1 << (size - 1).bit_length(), MIN_K_ELEMS_8BIT if name == "K" else arch.mma_m)
        standing = [i for i, no in enumerate(rejections) if no is None]
        if any(getattr(configs[i], field) <= enough for i in standing):
            for i in standing:
                if (block := getattr(configs[i], field)) >= 2 * enough:
                    text = f"block {name} {block} for {name} = {size}: {enough} does, and some config has no more"
                    rejections[i] = Rejection("oversized", text, True)
    return tuple(rejections)


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


SMALL_SHARE = 0.3
"""A GEMM is small if its work takes at most this share of the fixed cost of a launch (`GpuSpec.graph_node_us`).

Among the examples' configs that arch/measured/h200-sxm/triton has timings of, the dispatched one is at most 5% slower
than the best below this share (three GEMMs), and at most 7% up to a share of 1 (36 GEMMs):
tests/autotune/test_asm_aware_benchmark.py holds both.
"""

SMALL_TILE = 32
"""Rows and columns of the tile whose way along K counts as work: a small one, of which a small GEMM has many."""

_FLOP_PER_US_PER_TFLOP_PER_S = 1e6


def is_small(problem: GemmProblem, arch: GpuSpec) -> bool:
    """Return whether a launch costs more than all that a config can change about a GEMM."""
    return work_us(problem, arch) <= SMALL_SHARE * arch.graph_node_us


def work_us(problem: GemmProblem, arch: GpuSpec) -> float:
    """Return the least time of a GEMM beyond its launch: its roofline, plus the way of one CTA along K.

    The roofline is the longer of all FLOP at the peak and of every operand once from or to DRAM. The second term is
    what no number of SMs shortens unless K is split: one SM takes the operands of a tile of 32 x 32 over all of K, as
    wide as they are multiplied, at its share of the L2 bandwidth. Infinite for types that the tensor cores do not take.
    """
    try:
        peak = arch.peak_tflop_per_s(problem.input_dtype)
    except KeyError:
        return float("inf")
    G, M, K, N = problem.sizes
    a, b, c = (
        (dtype.bits if dtype else 0) / _BITS_PER_BYTE
        for dtype in (problem.input_dtype, problem.weight_dtype, problem.output_dtype)
    )
    compute_us = problem.flop / (peak * _FLOP_PER_US_PER_TFLOP_PER_S)
    dram_us = G * (M * K * a + K * N * b + M * N * c) / bytes_per_us(arch.dram_achievable_gb_per_s)
    row_bytes = (min(M, SMALL_TILE) + min(N, SMALL_TILE)) * a
    chain_us = K * row_bytes / bytes_per_us(arch.l2_gb_per_s / arch.num_sms)
    return max(compute_us, dram_us) + chain_us
