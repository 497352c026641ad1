"""A layer of experts with 4-bit weights as one call: a kernel that routes, two grouped GEMMs, and a weighted sum.

The first sends each token to its experts (route.cu); the second multiplies with gate and up, and combines them; the
third multiplies with down. Of few rows it also adds up the choices of each token, of more a fourth kernel does.
"""

import math
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy

from gemm_eval.device import CompiledKernel, Rows, compile_text, overlaps, runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError
from gemm_eval.kernels.call import launch_plan, matrix, new_output, on_device_array, output_rows
from gemm_eval.kernels.families import Choices, Fusion, GroupedOperands, GroupedSizes, Operands, ceil_div
from gemm_eval.kernels.families.grouped import GemvMmaGroupedFamily
from gemm_eval.kernels.gemm import Weights, check_biases, weights_of
from gemm_eval.kernels.layout import module_of
from gemm_eval.kernels.plan import Plan, choose_for, plan_on_device, spec_of_device
from gemm_eval.kernels.registry import COMMON, SOURCES
from gemm_eval.kernels.weights import GroupedW4
from gemm_eval.mapping import KernelConfig
from gemm_eval.words import as_integer

MAX_CHOICES = 32
"""Experts of a token at most: a warp has one in each lane."""

MAX_TOKENS = (1 << 24) - 1
"""Tokens of a layer at most: the bits above have the number of their rows."""

_ROUTE, _COUNT, _SUM = _ENTRIES = "gemm_eval_route", "gemm_eval_count_choices", "gemm_eval_sum_choices"
_THREADS = 256
_INTERLEAVED = 8  # columns of gate, then as many of up
_CTAS_PER_SM = 2
_FEW_CHOICES = 4096  # so many each CTA counts itself
_SUMMED_ROWS = 64
"""Rows up to which the second GEMM adds up the choices: of 128 rows on 128 experts that took 14 us longer on an H200
than a kernel of its own, as each sum keeps a CTA from its next tile (KERNELS.md)."""
_VECTOR_ELEMS = 8
_ALIGNMENT_BYTES = 256
_ELEM_BYTES, _INDEX_BYTES = 2, 4


def interleave_gate_up(gate: Any, up: Any) -> Any:
    """Return the columns of two matrices in turns of 8, as `w4a16_experts` takes gate and up: [..., N] -> [..., 2 N].

    For weights [K, N], integers and scales of them, and biases [N]; pack what comes out (`pack_w4`), and stack it.

    Raises:
        InvalidProblemError: shapes that differ, or N that is no multiple of 8.
    """
    if gate.shape != up.shape or gate.shape[-1] % _INTERLEAVED:
        raise InvalidProblemError(
            f"gate and up must be alike with a multiple of 8 columns, got {list(gate.shape)} and {list(up.shape)}"
        )
    xp, shape = module_of(gate), (*gate.shape[:-1], -1, _INTERLEAVED)
    return xp.stack([gate.reshape(shape), up.reshape(shape)], axis=-2).reshape(*gate.shape[:-1], -1)


def w4a16_experts(
    x: Any, topk_ids: Any, topk_weights: Any, gate_up: GroupedW4, down: GroupedW4, *, gate_up_bias: Any = None,
    down_bias: Any = None, out: Any = None, stream: Any = None, expected_rows: int | None = None,
    configs: tuple[KernelConfig | None, KernelConfig | None] = (None, None),
) -> Any:  # fmt: skip
    """Run the experts of a mixture on tokens: gate and up with SiLU, down, and a weighted sum for each token.

    ``out[t] = sum over j of w[t, j] * down[e](silu(gate[e](x[t])) * up[e](x[t]))`` with e = topk_ids[t, j] and
    w = topk_weights. Choices are added up in fp32 in the order of j, from products that were
    rounded to the type of x: the same operands and configs give the same bits every time. The GPU alone reads the
    choices, so that a CUDA graph may be replayed with others, on the stream of its capture, where the call has run once
    before.

    Args:
        x: [tokens, hidden], of the type that the weights were packed for.
        topk_ids: int32 [tokens, choices] on the GPU, at most `MAX_CHOICES`. What is no number of an expert is left out
            (an expert of another GPU); a token without any gives zeros.
        topk_weights: float32 [tokens, choices].
        gate_up: [experts], K = hidden, N = 2 inner, columns as of `interleave_gate_up`.
        down: [experts], K = inner, N = hidden.
        gate_up_bias, down_bias: [experts, N] of the type of x; None: none.
        out: [tokens, hidden] of the type of x, shares no memory with the operands; None: a new array.
        stream: as for `w4a16_gemm`.
        expected_rows: choices that are expected to name experts here, for the choice of kernels; None: all.
        configs: of both GEMMs; None: the cost model chooses.

    Raises:
        InvalidProblemError: operands of a wrong type, shape, GPU, order or alignment.
        InvalidOptionError: stream or expected_rows; or a capture before the first call.
        UnsupportedError: the GPU lacks what the kernels need (many rows of an expert: Hopper's wgmma).
        GemmEvalError: no GPU, driver, CuPy or NVRTC.
    """
    first, second = weights_of(gate_up, GroupedW4), weights_of(down, GroupedW4)
    device, hidden, inner = first.device, gate_up.K, down.K
    if device != runtime.current_device():
        with runtime.on_device(device):
            return w4a16_experts(
                x, topk_ids, topk_weights, gate_up, down, gate_up_bias=gate_up_bias, down_bias=down_bias, out=out,
                stream=stream, expected_rows=expected_rows, configs=configs,
            )  # fmt: skip
    same = (gate_up.num_groups, gate_up.activation, 2 * inner, hidden)
    if second.device != device or same != (down.num_groups, down.activation, gate_up.N, down.N):
        raise InvalidProblemError(f"gate_up and down must be of one layer on one GPU, got {gate_up} and {down}")
    handle = runtime.stream_handle(stream)
    tokens = matrix(x, "x", hidden, gate_up.activation, device, handle)
    ids, weights = (
        _choices(given, argument, dtype, tokens.num_rows, device, handle)
        for given, argument, dtype in ((topk_ids, "topk_ids", "int32"), (topk_weights, "topk_weights", "float32"))
    )
    if ids.shape != weights.shape:
        raise InvalidProblemError(f"topk_ids and topk_weights must be alike, got {ids.shape} and {weights.shape}")
    result = new_output(x, gate_up.activation, hidden, handle) if out is None else out
    c = output_rows(result, tokens.num_rows, hidden, gate_up.activation, device, handle)
    read = [(tokens.address, tokens.num_bytes), *first.memory, *second.memory]
    read += [(array.address, math.prod(array.shape) * array.itemsize) for array in (ids, weights)]
    if any(overlaps((c.address, c.num_bytes), memory) for memory in read):
        raise InvalidProblemError("out must not share memory with x, the choices or the weights")

    num_rows, num_experts = math.prod(ids.shape), gate_up.num_groups
    expected = num_rows if expected_rows is None else as_integer("expected_rows", expected_rows, 1, num_rows)
    plans: list[Plan[GroupedOperands]] = []
    limits = runtime.limits_of_device(device)
    for packed, given in zip((gate_up, down), configs, strict=True):
        of_gemm = GroupedSizes(num_rows, packed.K, packed.N, num_experts)
        types = packed.activation, packed.mode, packed.group_size
        config = given or choose_for(of_gemm, *types, spec_of_device(device), limits, expected)
        is_summed = num_rows <= _SUMMED_ROWS and config.family == GemvMmaGroupedFamily.name
        fusion = Fusion.GATED if not plans else Fusion.SUMMED if is_summed else Fusion.NONE
        plans.append(plan_on_device(of_gemm, *types, config, device, fusion=fusion))
    sum_counters = tokens.num_rows * ceil_div(hidden, plans[1].variant.config.cta_n) * is_summed
    num_counters = max(ceil_div(plan.launch.num_counters, 64) * 64 for plan in plans)
    launch = route_launch(tokens.num_rows, ids.shape[1], limits.num_sms)
    sizes = (
        num_rows * hidden * _ELEM_BYTES, num_rows * inner * _ELEM_BYTES, num_rows * hidden * _ELEM_BYTES,
        (num_experts + 1) * _INDEX_BYTES, num_rows * _INDEX_BYTES, num_rows * _INDEX_BYTES,
        launch[0] * num_experts * _INDEX_BYTES, max(plan.launch.workspace_bytes for plan in plans),
    )  # fmt: skip
    starts = list(accumulate((ceil_div(size, _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for size in sizes), initial=0))
    scratch = runtime.scratch_of(device, handle, starts[-1], num_counters + sum_counters)
    rows, gated, products, offsets, row_tokens, choice_rows, counts, sums = (
        scratch.workspace + start for start in starts[:-1]
    )
    _route(
        tokens, ids, num_experts, launch, (counts, rows, offsets, row_tokens, choice_rows, c.address), device, handle
    )
    counters = scratch.counters + num_counters * _INDEX_BYTES
    choices = Choices(row_tokens, choice_rows, weights.address, c.address, counters, ids.shape[1])
    calls = (
        (plans[0], first, gate_up, gate_up_bias, "gate_up_bias", rows, gated, None),
        (plans[1], second, down, down_bias, "down_bias", gated, products, choices if is_summed else None),
    )
    for plan, of_weights, packed, bias, argument, source, target, added in calls:
        _multiply(
            plan, of_weights, packed, bias, argument, source, target, offsets, sums, scratch.counters, added, handle
        )
    if not is_summed:
        vectors = hidden // _VECTOR_ELEMS
        grid = tokens.num_rows, ceil_div(vectors, _THREADS), 1
        arrays = map(numpy.uint64, (products, choice_rows, weights.address, c.address))
        _launch(_SUM, grid, arrays, (ids.shape[1], vectors), 0, device, handle, down.activation)
    return result


def route_launch(num_tokens: int, num_choices: int, num_sms: int) -> tuple[int, int, bool]:
    """Return how tokens go to experts: shares of them, parts of their rows, and whether a kernel counts before."""
    shares = min(num_tokens, num_sms * _CTAS_PER_SM)
    return shares, max(1, min(4, num_sms // shares)), num_tokens * num_choices > _FEW_CHOICES


@cache
def compile_route(entry: str, target: str, activation: DType = DType.FP16) -> CompiledKernel:
    """Compile a kernel of route.cu, which has three entries. Needs no GPU."""
    text = "\n".join(path.read_text("utf-8") for path in (SOURCES / COMMON, Path(__file__).with_name("route.cu")))
    macros = {"THREADS": _THREADS, "MAX_CHOICES": MAX_CHOICES, "ENTRY": _ENTRIES.index(entry), "MODE": 0, "GROUP": 0}
    return compile_text(text, entry, target, macros | {"ACT_BF16": int(activation is DType.BF16)})


def _route(
    tokens: Rows, ids: Any, num_experts: int, launch: tuple[int, int, bool], addresses: tuple[int, ...], device: int,
    stream: int,
) -> None:  # fmt: skip
    """Queue what copies tokens to the rows of their experts."""
    (shares, parts, is_counted), (counts, *written) = launch, addresses
    sizes = tokens.num_rows, ids.shape[1], num_experts
    smem_bytes = 2 * num_experts * _INDEX_BYTES
    vectors = tokens.num_columns // _VECTOR_ELEMS
    of_ids = numpy.uint64(ids.address), numpy.uint64(counts if is_counted else 0)
    of_tokens = numpy.uint64(tokens.address), numpy.int64(tokens.stride // _VECTOR_ELEMS)
    if is_counted:
        _launch(_COUNT, (shares, 1, 1), of_ids, sizes, smem_bytes, device, stream)
    pointers = *of_tokens, *of_ids, *map(numpy.uint64, written)
    _launch(_ROUTE, (shares, parts, 1), pointers, (*sizes, vectors, vectors), smem_bytes, device, stream)


def _launch(
    entry: str, grid: tuple[int, int, int], pointers: Iterable[Any], sizes: tuple[int, ...], smem_bytes: int,
    device: int, stream: int, activation: DType = DType.FP16,
) -> None:  # fmt: skip
    """Queue a kernel of route.cu."""
    target = "sm_{}{}".format(*runtime.limits_of_device(device).compute_capability)
    function = runtime.load_function(compile_route(entry, target, activation), device, smem_bytes, stream)
    arguments = *pointers, *map(numpy.int32, sizes)
    function(grid, (_THREADS, 1, 1), arguments, smem_bytes, runtime.StreamHandle(stream))


def _multiply(
    plan: Plan[GroupedOperands], weights: Weights, packed: GroupedW4, bias: Any, argument: str, rows: int, out: int,
    offsets: int, partial_sums: int, counters: int, choices: Choices | None, stream: int,
) -> None:  # fmt: skip
    """Queue one of the GEMMs; `rows` and `out` are addresses."""
    bias_address = 0 if bias is None else check_biases(bias, argument, packed, weights.device, stream).address
    dense = Operands(
        rows, packed.K, weights.qweight, weights.scales, bias_address, out, partial_sums, counters, 1.0,
        *packed.blocks_and_groups,
    )  # fmt: skip
    launch_plan(plan, GroupedOperands(dense, offsets, weights.extra, choices), weights.device, stream)


def _choices(given: Any, argument: str, dtype: str, num_tokens: int, device: int, stream: int) -> Any:
    """Return choices of tokens where they lie on the GPU: contiguous [tokens, choices]."""
    array = on_device_array(given, argument, device, stream)
    shape = tuple(array.shape)
    is_right = len(shape) == 2 and shape[0] == num_tokens and 1 <= shape[1] <= MAX_CHOICES
    if not is_right or array.dtype.split(".")[-1] != dtype or array.strides not in {None, (shape[1], 1)}:
        raise InvalidProblemError(
            f"{argument} must be contiguous {dtype} [{num_tokens}, 1 to {MAX_CHOICES}], got {array.dtype} {list(shape)}"
        )
    if num_tokens > MAX_TOKENS:
        raise InvalidProblemError(f"x must have at most {MAX_TOKENS:,} rows, got {num_tokens:,}")
    return array
