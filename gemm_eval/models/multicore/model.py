"""Cost model 1 from Python's side: packs archs and types, checks what is asked, calls the kernels, unpacks the costs.

Archs are data to the kernels, never constants: a sweep over ten thousand chips compiles nothing anew.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.dtypes import HALF_BITS_PER_BYTE, DType
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
from gemm_eval.models.multicore import cost_kernels as costs
from gemm_eval.models.multicore.attention_kernels import ATTENTION_COST_DTYPE, AttentionSizes
from gemm_eval.models.multicore.group_kernels import evaluate_grouped
from gemm_eval.models.multicore.terms import BREAKDOWN
from gemm_eval.units import bytes_per_us, cycles_per_us, pj_per_us
from gemm_eval.words import shown
from gemm_eval.workload import LAYER_TERMS, AttentionProblem, GemmProblem, GemmTypes, Layouts, MoeWork

_Sizes = npt.NDArray[np.object_]

_PACKINGS = (None, "private", "shared")

OTHER_SOFTMAX_OPS_PER_SCORE = 5
"""Vector operations for a score besides the exponential: scale, maximum, subtract, sum, convert to the input type."""

REDUCTIONS = ("none", "dram", "noc")
"""Codes of the field `reduction`: an index into this tuple, the same that the kernels compare with."""

_INTS = (
    "num_cores", "cube_m", "cube_k", "cube_n", "unit_k", "fill_drain_cycles",
    "sram_usable_bytes", "input_buffers", "output_buffers", "a_buffers", "b_buffers", "c_buffers", "lane_num",
    "align_bytes", "is_fair", "is_multicast", "has_noc", "reduction",
    "is_quantized", "has_dequant_copy", "vector_is_concurrent", "is_pipeline",
    "a_half_bits", "b_half_bits", "c_half_bits", "acc_half_bits", "group_half_bits", "group_size", "has_energy",
    "spill_half_bits", "has_shared", "has_resident", "a_is_resident", "b_is_resident", "c_is_resident",
    "a_packing", "b_packing",
)  # fmt: skip
_FLOATS = (
    "steps_per_cycle", "cycles_per_us", "vector_ops_per_cycle", "dequant_ops_per_elem",
    "dram_bytes_per_us", "dram_core_limit_bytes_per_us", "noc_bytes_per_us",
    "overlap_frac", "launch_us",
    "mac_pj", "sram_pj_per_byte", "dram_pj_per_byte", "noc_pj_per_byte", "static_pj_per_us",
    "weight_load_cycles", "write_bytes_per_us", "a_dram", "b_dram", "c_dram", "shared_bytes", "shared_bytes_per_us",
    "launch_floor_us", "feed_us_per_step", "resident_max_frac",
    "pack_bytes_per_us", "pack_near_bytes", "sync_us", "task_us", "softmax_ops_per_score",
)  # fmt: skip

_AS_IN_SPEC = (
    "num_cores", "cube_m", "cube_n", "fill_drain_cycles", "sram_usable_bytes", "input_buffers", "output_buffers",
    "lane_num", "align_bytes", "vector_is_concurrent", "overlap_frac", "weight_load_cycles",
    "resident_max_frac", "sync_us", "task_us", "launch_floor_us",
)  # fmt: skip

PARAMS_DTYPE = np.dtype([(name, np.int64) for name in _INTS] + [(name, np.float64) for name in _FLOATS])
"""One record per (arch, data types). Absent limits are inf, absent units 1.0 with the flag that they are not read.

Sizes of elements are in half bits, since a block of floats may share an exponent: bfp8 has 8.5 bits. `a_dram`, `b_dram`
and `c_dram` are 0.0 for operands that stay on the chip, else 1.0. `a_packing` and `b_packing` are 0 where an operand is
not packed, 1 private, 2 shared.
"""


def pack_params(arch: MulticoreSpec, types: GemmTypes) -> npt.NDArray[np.void]:
    """Return a read-only array [1] of `PARAMS_DTYPE`; UnsupportedError: the chip cannot compute in these types."""
    dtype = types.a.dtype
    arch = arch.for_dtype(dtype)
    if dtype not in arch.cube_steps_per_cycle:
        known = ", ".join(arch.cube_steps_per_cycle)
        raise UnsupportedError(
            f"{arch.name} cannot multiply {dtype} (its matrix unit takes {known}): cube_steps_per_cycle"
        )
    if types.is_block_scaled:
        raise UnsupportedError(
            f"{arch.name} takes no block-scaled {dtype} inputs: the model of multi-core chips has no scales of A"
        )
    if types.b.scale is not None and types.b.scale.group_n > 1:
        raise UnsupportedError(
            f"{arch.name} takes no block-scaled {types.b.dtype} weights with group_n {types.b.scale.group_n}: each "
            "column has scales of its own in the model of multi-core chips"
        )
    if types.is_weight_quantized and arch.dequant == "none":
        raise UnsupportedError(
            f"{arch.name} has no way to turn {types.b.dtype} weights into {dtype} (dequant: none); "
            f"set dequant to vector or inline, or use {dtype} weights"
        )
    cube_k = arch.cube_k_of(dtype)
    group_size = types.group_size or 0
    has_noc = arch.noc_gb_per_s is not None
    has_energy = (
        dtype in arch.mac_pj
        and arch.sram_pj_per_byte is not None
        and arch.dram_pj_per_byte is not None
        and (arch.noc_pj_per_byte is not None or not has_noc)
    )
    limit, write, reads = arch.dram_core_limit_gb_per_s, arch.dram_write_gb_per_s, _read_bytes_per_us(arch)
    values: dict[str, float] = {
        **{name: getattr(arch, name) for name in _AS_IN_SPEC},
        "cube_k": cube_k, "unit_k": math.lcm(cube_k, group_size) if group_size else cube_k,
        "a_buffers": arch.tile_buffers.get("A", arch.input_buffers),
        "b_buffers": arch.tile_buffers.get("B", arch.input_buffers),
        "c_buffers": arch.tile_buffers.get("C", arch.output_buffers), "is_fair": arch.dram_sharing == "fair",
        "is_multicast": arch.load_sharing == "multicast", "has_noc": has_noc,
        "reduction": REDUCTIONS.index(arch.reduction), "is_quantized": types.is_weight_quantized,
        "has_dequant_copy": types.is_weight_quantized and arch.dequant == "vector",
        "is_pipeline": arch.timing == "pipeline", "a_half_bits": dtype.half_bits,
        "b_half_bits": types.b.dtype.half_bits, "c_half_bits": types.c.half_bits, "acc_half_bits": types.acc.half_bits,
        "group_half_bits": 2 * types.group_bits, "group_size": group_size, "has_energy": has_energy,
        "steps_per_cycle": arch.cube_steps_per_cycle[dtype], "cycles_per_us": _cycles_per_us(arch, dtype),
        "vector_ops_per_cycle": arch.vector_ops_per_cycle or 1.0,
        "dequant_ops_per_elem": arch.dequant_ops_per_elem or 1.0, "dram_bytes_per_us": reads,
        "dram_core_limit_bytes_per_us": math.inf if limit is None else bytes_per_us(limit),
        "noc_bytes_per_us": math.inf if arch.noc_gb_per_s is None else bytes_per_us(arch.noc_gb_per_s),
        "launch_us": arch.launch_us, "mac_pj": arch.mac_pj.get(dtype, 0.0),
        "sram_pj_per_byte": arch.sram_pj_per_byte or 0.0, "dram_pj_per_byte": arch.dram_pj_per_byte or 0.0,
        "noc_pj_per_byte": arch.noc_pj_per_byte or 0.0, "static_pj_per_us": pj_per_us(arch.static_w),
        "spill_half_bits": arch.partial_dtype.get(dtype, types.acc).half_bits,
        "has_shared": arch.shared_bytes is not None, "has_resident": bool(arch.resident),
        **{f"{name.lower()}_is_resident": name in arch.resident for name in "ABC"},
        "write_bytes_per_us": reads if write is None else bytes_per_us(write) * arch.dram_efficiency_frac,
        **{f"{name.lower()}_dram": float(name not in arch.resident) for name in "ABC"},
        "shared_bytes": float(arch.shared_bytes or 0),
        "shared_bytes_per_us": math.inf if arch.shared_gb_per_s is None else bytes_per_us(arch.shared_gb_per_s),
        **{f"{name.lower()}_packing": _PACKINGS.index(arch.packs.get(name)) for name in ("A", "B")},
        "pack_bytes_per_us": math.inf if arch.pack_gb_per_s is None else bytes_per_us(arch.pack_gb_per_s),
        "pack_near_bytes": math.inf if arch.pack_near_bytes is None else float(arch.pack_near_bytes),
        "softmax_ops_per_score": arch.exp_ops_per_elem + OTHER_SOFTMAX_OPS_PER_SCORE,
        "feed_us_per_step": _feed_us_per_step(arch, types),
    }  # fmt: skip
    params = np.array([tuple(values[name] for name in PARAMS_DTYPE.names or ())], dtype=PARAMS_DTYPE)
    params.setflags(write=False)
    return params


def with_room(
    params: npt.NDArray[np.void], type_of: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], layouts: Layouts
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
    """Return parameters, and which of them each problem has, in which resident operands take their part of the SRAM.

    Args:
        params: [num_types] of PARAMS_DTYPE.
        type_of: [num_problems], index into `params`.
        sizes: [num_problems, 4] of G, M, K, N.
    """
    if not params["has_resident"].any():
        return params, type_of
    G, M, K, N = sizes.T.astype(object)
    rows = G * M
    for place in np.flatnonzero(layouts.is_grouped(len(sizes))):
        groups = layouts.row_groups(int(place), 0) or ()
        rows[place], G[place] = sum(groups), len(groups)
    return _in_room(params[type_of], rows, G, K, N), np.arange(len(sizes))


def params_in_room(params: npt.NDArray[np.void], problem: GemmProblem) -> npt.NDArray[np.void]:
    """Return the parameters [1] of one problem, in which resident operands take their part of the SRAM."""
    if not params["has_resident"][0]:
        return params
    groups = problem.row_groups
    rows, G = problem.G * problem.M, problem.G
    if groups is not None:  # one without rows takes no part in anything
        rows, G = sum(groups), sum(map(bool, groups))
    elems = {"a": rows * problem.K, "b": G * problem.K * problem.N, "c": rows * problem.N}
    return in_room(params, elems)


def in_room(params: npt.NDArray[np.void], elems: Mapping[str, int]) -> npt.NDArray[np.void]:
    """Return parameters [1] in which those of A, B and C that are resident, of so many elements, take their room."""
    if not params["has_resident"][0]:
        return params
    # as `_in_room`, which takes ten times as long for one problem
    p = dict(zip(params.dtype.names or (), params[0].item(), strict=True))
    half_bits = sum(of_all * p[f"{name}_half_bits"] * p[f"{name}_is_resident"] for name, of_all in elems.items())
    taken = -(-half_bits // (HALF_BITS_PER_BYTE * p["num_cores"]))
    if taken <= math.floor(p["sram_usable_bytes"] * p["resident_max_frac"]):
        p["sram_usable_bytes"] -= taken
    else:
        for name in elems:
            p[f"{name}_is_resident"] = 0
            p[f"{name}_dram"] = 1.0
    p["has_resident"] = 0  # they have their room now
    return read_only(np.array([tuple(p.values())], PARAMS_DTYPE))


def _in_room(params: npt.NDArray[np.void], rows: _Sizes, groups: _Sizes, K: _Sizes, N: _Sizes) -> npt.NDArray[np.void]:
    """Take the resident operands of problems [num], whose sizes are Python ints of any size, from their SRAM."""
    elems = {"a": rows * K, "b": groups * K * N, "c": rows * N}
    half_bits = sum(
        of_all * params[f"{name}_half_bits"].astype(object) * params[f"{name}_is_resident"]
        for name, of_all in elems.items()
    )
    taken = -(-half_bits // (HALF_BITS_PER_BYTE * params["num_cores"]))
    fits = taken <= np.floor(params["sram_usable_bytes"] * params["resident_max_frac"])
    params["sram_usable_bytes"] -= np.where(fits, taken, 0).astype(np.int64)
    for name in "abc":
        params[f"{name}_is_resident"] &= fits.astype(np.int64)
        params[f"{name}_dram"] = 1.0 - params[f"{name}_is_resident"]
    params["has_resident"] = 0  # they have their room now
    return read_only(params)


def _read_bytes_per_us(arch: MulticoreSpec) -> float:
    """Return the rate at which all cores together read from DRAM, in bytes/us; see MODEL.md, "DRAM, network"."""
    of_dram = bytes_per_us(arch.dram_gb_per_s) * arch.dram_efficiency_frac
    if arch.multicast_readers is None or arch.dram_core_limit_gb_per_s is None:
        return of_dram
    return min(of_dram, arch.multicast_readers * bytes_per_us(arch.dram_core_limit_gb_per_s))


def _feed_us_per_step(arch: MulticoreSpec, types: GemmTypes) -> float:
    """Time in us in which the operands of a step get into the matrix unit; 0.0 where nothing is known of it."""
    dtype = types.a.dtype
    if arch.feed_bytes_per_cycle is None:
        return 0.0
    cube_k = arch.cube_k_of(dtype)
    b = types.b.dtype if arch.dequant == "inline" else dtype  # inline: narrow weights widen inside the unit
    half_bits = cube_k * (arch.cube_m * dtype.half_bits + arch.cube_n * b.half_bits)
    return half_bits / HALF_BITS_PER_BYTE / arch.feed_bytes_per_cycle / _cycles_per_us(arch, dtype)


def _cycles_per_us(arch: MulticoreSpec, dtype: DType) -> float:
    return cycles_per_us(arch.frequency_ghz * arch.load_clock_frac.get(dtype, 1.0))


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


_COST_NAMES, _ATTENTION_NAMES = (dtype.names or () for dtype in (costs.COST_DTYPE, ATTENTION_COST_DTYPE))
_NUMBERS = _COST_NAMES[:8]  # of a mapping
_TERMS = (*BREAKDOWN, "correction_us")
_terms_of = operator.itemgetter(*map(_COST_NAMES.index, _TERMS))
_ORDERS = tuple(LoopOrder)


def unpack_cost(record: np.void) -> MulticoreCost:
    """Turn one record of `COST_DTYPE` into Python values."""
    return MulticoreCost(**cost_fields(record))


def cost_fields(record: np.void) -> dict[str, Any]:
    """Return the fields of `MulticoreCost` by name."""
    values = record.item()
    row = dict(zip(_COST_NAMES, values, strict=True))
    if math.isnan(row["energy_pj"]):
        row["energy_pj"] = None
    row["mapping"] = MulticoreMapping(Partition(*values[:4]), Tile(*values[4:7]), _ORDERS[values[7]])
    row["breakdown"] = FrozenDict(zip(_TERMS, _terms_of(values), strict=True))
    return row


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
    stored, out = np.zeros((2, 1), costs.COST_DTYPE)
    for name, number in zip(_NUMBERS, (*mapping.partition, *mapping.tile, mapping.loop_order), strict=True):
        stored[name] = number
    sizes = kernel_sizes(problem, as_groups=as_groups)
    evaluate: Callable[..., None] = costs.evaluate_range if len(sizes) == 1 else evaluate_grouped
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
    broken = costs.find_broken_rule(params, *problem.sizes, *partition, *tile)
    if broken < 0:
        return
    rule = costs.RULES[broken]
    if rule == "num_cores":
        used = math.prod(partition)
        text = f"P_G*P_M*P_N*P_K must be <= num_cores = {arch.num_cores}, got {used} ({arch.name})"
    elif rule == "reduction":
        text = (
            f"P_K must be 1, got {partition.P_K}: {arch.name} cannot add partial results (reduction: {arch.reduction})"
        )
    elif rule == "sram":
        demand, room = costs.sram_used_bytes(params[0], *tile), int(params["sram_usable_bytes"][0])
        beside = " beside resident operands" if arch.resident else ""
        text = (
            f"the tiles need {demand:,} bytes of SRAM, {arch.name} has {room:,} usable{beside}: "
            f"{demand - room:,} too many"
        )
    else:
        name = rule.rsplit("_", 1)[0]
        size, dimension = getattr(tile, name), name[-1]
        block_size = getattr(costs.block_of(params[0], *problem.sizes, *partition), dimension)
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
