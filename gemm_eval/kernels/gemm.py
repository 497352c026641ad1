"""The public call of the W4A16 kernels, and what can be asked without running one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy

from gemm_eval.arch import GpuSpec, Occupancy
from gemm_eval.device import as_device_array, check_dtype, check_vector, overlaps, runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.call import (
    ALIGNMENT_BYTES,
    WHY_THAT_TYPE,
    finite,
    gathered_at,
    launch_plan,
    matrix,
    new_output,
    on_device_array,
    output_rows,
    take_scratch,
)
from gemm_eval.kernels.choice import choose
from gemm_eval.kernels.families import Operands, Sizes, WeightMode
from gemm_eval.kernels.gather import gather_bytes, gather_columns
from gemm_eval.kernels.plan import (
    check_rows,
    limits_of,
    make_plan,
    plan_on_device,
    spec_and_limits,
)
from gemm_eval.kernels.profiled import profiled_config
from gemm_eval.kernels.registry import check_kernel, compile_for, make_variant, occupancy_of
from gemm_eval.kernels.weights import PackedW4, check_packed
from gemm_eval.mapping import KernelConfig
from gemm_eval.words import shown

__all__ = ["occupancy", "w4a16_gemm", "workspace_bytes"]

_CHOICES = ("auto", "profile")


class _Weights(NamedTuple):
    """Packed weights as a launch takes them."""

    qweight: int
    scales: int
    permutation: int
    memory: tuple[tuple[int, int], ...]
    blocks_and_groups: tuple[int, int, int]
    device: int


_weights: WeakKeyDictionary[PackedW4, _Weights] = WeakKeyDictionary()


def w4a16_gemm(
    A: Any,
    packed: PackedW4,
    bias: Any = None,
    alpha: float = 1.0,
    out: Any = None,
    config: KernelConfig | str = "auto",
    stream: Any = None,
    workspace: Any = None,
) -> Any:
    """Multiply activations with 4-bit weights on a GPU: C[M,N] = alpha * A[M,K] x W[K,N] + bias[N].

    Arrays may be CuPy's, torch's, or any with ``__cuda_array_interface__`` or DLPack. fp16 is float16; bf16 is a type
    named "bfloat16", or its bits in uint16. The call returns when the kernel is queued on `stream`, behind what wrote
    the operands there; the same operands and config give the same bits every time. Where the rows of packed weights
    were sorted by group, a kernel before gathers the columns of A alike, into the workspace.

    CUDA graphs: a call can be captured when `out` is given and the same GEMM ran before, on the stream of the capture.
    A graph keeps the workspace of that stream: replay it there, or give `workspace`.

    Args:
        A: activations [..., M, K] of the type that the weights were packed for, on the GPU of the weights. Rows are
            contiguous, at multiples of 8 elements, and start at multiples of 16 bytes. All dimensions but the last
            count as M.
        packed: the weights, on a GPU: see `pack_w4` and `PackedW4.to_gpu`. K and N are multiples of 8.
        bias: [N], of the type of A; None: none.
        alpha: factor of the product, finite; applied in fp32.
        out: [..., M, N] for the result, contiguous, of the type of A; shares no memory with the operands. None: a new
            CuPy array of the shape of A with N for K; bf16 comes as the type of A if that is CuPy's, else in uint16.
        config: the kernel, one of `legal_configs`. "auto": the cost model chooses, without running anything. "profile":
            the model's first ten choices are timed, once for a GEMM, GPU and version of the kernels, and the fastest is
            remembered in the user's cache folder (`gemm_eval.kernels.config_cache`); the call waits for that.
        stream: None (CuPy's current stream), a stream of CuPy, torch or CUDA Python, or its handle.
        workspace: uint8 array of at least `workspace_bytes`, for nothing else while the kernel runs; its content does
            not matter. None: memory that the library keeps for each stream.

    Returns:
        `out`, or the new array.

    Raises:
        InvalidProblemError: operands of a wrong type, shape, GPU, order or alignment.
        InvalidMappingError: a config that does not exist, or that cannot cut K so.
        InvalidOptionError: alpha, stream or workspace; or a capture before the first call.
        UnsupportedError: the GPU lacks what the kernel needs.
        GemmEvalError: no GPU, driver, CuPy or NVRTC.
    """
    weights = _weights_of(packed)
    if weights.device != runtime.current_device():
        with runtime.on_device(weights.device):
            return w4a16_gemm(A, packed, bias, alpha, out, config, stream, workspace)
    if not isinstance(config, KernelConfig) and not (isinstance(config, str) and config in _CHOICES):
        raise InvalidOptionError(f"config must be a KernelConfig, 'auto' or 'profile', got {shown(config)}")
    handle = runtime.stream_handle(stream)
    a = matrix(A, "A", packed.K, packed.activation, weights.device, handle)
    sizes = Sizes(a.num_rows, packed.K, packed.N)
    if config == "profile":
        operands = Operands(
            a.address, a.stride, weights.qweight, weights.scales, 0, 0, 0, 0, 1.0, *weights.blocks_and_groups
        )
        config = profiled_config(sizes, packed, operands, weights.device, handle)
    chosen = config if isinstance(config, KernelConfig) else None
    plan = plan_on_device(sizes, packed.activation, packed.mode, packed.group_size, chosen, weights.device)
    result = new_output(A, packed.activation, packed.N, handle) if out is None else out
    c = output_rows(result, sizes.M, packed.N, packed.activation, weights.device, handle)
    inputs = [(a.address, a.num_bytes), *weights.memory]
    bias_address = 0
    if bias is not None:
        vector = on_device_array(bias, "bias", weights.device, handle)
        check_dtype(vector, "bias", packed.activation, WHY_THAT_TYPE)
        check_vector(vector, "bias", packed.N)
        bias_address = vector.address
        inputs.append((vector.address, packed.N * vector.itemsize))
    written = c.address, c.num_bytes
    if any(overlaps(written, memory) for memory in inputs):
        raise InvalidProblemError("out must not share memory with A, the weights or bias")
    gathered_bytes = gather_bytes(sizes.M, sizes.K) if weights.permutation else 0
    scratch = take_scratch(plan, gathered_bytes, workspace, weights.device, handle, [written, *inputs])
    factor = finite(alpha) * packed.scale_unit
    if weights.permutation:
        a = gather_columns(a, weights.permutation, scratch.gathered, weights.device, handle)
    operands = Operands(
        a.address, a.stride, weights.qweight, weights.scales, bias_address, c.address,
        scratch.partial_sums, scratch.counters, factor, *weights.blocks_and_groups,
    )  # fmt: skip
    launch_plan(plan, operands, weights.device, handle)
    return result


def occupancy(
    config: KernelConfig,
    activation: DType | str = DType.FP16,
    mode: WeightMode | str = WeightMode.GROUP,
    group_size: int | None = None,
    arch: GpuSpec | str | None = None,
) -> Occupancy:
    """Return how many CTAs of a kernel an SM holds at once, and what they take. Compiles it, runs nothing.

    Args:
        config: the kernel; how K is split does not matter.
        activation: "fp16" or "bf16".
        mode: "column", "group", "group_zero", "mxfp4" or "nvfp4".
        group_size: 32, 64 or 128; None: 128, all of K in mode COLUMN, or 32 (MXFP4) or 16 (NVFP4).
        arch: a GPU's spec, or its name; None: CuPy's current GPU.

    Raises:
        InvalidInputError: a kernel, type, mode or group size that does not exist.
        UnsupportedError: the GPU lacks what the kernel needs.
        GemmEvalError: no CuPy or NVRTC; without `arch`, no GPU.
    """
    limits = limits_of(arch)
    variant = make_variant(config, activation, mode, group_size)
    check_kernel(variant, None, limits)
    return occupancy_of(variant, compile_for(variant, limits), limits)


def workspace_bytes(
    M: int, packed: PackedW4, config: KernelConfig | str = "auto", arch: GpuSpec | str | None = None
) -> int:
    """Return the size of `workspace` that `w4a16_gemm` needs, in bytes; 0: none. Compiles the kernel, runs nothing.

    Args:
        M: rows of A.
        packed: the weights, wherever they lie.
        config: the kernel; "auto": the one that the cost model chooses.
        arch: a GPU's spec, or its name; None: CuPy's current GPU.

    Raises:
        InvalidProblemError: M < 1.
        InvalidOptionError: config is neither a `KernelConfig` nor "auto".
        InvalidMappingError: a config that does not exist, or that cannot cut K so.
        UnsupportedError: the GPU lacks what the kernel needs.
        GemmEvalError: no CuPy or NVRTC; without `arch`, no GPU.
    """
    check_packed(packed)
    if not isinstance(config, KernelConfig) and not (isinstance(config, str) and config == "auto"):
        raise InvalidOptionError(f"config must be a KernelConfig or 'auto', got {shown(config)}")
    sizes = Sizes(M, packed.K, packed.N)
    check_rows(sizes)
    types = packed.activation, packed.mode, packed.group_size
    if arch is None:
        chosen = config if isinstance(config, KernelConfig) else None
        plan = plan_on_device(sizes, *types, chosen, runtime.current_device())
    else:
        spec, limits = spec_and_limits(arch)
        chosen = config if isinstance(config, KernelConfig) else choose(sizes, *types, spec, limits)
        plan = make_plan(sizes, *types, chosen, limits)
    return plan.workspace_bytes if packed.permutation is None else gathered_at(plan) + gather_bytes(M, packed.K)


def _weights_of(packed: PackedW4) -> _Weights:
    found = _weights.get(packed) if isinstance(packed, PackedW4) else None
    if found is not None:
        return found
    check_packed(packed)
    if isinstance(packed.qweight, numpy.ndarray):
        raise InvalidProblemError("packed must be on a GPU, got weights in CPU memory: packed.to_gpu() moves them")
    parts = packed.qweight, packed.scales, packed.permutation
    arrays = [as_device_array(array, "packed", 0) for array in parts if array is not None]
    if len({array.device for array in arrays}) > 1:
        raise InvalidProblemError("packed must have all of its arrays on one GPU")
    if any(array.address % ALIGNMENT_BYTES for array in arrays):
        raise InvalidProblemError(f"packed must have arrays that start at multiples of {ALIGNMENT_BYTES} bytes")
    memory = tuple((array.address, math.prod(array.shape) * array.itemsize) for array in arrays)
    counts = packed.num_column_blocks, packed.num_k_blocks, packed.num_groups
    permutation = arrays[2].address if len(arrays) > 2 else 0
    found = _Weights(arrays[0].address, arrays[1].address, permutation, memory, counts, arrays[0].device)
    _weights[packed] = found
    return found
