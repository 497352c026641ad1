"""The public call of the grouped W4A16 kernels: experts of a mixture, or a batch, in one launch."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy

from gemm_eval.arch import DeviceLimits, GpuSpec
from gemm_eval.checks import as_integer
from gemm_eval.device import as_device_array, check_dtype, encode_tensor_map, overlaps, runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidMappingError, InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.call import (
    ALIGNMENT_BYTES,
    WHY_THAT_TYPE,
    finite,
    launch_plan,
    matrix,
    new_output,
    on_device_array,
    output_rows,
    take_scratch,
)
from gemm_eval.kernels.choice import choose_grouped, spec_of_device
from gemm_eval.kernels.families import (
    GroupedFamily,
    GroupedOperands,
    GroupedSizes,
    Operands,
    WeightMode,
    family_of,
)
from gemm_eval.kernels.families.grouped import MAX_GROUPS
from gemm_eval.kernels.grouped_weights import GroupedW4
from gemm_eval.kernels.plan import LARGEST_SIZE, Plan, compile_fitting, spec_and_limits
from gemm_eval.kernels.registry import check_kernel, make_variant
from gemm_eval.mapping import KernelConfig
from gemm_eval.words import shown

__all__ = ["grouped_workspace_bytes", "w4a16_grouped_gemm"]

_PLANS = 4096
_ARGUMENTS_OF_PLAN = 256


class _Weights(NamedTuple):
    """Stacked weights as a launch takes them: addresses, memory, GPU."""

    qweight: int
    scales: int
    factors: int
    memory: tuple[tuple[int, int], ...]
    device: int


_weights: WeakKeyDictionary[GroupedW4, _Weights] = WeakKeyDictionary()
_even_offsets: dict[tuple[int, int, int], Any] = {}


def w4a16_grouped_gemm(
    A: Any,
    packed: GroupedW4,
    offsets: Any = None,
    bias: Any = None,
    alpha: float = 1.0,
    out: Any = None,
    config: KernelConfig | str = "auto",
    stream: Any = None,
    workspace: Any = None,
    *,
    expected_rows: int | None = None,
) -> Any:
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
        workspace: uint8 array of at least `grouped_workspace_bytes`; None: memory that the library keeps for each
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
    weights = _weights_of(packed)
    if weights.device != runtime.current_device():
        with runtime.on_device(weights.device):
            return w4a16_grouped_gemm(
                A, packed, offsets, bias, alpha, out, config, stream, workspace, expected_rows=expected_rows
            )
    _check_config(config)
    handle = runtime.stream_handle(stream)
    if 0 in tuple(A.shape)[:-1]:  # no rows: nothing to do
        return new_output(A, packed.activation, packed.N, handle) if out is None else out
    a = matrix(A, "A", packed.K, packed.activation, weights.device, handle)
    sizes = GroupedSizes(a.num_rows, packed.K, packed.N, packed.num_groups)
    types = packed.activation, packed.mode, packed.group_size
    is_batch = offsets is None
    expected = _expected_rows(expected_rows, sizes)
    first_rows = _batch_offsets(A, packed, weights.device, handle) if is_batch else offsets
    of_groups = on_device_array(first_rows, "offsets", weights.device, handle)
    _check_offsets(of_groups, sizes.num_groups)
    chosen = config if isinstance(config, KernelConfig) else None
    plan = _plan_on_device(sizes, *types, chosen, expected, is_batch, weights.device)
    result = new_output(A, packed.activation, packed.N, handle) if out is None else out
    c = output_rows(result, sizes.M, packed.N, packed.activation, weights.device, handle)
    inputs = [(a.address, a.num_bytes), (of_groups.address, 4 * (sizes.num_groups + 1)), *weights.memory]
    bias_address = 0
    if bias is not None:
        vectors = on_device_array(bias, "bias", weights.device, handle)
        check_dtype(vectors, "bias", packed.activation, WHY_THAT_TYPE)
        _check_bias(vectors, sizes)
        bias_address = vectors.address
        inputs.append((bias_address, sizes.num_groups * packed.N * vectors.itemsize))
    written = c.address, c.num_bytes
    if any(overlaps(written, memory) for memory in inputs):
        raise InvalidProblemError("out must not share memory with A, the weights, offsets or bias")
    scratch = take_scratch(plan, 0, workspace, weights.device, handle, [written, *inputs])
    dense = Operands(
        a.address, a.stride, weights.qweight, weights.scales, bias_address, c.address,
        scratch.partial_sums, scratch.counters, finite(alpha), *packed.blocks_and_groups,
    )  # fmt: skip
    launch_plan(plan, GroupedOperands(dense, of_groups.address, weights.factors), weights.device, handle)
    return result


def grouped_workspace_bytes(
    rows: int,
    packed: GroupedW4,
    config: KernelConfig | str = "auto",
    arch: GpuSpec | str | None = None,
    *,
    expected_rows: int | None = None,
) -> int:
    """Return the size of `workspace` that `w4a16_grouped_gemm` needs, in bytes. Compiles the kernel, runs nothing.

    Args:
        rows: of A.
        packed: the weights, wherever they lie.
        config, expected_rows: as for `w4a16_grouped_gemm`.
        arch: a GPU's spec, or its name; None: CuPy's current GPU.

    Raises:
        InvalidInputError, UnsupportedError, GemmEvalError: as `w4a16_grouped_gemm`.
    """
    _check_packed(packed)
    _check_config(config)
    sizes = GroupedSizes(as_integer("rows", rows, 1, LARGEST_SIZE), packed.K, packed.N, packed.num_groups)
    types, expected = (packed.activation, packed.mode, packed.group_size), _expected_rows(expected_rows, sizes)
    spec, limits = spec_and_limits(arch)
    if not isinstance(config, KernelConfig):
        config = choose_grouped(sizes, *types, expected, False, spec, limits)
    return make_grouped_plan(sizes, *types, config, limits).workspace_bytes


def make_grouped_plan(
    sizes: GroupedSizes,
    activation: DType,
    mode: WeightMode,
    group_size: int,
    config: KernelConfig,
    limits: DeviceLimits,
) -> Plan[GroupedOperands]:
    """Check and compile a grouped kernel. Needs no GPU.

    Raises:
        InvalidInputError: a config that cannot be, or sizes that kernels do not take.
        UnsupportedError: the GPU lacks what the kernel needs.
        GemmEvalError: CuPy or NVRTC is missing.
    """
    variant = make_variant(config, activation, mode, group_size)
    family = family_of(config)
    if not isinstance(family, GroupedFamily):
        raise InvalidMappingError(f"{family.name} has kernels of one GEMM, which w4a16_gemm runs", rule="family")
    check_kernel(variant, sizes.of_all, limits)
    compiled, ctas_per_sm = compile_fitting(variant, limits)
    launch = family.launch_groups(variant, sizes, limits.num_sms, ctas_per_sm)

    @lru_cache(maxsize=_ARGUMENTS_OF_PLAN)
    def arguments(operands: GroupedOperands) -> tuple[Any, ...]:
        return family.arguments_of_groups(variant, sizes, launch, operands, encode_tensor_map)

    return Plan(variant, launch, compiled, arguments)


@lru_cache(maxsize=_PLANS)
def _plan_on_device(
    sizes: GroupedSizes,
    activation: DType,
    mode: WeightMode,
    group_size: int,
    config: KernelConfig | None,
    expected_rows: int,
    is_batch: bool,
    device: int,
) -> Plan[GroupedOperands]:
    limits = runtime.limits_of_device(device)
    if config is None:
        spec = spec_of_device(device)
        config = choose_grouped(sizes, activation, mode, group_size, expected_rows, is_batch, spec, limits)
    return make_grouped_plan(sizes, activation, mode, group_size, config, limits)


def _check_config(config: object) -> None:
    if not isinstance(config, KernelConfig) and not (isinstance(config, str) and config == "auto"):
        raise InvalidOptionError(f"config must be a KernelConfig or 'auto', got {shown(config)}")


def _check_packed(packed: object) -> None:
    if not isinstance(packed, GroupedW4):
        raise InvalidProblemError(f"packed must be a GroupedW4, as stack_w4 makes it, got {shown(packed)}")
    if packed.num_groups > MAX_GROUPS:
        raise InvalidProblemError(f"packed must have at most {MAX_GROUPS:,} groups, got {packed.num_groups:,}")


def _expected_rows(given: int | None, sizes: GroupedSizes) -> int:
    return sizes.M if given is None else as_integer("expected_rows", given, 1, sizes.M)


def _check_offsets(offsets: Any, num_groups: int) -> None:
    if offsets.dtype.split(".")[-1] != "int32" or tuple(offsets.shape) != (num_groups + 1,):
        raise InvalidProblemError(
            f"offsets must be int32 [{num_groups + 1}], the first row of each group and the end of the last, got "
            f"{offsets.dtype} {list(offsets.shape)}"
        )
    if offsets.strides not in {None, (1,)}:
        raise InvalidProblemError("offsets must be contiguous")


def _check_bias(bias: Any, sizes: GroupedSizes) -> None:
    if tuple(bias.shape) != (sizes.num_groups, sizes.N) or bias.strides not in {None, (sizes.N, 1)}:
        raise InvalidProblemError(f"bias must be contiguous [{sizes.num_groups}, {sizes.N}], got {list(bias.shape)}")
    if bias.address % ALIGNMENT_BYTES:
        raise InvalidProblemError(f"bias must start at a multiple of {ALIGNMENT_BYTES} bytes")


def _batch_offsets(A: Any, packed: GroupedW4, device: int, stream: int) -> Any:
    """Offsets of groups that have equally many rows; made once."""
    shape = tuple(A.shape)
    if len(shape) != 3 or shape[0] != packed.num_groups:
        raise InvalidProblemError(
            f"A must be [{packed.num_groups}, M, {packed.K}] where offsets are not given, got {list(shape)}"
        )
    key = device, packed.num_groups, shape[1]
    found = _even_offsets.get(key)
    if found is None:
        runtime.refuse_capture(stream, "run this batch once before the capture, or give offsets")
        rows = numpy.arange(packed.num_groups + 1, dtype=numpy.int32) * shape[1]
        found = _even_offsets[key] = runtime.import_cupy().asarray(rows)
    return found


def _weights_of(packed: GroupedW4) -> _Weights:
    found = _weights.get(packed) if isinstance(packed, GroupedW4) else None
    if found is not None:
        return found
    _check_packed(packed)
    if isinstance(packed.qweight, numpy.ndarray):
        raise InvalidProblemError("packed must be on a GPU, got weights in CPU memory: packed.to_gpu() moves them")
    arrays = [as_device_array(array, "packed", 0) for array in (packed.qweight, packed.scales, packed.scale_units)]
    if len({array.device for array in arrays}) > 1:
        raise InvalidProblemError("packed must have all of its arrays on one GPU")
    if any(array.address % ALIGNMENT_BYTES for array in arrays):
        raise InvalidProblemError(f"packed must have arrays that start at multiples of {ALIGNMENT_BYTES} bytes")
    memory = tuple((array.address, math.prod(array.shape) * array.itemsize) for array in arrays)
    qweight, scales, factors = (array.address for array in arrays)
    found = _weights[packed] = _Weights(qweight, scales, factors, memory, arrays[0].device)
    return found
