"""Cost model 1 from Python's side: checks a mapping, calls the kernel, unpacks the cost."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import InvalidMappingError
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile
from gemm_eval.models.multicore.cost_kernels import COST_DTYPE, block_of, evaluate_one, sram_used_bytes
from gemm_eval.models.multicore.grouped_cost_kernels import evaluate_grouped
from gemm_eval.models.multicore.groups import batch_sizes, group_sizes
from gemm_eval.models.multicore.params import params_in_room
from gemm_eval.models.multicore.replay_kernels import RULES, find_broken_rule
from gemm_eval.models.multicore.terms import BREAKDOWN, Times
from gemm_eval.words import shown
from gemm_eval.workload import GemmProblem

MODEL_VERSION = "multicore-4"
"""Changes whenever any answer of the model may change; MODEL.md's heading carries the same number."""


class MulticoreCost(NamedTuple):
    """Cost of one mapping: the fields of `COST_DTYPE`, unpacked.

    Bytes are totals of the chip, times are those of the slowest core; MODEL.md defines each. `energy_pj` is None when
    the arch gives no energy figures; `bound` is an index into `BOUNDS`. The counts at the end of the integers are those
    of the search that found the mapping: mappings whose cost was computed, tile choices that do not fit in SRAM, and
    partitions, of which some have a bound above the best and some are equal to a smaller one or split K where the chip
    cannot reduce. All are 0 for a mapping that was given.
    """

    mapping: MulticoreMapping
    active_cores: int
    visits: int
    sram_used_bytes: int
    dram_bytes: int
    a_bytes: int
    b_bytes: int
    scale_bytes: int
    c_store_bytes: int
    c_spill_bytes: int
    c_refill_bytes: int
    reduction_bytes: int
    core_bytes: int
    bound: int
    num_candidates: int
    num_refused_sram: int
    num_partitions: int
    num_partitions_bounded: int
    num_partitions_dropped: int
    latency_us: float
    main_us: float
    compute_us: float
    dma_us: float
    dram_us: float
    shared_us: float
    noc_us: float
    feed_us: float
    reduction_us: float
    hidden_us: float
    busiest_core_bytes: float
    energy_pj: float | None
    times: Times

    @property
    def breakdown(self) -> dict[str, float]:
        """As in `GEMMResult`."""
        times = self.times
        return dict(zip(BREAKDOWN, (*times[:_HIDDEN], self.hidden_us, *times[_HIDDEN:]), strict=True))


_HIDDEN = BREAKDOWN.index("hidden_us")
_NUM_MAPPING_FIELDS = 8
_NUM_TERMS = len(Times._fields)
assert COST_DTYPE.names is not None
assert COST_DTYPE.names[_NUM_MAPPING_FIELDS:-_NUM_TERMS] == MulticoreCost._fields[1:-1], (
    "COST_DTYPE and MulticoreCost must agree"
)
_ORDERS = tuple(LoopOrder)


def unpack_cost(record: np.void) -> MulticoreCost:
    """Turn one record of `COST_DTYPE` into Python values."""
    row = record.item()
    *values, energy_pj = row[_NUM_MAPPING_FIELDS:-_NUM_TERMS]
    mapping = MulticoreMapping(Partition(*row[:4]), Tile(*row[4:7]), _ORDERS[row[7]])
    times = Times._make(row[-_NUM_TERMS:])
    return MulticoreCost._make((mapping, *values, None if math.isnan(energy_pj) else energy_pj, times))


def evaluate_mapping(
    arch: MulticoreSpec, problem: GemmProblem, params: npt.NDArray[np.void], mapping: MulticoreMapping
) -> npt.NDArray[np.void]:
    """Cost of a mapping that a user gives, an array [1] of COST_DTYPE; `params` comes from `pack_params`.

    Raises:
        InvalidMappingError: the mapping breaks a rule, which the message and `.rule` name.
    """
    mapping = _check_shape(mapping)
    params = params_in_room(params, problem)
    _check_rules(arch, problem, params, mapping)
    out = np.zeros(1, COST_DTYPE)
    numbers = (*mapping.partition, *mapping.tile, int(mapping.loop_order))
    sizes = batch_sizes(problem)
    if sizes is None:
        evaluate_grouped(params, *group_sizes(problem), problem.K, problem.N, *numbers, out)
    else:
        evaluate_one(params, *sizes, *numbers, out)
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
