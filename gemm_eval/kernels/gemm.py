"""The public calls of the W4A16 kernels, of one GEMM and of groups, and what can be asked without running one."""

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy

from gemm_eval.arch import GpuSpec, Occupancy
from gemm_eval.device import DeviceArray, Rows, as_device_array, check_dtype, check_vector, overlaps, runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.call import (
    ALIGNMENT_BYTES,
    WHY_THAT_TYPE,
    gather_bytes,
    gather_columns,
    gathered_at,
    launch_plan,
    matrix,
    new_output,
    on_device_array,
    output_rows,
    take_scratch,
)
from gemm_eval.kernels.families import GroupedOperands, GroupedSizes, Operands, Sizes, WeightMode, fp8_families
from gemm_eval.kernels.families.grouped import MAX_GROUPS
from gemm_eval.kernels.plan import LARGEST_SIZE, Plan, choose_for, limits_of, make_plan, plan_on_device, spec_and_limits
from gemm_eval.kernels.registry import check_kernel, compile_for, make_variant, occupancy_of
from gemm_eval.kernels.tokens import QuantizedTokens, quantize_rows, quantized_bytes
from gemm_eval.kernels.tune import profiled_config
from gemm_eval.kernels.weights import GroupedW4, PackedW4, check_packed
from gemm_eval.mapping import KernelConfig
from gemm_eval.words import as_integer, plain_number, shown


class Weights(NamedTuple):
    """Packed weights as a launch takes them; `extra`: address of a permutation (0: none) or of groups' factors."""

    qweight: int
    scales: int
    extra: int
    memory: tuple[tuple[int, int], ...]
    device: int


_weights: WeakKeyDictionary[PackedW4 | GroupedW4, Weights] = WeakKeyDictionary()
_even_offsets: dict[tuple[int, int, int], Any] = {}


def w4a16_gemm(
    A: Any, packed: PackedW4, bias: Any = None, alpha: float = 1.0, out: Any = None,
    config: KernelConfig | str = "auto", stream: Any = None, workspace: Any = None,
) -> Any:  # fmt: skip
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
    weights = weights_of(packed, PackedW4)
    if weights.device != runtime.current_device():
        with runtime.on_device(weights.device):
            return w4a16_gemm(A, packed, bias, alpha, out, config, stream, workspace)
    _check_config(config, ("auto", "profile"))
    handle = runtime.stream_handle(stream)
    a = matrix(A, "A", packed.K, packed.activation, weights.device, handle)
    sizes = Sizes(a.num_rows, packed.K, packed.N)
    if config == "profile":
        of_packed = weights.qweight, weights.scales, 0, 0, 0, 0, 1.0, *packed.blocks_and_groups
        config = profiled_config(sizes, packed, Operands(a.address, a.stride, *of_packed), weights.device, handle)
    plan = plan_on_device(sizes, *_types_of(packed), _chosen(config), weights.device)
    given = bias, alpha, out, workspace
    return _multiply(plan, weights, packed, A, a, *given, handle, permutation=weights.extra, unit=packed.scale_unit)


def quantize_tokens(A: Any, packed: PackedW4, stream: Any = None) -> QuantizedTokens:
    """Round activations to e4m3, each token by its largest magnitude, in the order of k of some packed weights.

    Args:
        A: activations as for `w4a8_gemm`.
        packed: the weights that the tokens will be multiplied with; all that have its K and its permutation do.
        stream: as for `w4a16_gemm`.

    Raises:
        InvalidProblemError: activations of a wrong type, shape, GPU, order or alignment.
    """
    weights, handle = weights_of(packed, PackedW4), runtime.stream_handle(stream)
    with runtime.on_device(weights.device):
        a = matrix(A, "A", packed.K, packed.activation, weights.device, handle)
        data = runtime.allocate((quantized_bytes(a.num_rows, packed.K),), "uint8", handle)
        quantize_rows(a, packed.activation, weights.extra, data.data.ptr, weights.device, handle)
    return QuantizedTokens(data, tuple(A.shape))


def w4a8_gemm(
    A: Any, packed: PackedW4, bias: Any = None, alpha: float = 1.0, out: Any = None,
    config: KernelConfig | str = "auto", stream: Any = None, workspace: Any = None,
) -> Any:  # fmt: skip
    """Multiply activations, rounded to e4m3, with 4-bit weights on a Hopper GPU: as `w4a16_gemm`, in fp8 arithmetic.

    A token has the scale that makes its largest magnitude 448. Integer weights are exact in e4m3; sums of each group of
    K are scaled in fp32. So all error beyond that of `w4a16_gemm` is the rounding of activations, some 2.6% of each.

    Args:
        A: activations as for `w4a16_gemm`, which a kernel quantizes first; or `QuantizedTokens`, for several matrices
            with the same K.
        packed: weights of mode COLUMN or GROUP, on a GPU; the same that `w4a16_gemm` takes.
        bias, alpha, out, stream: as for `w4a16_gemm`; `out` has the type that the weights were packed for.
        config: the kernel, of the family `w4a8_sm90`; "auto": the cost model chooses.
        workspace: as for `w4a16_gemm`, with the size of `workspace_bytes(..., is_fp8=True)`.

    Raises:
        InvalidProblemError: operands of a wrong type, shape, GPU, order or alignment.
        InvalidMappingError: a config that does not exist, or that cannot cut K so.
        InvalidOptionError: alpha, stream or workspace; or a capture before the first call.
        UnsupportedError: weights of another mode, or a GPU without wgmma.
        GemmEvalError: no GPU, driver, CuPy or NVRTC.
    """
    weights = weights_of(packed, PackedW4)
    if weights.device != runtime.current_device():
        with runtime.on_device(weights.device):
            return w4a8_gemm(A, packed, bias, alpha, out, config, stream, workspace)
    _check_config(config, ("auto",))
    handle = runtime.stream_handle(stream)
    is_quantized = isinstance(A, QuantizedTokens)
    if is_quantized:
        a = A.rows_for(packed.K, weights.device)
    else:
        a = matrix(A, "A", packed.K, packed.activation, weights.device, handle)
    sizes = Sizes(a.num_rows, packed.K, packed.N)
    plan = plan_on_device(sizes, *_types_of(packed), _chosen(config), weights.device, is_fp8=True)
    return _multiply(
        plan, weights, packed, A, a, bias, alpha, out, workspace, handle,
        permutation=weights.extra, unit=packed.scale_unit, is_quantized=is_quantized,
    )  # fmt: skip


def w4a16_grouped_gemm(
    A: Any, packed: GroupedW4, offsets: Any = None, bias: Any = None, alpha: float = 1.0, out: Any = None,
    config: KernelConfig | str = "auto", stream: Any = None, workspace: Any = None, *,
    expected_rows: int | None = None,
) -> Any:  # fmt: skip
    """Multiply groups of activations, each with 4-bit weights of its own, in one launch.

    C[i] = alpha * A[i] x W[g] + bias[g] for the rows offsets[g] <= i < offsets[g + 1] of each group g. The offsets are
    read by the GPU alone, so a CUDA graph may be replayed with others; groups without rows cost nothing. Rows that no
    group has are not written. The same operands, offsets and config give the same bits every time.

    Arrays, types and streams are as for `w4a16_gemm`; for a capture `out` has to be given, and the same call to have
    run before on its stream.

    Args:
        A: [..., rows, K], of the type that the weights were packed for. All dimensions but the last count as rows.
        packed: the weights, on a GPU: see `stack_w4` and `GroupedW4.to_gpu`.
        offsets: int32 [num_groups + 1] on the GPU: the first row of each group, and the end of the last; they do not
            decrease. Whatever they hold, no memory beyond the operands is touched. None: A is [num_groups, M, K], a
            batch.
        bias: [num_groups, N], of the type of A; None: none.
        alpha: factor of the product, finite; applied in fp32.
        out: [..., rows, N] for the result, contiguous, of the type of A; shares no memory with the operands. None: a
            new CuPy array, as of `w4a16_gemm`.
        config: the kernel, of a grouped family; "auto": the cost model chooses, without running anything.
        stream: as for `w4a16_gemm`.
        workspace: uint8 array of at least `workspace_bytes`; None: memory that the library keeps for each
            stream.
        expected_rows: rows that all groups are expected to have together, for the choice of the kernel where A has room
            for more; None: all of A. They are taken to fall on groups at random.

    Returns:
        `out`, or the new array.

    Raises:
        InvalidProblemError: operands of a wrong type, shape, GPU, order or alignment.
        InvalidMappingError: a config that does not exist, or is of no grouped family.
        InvalidOptionError: alpha, stream, workspace or expected_rows; or a capture before the first call.
        UnsupportedError: the GPU lacks what the kernel needs.
        GemmEvalError: no GPU, driver, CuPy or NVRTC.
    """
    weights = weights_of(packed, GroupedW4)
    if weights.device != runtime.current_device():
        with runtime.on_device(weights.device):
            return w4a16_grouped_gemm(
                A, packed, offsets, bias, alpha, out, config, stream, workspace, expected_rows=expected_rows
            )
    _check_config(config, ("auto",))
    handle = runtime.stream_handle(stream)
    if 0 in tuple(A.shape)[:-1]:  # no rows: nothing to do
        return new_output(A, packed.activation, packed.N, handle) if out is None else out
    a = matrix(A, "A", packed.K, packed.activation, weights.device, handle)
    sizes = GroupedSizes(a.num_rows, packed.K, packed.N, packed.num_groups)
    expected = _expected_rows(expected_rows, sizes)
    first_rows = _batch_offsets(A, packed, weights.device, handle) if offsets is None else offsets
    of_groups = on_device_array(first_rows, "offsets", weights.device, handle)
    if of_groups.dtype.split(".")[-1] != "int32" or tuple(of_groups.shape) != (sizes.num_groups + 1,):
        raise InvalidProblemError(
            f"offsets must be int32 [{sizes.num_groups + 1}], the first row of each group and the end of the last, "
            f"got {of_groups.dtype} {list(of_groups.shape)}"
        )
    if of_groups.strides not in {None, (1,)}:
        raise InvalidProblemError("offsets must be contiguous")
    plan = plan_on_device(sizes, *_types_of(packed), _chosen(config), weights.device, expected, offsets is None)
    given = bias, alpha, out, workspace
    return _multiply(plan, weights, packed, A, a, *given, handle, offsets=of_groups.address)


def _multiply(
    plan: Plan[Any], weights: Weights, packed: PackedW4 | GroupedW4, A: Any, a: Rows, bias: Any, alpha: float,
    out: Any, workspace: Any, stream: int, *, permutation: int = 0, unit: float = 1.0, offsets: int | None = None,
    is_quantized: bool = False,
) -> Any:  # fmt: skip
    """Check result, bias and workspace, and queue a kernel, behind the one that gathers columns where it is needed.

    `A` are activations as they were given, and `a` their rows; `permutation` and `offsets` are addresses, of the order
    of columns of A (0: as they are) and of the first rows of groups; `unit` is the factor of all scales. Kernels of
    e4m3 tokens have them quantized before, unless they are (`is_quantized`).
    """
    factor = plain_number(alpha)
    if factor is None:
        raise InvalidOptionError(f"alpha must be a finite number, got {shown(alpha)}")
    num_groups = packed.num_groups if isinstance(packed, GroupedW4) else 0
    result = new_output(A, packed.activation, packed.N, stream) if out is None else out
    c = output_rows(result, a.num_rows, packed.N, packed.activation, weights.device, stream)
    a_bytes = quantized_bytes(a.num_rows, packed.K) if is_quantized else a.num_bytes
    inputs = [(a.address, a_bytes), *weights.memory]
    if offsets is not None:
        inputs.append((offsets, 4 * (num_groups + 1)))
    bias_address = 0
    if bias is not None:
        vectors = check_biases(bias, "bias", packed, weights.device, stream)
        bias_address = vectors.address
        inputs.append((bias_address, max(1, num_groups) * packed.N * vectors.itemsize))
    written = c.address, c.num_bytes
    if any(overlaps(written, memory) for memory in inputs):
        others = "the weights, offsets or bias" if num_groups else "the weights or bias"
        raise InvalidProblemError(f"out must not share memory with A, {others}")
    quantizes = plan.variant.config.family in fp8_families() and not is_quantized
    gathered_bytes = gather_bytes(a.num_rows, packed.K) if permutation and not is_quantized else 0
    if quantizes:
        gathered_bytes = quantized_bytes(a.num_rows, packed.K)
    scratch = take_scratch(plan, gathered_bytes, workspace, weights.device, stream, [written, *inputs])
    if quantizes:
        a = quantize_rows(a, packed.activation, permutation, scratch.gathered, weights.device, stream)
    elif gathered_bytes:
        a = gather_columns(a, permutation, scratch.gathered, weights.device, stream)
    operands: Any = Operands(
        a.address, a.stride, weights.qweight, weights.scales, bias_address, c.address,
        scratch.partial_sums, scratch.counters, factor * unit, *packed.blocks_and_groups,
    )  # fmt: skip
    if offsets is not None:
        operands = GroupedOperands(operands, offsets, weights.extra)
    launch_plan(plan, operands, weights.device, stream)
    return result


def occupancy(
    config: KernelConfig, activation: DType | str = DType.FP16, mode: WeightMode | str = WeightMode.GROUP,
    group_size: int | None = None, arch: GpuSpec | str | None = None,
) -> Occupancy:  # fmt: skip
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
    M: int, packed: PackedW4 | GroupedW4, config: KernelConfig | str = "auto", arch: GpuSpec | str | None = None, *,
    expected_rows: int | None = None, is_fp8: bool = False,
) -> int:  # fmt: skip
    """Return the size of `workspace` that `w4a16_gemm` or `w4a16_grouped_gemm` needs, in bytes; 0: none.

    The kernel is compiled, and nothing runs.

    Args:
        M: rows of A.
        packed: the weights, wherever they lie.
        config: the kernel; "auto": the one that the cost model chooses.
        arch: a GPU's spec, or its name; None: CuPy's current GPU.
        expected_rows: of groups, as for `w4a16_grouped_gemm`.
        is_fp8: of `w4a8_gemm`, with tokens that it quantizes itself.

    Raises:
        InvalidInputError, UnsupportedError, GemmEvalError: as the call; GemmEvalError without `arch` where there is no
            GPU.
    """
    _check_config(config, ("auto",))
    if isinstance(packed, GroupedW4):
        _check_groups(packed)
        sizes = GroupedSizes(as_integer("rows", M, 1, LARGEST_SIZE), packed.K, packed.N, packed.num_groups)
        return _plan_of(sizes, packed, config, arch, _expected_rows(expected_rows, sizes)).workspace_bytes
    check_packed(packed)
    plan = _plan_of(Sizes(M, packed.K, packed.N), packed, config, arch, is_fp8=is_fp8)
    if is_fp8:
        return gathered_at(plan) + quantized_bytes(M, packed.K)
    return plan.workspace_bytes if packed.permutation is None else gathered_at(plan) + gather_bytes(M, packed.K)


def _plan_of(
    sizes: Sizes | GroupedSizes, packed: PackedW4 | GroupedW4, config: KernelConfig | str, arch: GpuSpec | str | None,
    expected_rows: int = 0, *, is_fp8: bool = False,
) -> Plan[Any]:  # fmt: skip
    """Return the plan for a GPU that is named, or for CuPy's current one."""
    chosen, types = _chosen(config), _types_of(packed)
    if arch is None:
        return plan_on_device(sizes, *types, chosen, runtime.current_device(), expected_rows, is_fp8=is_fp8)
    spec, limits = spec_and_limits(arch)
    chosen = chosen or choose_for(sizes, *types, spec, limits, expected_rows, is_fp8=is_fp8)
    return make_plan(sizes, *types, chosen, limits, is_fp8=is_fp8)


def _types_of(packed: PackedW4 | GroupedW4) -> tuple[DType, WeightMode, int]:
    return packed.activation, packed.mode, packed.group_size


def _chosen(config: KernelConfig | str) -> KernelConfig | None:
    return config if isinstance(config, KernelConfig) else None


def _check_config(config: object, words: tuple[str, ...]) -> None:
    if not isinstance(config, KernelConfig) and not (isinstance(config, str) and config in words):
        allowed = "a KernelConfig or 'auto'" if len(words) == 1 else "a KernelConfig, 'auto' or 'profile'"
        raise InvalidOptionError(f"config must be {allowed}, got {shown(config)}")


def _check_groups(packed: object) -> None:
    if not isinstance(packed, GroupedW4):
        raise InvalidProblemError(f"packed must be a GroupedW4, as stack_w4 makes it, got {shown(packed)}")
    if packed.num_groups > MAX_GROUPS:
        raise InvalidProblemError(f"packed must have at most {MAX_GROUPS:,} groups, got {packed.num_groups:,}")


def _expected_rows(given: int | None, sizes: GroupedSizes) -> int:
    return sizes.M if given is None else as_integer("expected_rows", given, 1, sizes.M)


def check_biases(bias: Any, argument: str, packed: PackedW4 | GroupedW4, device: int, stream: int) -> DeviceArray:
    """Return where the bias of a GEMM, [N], or those of groups, [num_groups, N], lie on the GPU."""
    array = on_device_array(bias, argument, device, stream)
    check_dtype(array, argument, packed.activation, WHY_THAT_TYPE)
    if isinstance(packed, PackedW4):
        check_vector(array, argument, packed.N)
        return array
    if tuple(array.shape) != (packed.num_groups, packed.N) or array.strides not in {None, (packed.N, 1)}:
        raise InvalidProblemError(
            f"{argument} must be contiguous [{packed.num_groups}, {packed.N}], got {list(array.shape)}"
        )
    if array.address % ALIGNMENT_BYTES:
        raise InvalidProblemError(f"{argument} must start at a multiple of {ALIGNMENT_BYTES} bytes")
    return array


def _batch_offsets(A: Any, packed: GroupedW4, device: int, stream: int) -> Any:
    """Offsets of groups that have equally many rows; made once."""
    shape = tuple(A.shape)
    if len(shape) != 3 or shape[0] != packed.num_groups:
        raise InvalidProblemError(
            f"A must be [{packed.num_groups}, M, {packed.K}] where offsets are not given, got {list(shape)}"
        )
    key = device, packed.num_groups, shape[1]
    result = _even_offsets.get(key)
    if result is None:
        runtime.refuse_capture(stream, "run this batch once before the capture, or give offsets")
        rows = numpy.arange(packed.num_groups + 1, dtype=numpy.int32) * shape[1]
        result = _even_offsets[key] = runtime.import_cupy().asarray(rows)
    return result


def weights_of(packed: Any, kind: type[PackedW4 | GroupedW4]) -> Weights:
    """Return packed weights of a GEMM or of groups, on a GPU, as a launch takes them; found once."""
    known = _weights.get(packed) if isinstance(packed, kind) else None
    if known is not None:
        return known
    if kind is GroupedW4:
        _check_groups(packed)
    else:
        check_packed(packed)
    if isinstance(packed.qweight, numpy.ndarray):
        raise InvalidProblemError("packed must be on a GPU, got weights in CPU memory: packed.to_gpu() moves them")
    extra = packed.scale_units if kind is GroupedW4 else packed.permutation
    parts = (packed.qweight, packed.scales, extra)
    arrays = [as_device_array(array, "packed", 0) for array in parts if array is not None]
    if len({array.device for array in arrays}) > 1:
        raise InvalidProblemError("packed must have all of its arrays on one GPU")
    if any(array.address % ALIGNMENT_BYTES for array in arrays):
        raise InvalidProblemError(f"packed must have arrays that start at multiples of {ALIGNMENT_BYTES} bytes")
    memory = tuple((array.address, math.prod(array.shape) * array.itemsize) for array in arrays)
    qweight, scales, *rest = (array.address for array in arrays)
    weights = _weights[packed] = Weights(qweight, scales, rest[0] if rest else 0, memory, arrays[0].device)
    return weights
