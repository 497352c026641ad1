"""Cost model 1 from Python's side: checks what is asked, calls the kernels, unpacks the costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import InvalidMappingError, UnsupportedError
from gemm_eval.frozen import FrozenDict
from gemm_eval.jit import read_only
from gemm_eval.mapping import (
    AttentionMapping,
    AttentionOrder,
    AttentionPartition,
    AttentionTile,
    LoopOrder,
    MulticoreMapping,
    Partition,
    Tile,
)
from gemm_eval.models.multicore.attention_kernels import ATTENTION_COST_DTYPE, AttentionSizes
from gemm_eval.models.multicore.cost_kernels import (
    COST_DTYPE,
    RULES,
    block_of,
    evaluate_range,
    find_broken_rule,
    sram_used_bytes,
)
from gemm_eval.models.multicore.group_kernels import evaluate_grouped
from gemm_eval.models.multicore.params import in_room, pack_params, params_in_room
from gemm_eval.models.multicore.terms import BREAKDOWN
from gemm_eval.units import bytes_per_us
from gemm_eval.words import shown
from gemm_eval.workload import LAYER_TERMS, AttentionProblem, GemmProblem, Layouts, MoeWork

FIRST = np.zeros(1, np.int64)
"""Which parameters, or groups, a lone problem has: [1]."""


class GroupSizes(NamedTuple):
    """Row counts of the groups that have any."""

    rows: npt.NDArray[np.int64]  # int64 [num_sizes], distinct, descending
    counts: npt.NDArray[np.int64]  # int64 [num_sizes], groups that have so many


def group_sizes(problem: GemmProblem) -> GroupSizes:
    """Return the row counts of a problem; of a batch those of G groups of M rows."""
    groups = problem.row_groups
    counts = {problem.M: problem.G} if groups is None else Counter(filter(None, groups))
    pairs = np.array(sorted(counts.items(), reverse=True), np.int64)
    return GroupSizes(*(read_only(np.ascontiguousarray(column)) for column in pairs.T))


def batch_sizes(problem: GemmProblem) -> tuple[int, int, int, int] | None:
    """Return (G, M, K, N) of the batch that a problem is, groups without rows left out; None where rows differ."""
    if problem.row_groups is None:
        return problem.sizes
    if not all(num_rows in (0, problem.M) for num_rows in problem.row_groups):
        return None
    return problem.row_groups.count(problem.M), problem.M, problem.K, problem.N


def kernel_sizes(problem: GemmProblem, *, as_groups: bool = False) -> tuple[Any, ...]:
    """Return a problem as kernels take it: sizes [1, 4], and `Layouts` where groups differ or `as_groups`."""
    sizes = None if as_groups else batch_sizes(problem)
    if sizes is not None:
        return (np.array([sizes]),)
    rows, counts = group_sizes(problem)
    return np.array([problem.sizes]), FIRST, read_only(np.array([0, len(rows)])), rows, counts


class SplitLayouts(NamedTuple):
    """Many problems, told apart by what kernels they are for.

    Attributes:
        batches: [num_batches], rows of those that are batches, also where groups without rows are left out.
    """

    batches: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]  # [num_batches, 4], their G, M, K, N
    grouped: npt.NDArray[np.int64]  # rows of the others, whose groups differ


def split_layouts(sizes: npt.NDArray[np.int64], layouts: Layouts) -> SplitLayouts:
    """Tell problems of these sizes, int64 [num, 4], apart."""
    num_sizes = np.append(np.diff(layouts.starts), 0)[layouts.of]  # row -1: none
    batches = np.flatnonzero(num_sizes <= 1)
    of_batches = sizes[batches]
    equal = num_sizes[batches] == 1
    first = layouts.starts[layouts.of[batches[equal]]]
    of_batches[equal, 0] = layouts.counts[first]
    of_batches[equal, 1] = layouts.rows[first]
    return SplitLayouts(batches, of_batches, np.flatnonzero(num_sizes > 1))


MODEL_VERSION = "multicore-4"
"""Changes whenever any answer of the model may change; MODEL.md's heading carries the same number."""


class MulticoreCost(SimpleNamespace):
    """Cost of one mapping: the fields of its record, of `COST_DTYPE` or `ATTENTION_COST_DTYPE`, and what they make up.

    Bytes are totals of the chip, times are those of the slowest core; MODEL.md defines each. `energy_pj` is None when
    the arch gives no energy figures; `bound` is an index into `BOUNDS`; `breakdown` has the names of `GEMMResult`.
    Counts of the search, `num_candidates` and others, are 0 for a mapping that was given.
    """

    mapping: Any
    breakdown: dict[str, float]


_COST_NAMES, _ATTENTION_NAMES = (dtype.names or () for dtype in (COST_DTYPE, ATTENTION_COST_DTYPE))
_NUMBERS = _COST_NAMES[:8]  # of a mapping
_TERMS = (*BREAKDOWN, "correction_us")
_ORDERS = tuple(LoopOrder)


def unpack_cost(record: np.void) -> MulticoreCost:
    """Turn one record of `COST_DTYPE` into Python values."""
    values = record.item()
    row = dict(zip(_COST_NAMES, values, strict=True))
    if math.isnan(row["energy_pj"]):
        row["energy_pj"] = None
    mapping = MulticoreMapping(Partition(*values[:4]), Tile(*values[4:7]), _ORDERS[values[7]])
    return MulticoreCost(mapping=mapping, breakdown={name: row[name] for name in _TERMS}, **row)


def evaluate_mapping(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], mapping: MulticoreMapping
) -> npt.NDArray[np.void]:
    """Cost of a given mapping, an array [1] of COST_DTYPE; InvalidMappingError: it breaks a rule, named by `.rule`."""
    mapping = _check_shape(mapping)
    params = params_in_room(params, problem)
    _check_rules(arch, problem, params, mapping)
    return cost_of_mapping(params, problem, mapping)


def cost_of_mapping(
    params: npt.NDArray[np.void], problem: GemmProblem, mapping: MulticoreMapping, *, as_groups: bool = False
) -> npt.NDArray[np.void]:
    """Return the cost [1] of a mapping, unchecked; `as_groups`: by the kernels for groups that differ."""
    stored, out = np.zeros((2, 1), COST_DTYPE)
    for name, number in zip(_NUMBERS, (*mapping.partition, *mapping.tile, mapping.loop_order), strict=True):
        stored[name] = number
    sizes = kernel_sizes(problem, as_groups=as_groups)
    evaluate: Callable[..., None] = evaluate_range if len(sizes) == 1 else evaluate_grouped
    evaluate(params, FIRST, *sizes, 0, 1, False, stored, out.reshape(1, 1))
    return out


def _check_shape(mapping: Any) -> MulticoreMapping:
    """Take plain tuples and names too, and make sure that every number is a positive int."""
    try:
        numbers_p, numbers_t, name = mapping
        partition, tile = Partition(*numbers_p), Tile(*numbers_t)
        if isinstance(name, bool | float):
            raise TypeError
        order = LoopOrder[name.upper()] if isinstance(name, str) else LoopOrder(name)
    except (TypeError, ValueError, KeyError, AttributeError):
        raise InvalidMappingError(
            "a mapping is (partition, tile, loop_order): ((P_G, P_M, P_N, P_K), (tile_m, tile_n, tile_k), "
            f"one of {', '.join(LoopOrder.__members__)}), got {shown(mapping)}",
            rule="form",
        ) from None
    for field, value in (partition._asdict() | tile._asdict()).items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value < 1 << 62:
            raise InvalidMappingError(f"{field} must be an integer >= 1, got {shown(value)}", rule="form")
    return MulticoreMapping(Partition(*map(int, partition)), Tile(*map(int, tile)), order)


def _check_rules(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], mapping: MulticoreMapping
) -> None:
    partition, tile = mapping.partition, mapping.tile
    broken = find_broken_rule(params, *problem.sizes, *partition, *tile)
    if broken < 0:
        return
    rule = RULES[broken]
    if rule == "num_cores":
        used = math.prod(partition)
        text = f"P_G*P_M*P_N*P_K must be <= num_cores = {arch.num_cores}, got {used} ({arch.name})"
    elif rule == "reduction":
        text = (
            f"P_K must be 1, got {partition.P_K}: {arch.name} cannot add partial results (reduction: {arch.reduction})"
        )
    elif rule == "sram":
        demand, room = sram_used_bytes(params[0], *tile), int(params["sram_usable_bytes"][0])
        beside = " beside resident operands" if arch.resident else ""
        text = (
            f"the tiles need {demand:,} bytes of SRAM, {arch.name} has {room:,} usable{beside}: "
            f"{demand - room:,} too many"
        )
    else:
        name = rule.rsplit("_", 1)[0]
        size, dimension = getattr(tile, name), name[-1]
        block_size = getattr(block_of(params[0], *problem.sizes, *partition), dimension)
        if rule.endswith("_block"):
            text = f"{name} must be <= {block_size}, a core's block, got {size}"
        else:
            unit = {"m": arch.cube_m, "n": arch.cube_n, "k": int(params["unit_k"][0])}[dimension]
            text = f"{name} must be a multiple of {unit} or the whole block of {block_size}, got {size}"
    raise InvalidMappingError(text, rule=rule)


def attention_sizes(problem: AttentionProblem) -> AttentionSizes:
    """Return a problem as kernels see it: without keys that no query attends to."""
    keys = problem.num_keys
    return AttentionSizes(
        units=problem.batch * problem.num_kv_heads, rows=problem.q_len * problem.group, keys=keys, group=problem.group,
        ahead=keys - problem.q_len, window=keys if problem.window is None else problem.window,
        is_masked=int(problem.causal and problem.q_len > 1), head_dim=problem.head_dim, value_dim=problem.value_dim,
        kv_width=problem.head_dim + (0 if problem.is_latent else problem.value_dim),
    )  # fmt: skip


def attention_params(arch: MulticoreSpec, problem: AttentionProblem) -> npt.NDArray[np.void]:
    """Return parameters [1] of PARAMS_DTYPE: K and V are what weights are to a GEMM, and what is resident has its room.

    Raises:
        UnsupportedError: the chip cannot multiply the type of queries, has no vector unit for the softmax, or nothing
            that widens narrow keys and values.
    """
    of_type = arch.for_dtype(problem.dtype)
    if of_type.vector_ops_per_cycle is None:
        raise UnsupportedError(
            f"{arch.name} has no vector unit for the softmax of fused attention: set vector_ops_per_cycle, or take "
            "fused=False"
        )
    gemm = GemmProblem(
        1, 1, problem.head_dim, problem.num_keys, problem.dtype, problem.kv_type, problem.output_dtype
    )  # fmt: skip
    params = pack_params(arch, gemm.types)
    units, width = problem.batch * problem.num_kv_heads, problem.head_dim
    rows = units * problem.q_len * problem.group
    kv_width = width + (0 if problem.is_latent else problem.value_dim)
    elems = {"a": rows * width, "b": units * problem.kv_len * kv_width, "c": rows * problem.value_dim}
    return in_room(params, elems)


def unpack_attention_cost(record: np.void) -> MulticoreCost:
    """Turn one record of `ATTENTION_COST_DTYPE` into Python values."""
    row = dict(zip(_ATTENTION_NAMES, record.item(), strict=True))
    mapping = AttentionMapping(
        AttentionPartition(row["P_U"], row["P_Q"], row["P_KV"]), AttentionTile(row["tile_q"], row["tile_kv"]),
        AttentionOrder(row["loop_order"]), bool(row["is_folded"]),
    )  # fmt: skip
    return MulticoreCost(mapping=mapping, breakdown={name: row[name] for name in BREAKDOWN}, **row)


_SCORE_BYTES = 4.0  # of a router's score, fp32
_PICK_BYTES = 8.0  # of an assignment: the expert's number and its weight


def layer_terms(arch: MulticoreSpec, work: MoeWork) -> FrozenDict[str, npt.NDArray[np.float64]]:
    """Return the terms of a layer of experts besides its GEMMs, in us, in the shape of the sizes of `work`.

    Each is a program of its own, which starts in `launch_us` and moves what it reads and writes at the DRAM bandwidth
    that large transfers reach; the arithmetic hides behind that. A rank without an assignment only routes.
    """
    tokens, hidden, inter = (np.asarray(size, float) for size in (work.num_tokens, work.hidden, work.inter))
    rows, experts = np.asarray(work.local_rows, float), np.asarray(work.num_experts, float)
    is_busy, width, wide, narrow = rows > 0, rows * inter, work.wide_bytes, work.input_bytes

    def move(num_bytes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        time: npt.NDArray[np.float64] = num_bytes / bytes_per_us(arch.dram_gb_per_s * arch.dram_efficiency_frac)
        return time + arch.launch_us

    quantized = np.zeros_like(rows)
    if work.is_quantized:
        quantized = move(work.local_tokens * hidden * (wide + narrow)) + move(width * (wide + narrow))
    times = {
        "routing_us": move(tokens * (experts * _SCORE_BYTES + np.asarray(work.topk, float) * _PICK_BYTES)),
        "permute_us": is_busy * move((work.local_tokens + rows) * hidden * narrow),
        "quantize_us": is_busy * quantized,
        "activation_us": is_busy * move((2 + work.gated) * width * wide),
        "finalize_us": is_busy * move((rows + work.local_tokens) * hidden * wide),
    }
    return FrozenDict((name, np.broadcast_to(times[name], np.broadcast(tokens, rows).shape)) for name in LAYER_TERMS)
