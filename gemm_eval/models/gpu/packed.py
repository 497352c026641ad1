"""A GPU, the data types of a problem, the options and the kernels of a library, packed for the searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ClockState, GpuSpec, L2State
from gemm_eval.jit import read_only
from gemm_eval.models.gpu.candidates import CANDIDATE_DTYPE, build_candidates, step_elems
from gemm_eval.models.gpu.coefficients import COEFFICIENTS
from gemm_eval.models.gpu.cost_kernels import (
    ALL_COLD,
    COLD,
    COOPERATIVE,
    PINGPONG,
    ROW_BYTES,
    SM_L2_BYTES_PER_CYCLE,
    VECTOR,
    WARM,
)
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.generic_kernels import BoundColumns, split_cap
from gemm_eval.models.gpu.libraries import OURS, library_of
from gemm_eval.models.gpu.sizes import ANY_SIZE, NO_PADDING, NO_QUANTIZATION, Padding, Quantization, SizeRule, rows_on
from gemm_eval.models.gpu.w4a16.candidates import W4A16_SIZES, build_w4a16_candidates
from gemm_eval.models.gpu.w4a16.coefficients import PACKED_SETS
from gemm_eval.models.gpu.w4a16.cost_kernels import BATCH_BYTES, TWO_WARPGROUPS, W4A16BoundColumns, norm8, overlapped
from gemm_eval.models.gpu.w4a16.family_kernels import (
    GEMV_MMA_FAMILIES,
    GROUPED_FAMILIES,
    MULTISTAGE_FAMILIES,
    SM90_CLUSTER,
    SM90_GROUPED,
    STREAMING_FAMILIES,
    WGMMA_FAMILIES,
)
from gemm_eval.models.gpu.w4a16.shared_kernels import (
    BLOCK,
    FEW_TOKENS,
    MAX_STREAMING_TOKENS,
    PAIRS_OF_WARP,
    SCHEDULERS,
    SUM_BYTES,
)
from gemm_eval.units import bytes_per_us, cycles_per_us
from gemm_eval.workload import GemmTypes

# Called from Python, a kernel's formula takes arrays too.
_split_cap: Any = split_cap
_overlapped: Any = overlapped


def pack_bound_columns(
    params: npt.NDArray[np.void], coefficients: npt.NDArray[np.void], candidates: npt.NDArray[np.void]
) -> npt.NDArray[np.float64]:
    """Return `BoundColumns` of kernels, [columns, rows].

    Args:
        params: array [1] of `GPU_PARAMS_DTYPE`.
        coefficients: of their family, [1] of `COEFFICIENTS_DTYPE`.
        candidates: [rows] of `CANDIDATE_DTYPE`.
    """
    p, c, schedule = params[0], coefficients[0], candidates["schedule"]
    is_vector, is_pingpong, is_coop = schedule == VECTOR, schedule == PINGPONG, schedule == COOPERATIVE
    matrix = candidates["matrix_cycles"] / np.where(is_vector, c["vector_frac"], c["matrix_frac"])
    loss = np.where(is_coop, c["coop_step_cycles"], c["step_cycles"] + c["lone_frac"] * matrix)
    loss = np.where(is_vector, c["vector_step_cycles"], loss)
    kernel_us = np.where(is_vector, c["vector_kernel_us"], c["kernel_us"])
    clusters: Any = candidates["cluster_log2"]
    grid_cap: Any = candidates["grid_cap"]
    smem = (candidates["stage_bytes"] + candidates["operand_bytes"]) / p["smem_bytes_per_cycle"]
    values = BoundColumns(
        cta_m=candidates["cta_m"], cta_n=candidates["cta_n"], cta_k=candidates["cta_k"],
        cluster_m=candidates["cluster_m"], cluster_n=candidates["cluster_n"], grid_cap=grid_cap,
        split_cap=_split_cap(p, schedule, grid_cap, clusters), min_rows=candidates["min_rows"],
        max_rows=candidates["max_rows"], is_vector=is_vector, is_pingpong=is_pingpong,
        busy_cycles=np.where(candidates["operand_bytes"] > 0.0, np.hypot(matrix, smem), np.maximum(matrix, smem)),
        work_cycles=matrix + loss * (candidates["ring_steps"] == 0),
        tile_cycles=np.where(is_coop, c["coop_tile_cycles"], c["tile_cycles"] + is_vector * c["vector_tile_cycles"]),
        store_cycles=candidates["cta_m"] * candidates["store_elem_bytes"] / c["epilogue_bytes_per_cycle"],
        fixed_us=p["launch_us"] + kernel_us + p["load_latency_cycles"] / p["cycles_per_us"],
        dram_bytes_per_us=c["dram_bytes_per_us"] * (1.0 - c["cluster_loss"] * clusters),
        outside_us_per_row_step=(schedule <= COOPERATIVE) / (c["outside_rows_per_cycle"] * p["cycles_per_us"]),
    )  # fmt: skip
    return read_only(np.array(values, np.float64))


def pack_w4a16_bound_columns(
    params: npt.NDArray[np.void], coefficients: npt.NDArray[np.void], candidates: npt.NDArray[np.void]
) -> npt.NDArray[np.float64]:
    """Return `W4A16BoundColumns` of our kernels, [columns, rows]; arguments as for `pack_bound_columns`."""
    p, family, c = params[0], candidates["family"], coefficients[candidates["coefficient_set"]]
    is_sm90, is_sm80 = np.isin(family, WGMMA_FAMILIES), np.isin(family, MULTISTAGE_FAMILIES)
    is_gemv_mma = np.isin(family, GEMV_MMA_FAMILIES)
    is_streaming = np.isin(family, STREAMING_FAMILIES)
    matrix: Any = candidates["matrix_cycles"]
    slots = candidates["instructions"] / SCHEDULERS
    together = np.where(candidates["num_warps"] > TWO_WARPGROUPS, c["three_issue"], c["issue"])
    alone = slots * np.where(candidates["schedule"] == COOPERATIVE, together, c["pingpong_issue"])
    with np.errstate(divide="ignore", invalid="ignore"):  # families have coefficients of others as 0
        work = _overlapped(alone, matrix, c["wgmma_frac"]) + c["stage_cycles"] * BLOCK / candidates["cta_k"]
    lone = norm8(work, candidates["producer"] * c["producer_cycles"])
    # a tile of a group may have few of its tokens, and then waits for instructions alone
    block = np.where(family == SM90_GROUPED, np.minimum(alone, lone), lone)
    sharing = np.minimum(np.maximum(slots * c["shared_issue"], matrix), lone)
    issue = np.where(is_sm80, (candidates["instructions"] - candidates["mma"]) / SCHEDULERS, slots) * c["issue"]
    teams = np.where(is_streaming, candidates["cta_k"] // BLOCK, 1)
    serial = c["step_cycles"] + candidates["instructions"] * teams / candidates["num_warps"] * c["serial_cycles"]
    alone_of_step = serial / (teams * candidates["ctas_per_sm"])
    with np.errstate(divide="ignore", invalid="ignore"):  # families have coefficients of others as 0
        taken = candidates["weight_bytes"] / (SM_L2_BYTES_PER_CYCLE * c["sm_l2_frac"])
    others = np.hypot(np.hypot(issue + matrix, alone_of_step), np.where(is_gemv_mma, taken, 0.0))
    sums = teams * (candidates["cta_m"] * (candidates["cta_n"] * SUM_BYTES))
    start_cycles = np.where(is_gemv_mma, c["cta_cycles"], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # families have coefficients of others as 0
        start_cycles += np.where(is_streaming, sums / c["sums_bytes_per_cycle"], 0.0)
        epilogue = np.where(is_sm90, candidates["cta_n"] * p["c_elem_bytes"] / c["epilogue_bytes_per_cycle"], 0.0)
        box_row = np.where(is_sm90, BLOCK * p["a_elem_bytes"] / (SM_L2_BYTES_PER_CYCLE * c["sm_l2_frac"]), 0.0)
    dram_frac = np.where(is_gemv_mma, c["dram_frac"], 1.0)
    cut = np.maximum(candidates["cluster_k"], 1)
    values = W4A16BoundColumns(
        cta_m=candidates["cta_m"],
        cta_n=candidates["cta_n"],
        block_cycles=np.where(
            is_sm90, np.where(candidates["ctas_per_sm"] > 1, np.minimum(sharing, block), block), others
        ),
        lone_cycles=np.where(is_sm90, lone, 0.0),
        fixed_us=p["launch_us"] + np.where(is_sm90, c["kernel_us"], 0.0) + start_cycles / p["cycles_per_us"],
        fixed_cycles=np.where(is_sm80, c["cta_cycles"], 0.0),
        row_cycles=epilogue / cut,  # a share of the tile each
        pass_us=np.where(is_streaming, teams * c["team_sum_cycles"] / p["cycles_per_us"], 0.0),
        pass_elems=PAIRS_OF_WARP * candidates["num_warps"],
        dram_bytes_per_us=np.minimum(p["dram_peak_bytes_per_us"] * dram_frac, p["dram_spec_bytes_per_us"]),
        store_us_per_byte=np.where(is_sm90, c["store_exposed_frac"], 0.0) / p["dram_peak_bytes_per_us"],
        box_rows=np.where(
            family == SM90_GROUPED,
            np.minimum(candidates["cta_m"], FEW_TOKENS),
            candidates["cta_m"] // candidates["cluster_n"],
        ),
        box_row_cycles=box_row,
        weight_cycles=np.where(is_sm90, taken / candidates["cluster_m"], 0.0),
        whole_cycles=np.where(candidates["cluster_k"] > 0, np.inf, 0.0),
        cut_cycles=_cut_cycles(p, c, candidates),
        most_parts=np.where(candidates["cluster_k"] > 0, cut, np.inf),
        max_rows=np.where(is_streaming, MAX_STREAMING_TOKENS, np.inf),
        max_tiles=np.where(family == SM90_CLUSTER, candidates["expected_cap"] // cut, np.inf),
        is_grouped=np.isin(family, GROUPED_FAMILIES),
    )
    return read_only(np.array(values, np.float64))


def _cut_cycles(p: np.void, c: npt.NDArray[np.void], candidates: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Cycles that any cut of K adds to a kernel of ours; `c` [rows] are the coefficients of each.

    Stream-K of multistage kernels may give each CTA whole tiles, which adds nothing.
    """
    family = candidates["family"]
    is_sm90, is_streaming = np.isin(family, WGMMA_FAMILIES), np.isin(family, STREAMING_FAMILIES)
    tile_bytes = candidates["cta_m"] * (candidates["cta_n"] * SUM_BYTES)
    batches = np.maximum(1.0, tile_bytes / (candidates["num_warps"] * BATCH_BYTES))
    with np.errstate(divide="ignore", invalid="ignore"):  # families have coefficients of others as 0
        stored = np.where(is_sm90, tile_bytes / c["part_write_bytes_per_cycle"], 0.0)
        read = np.where(
            is_sm90 & (candidates["cluster_k"] == 0),
            tile_bytes / c["part_read_bytes_per_cycle"] + batches * c["part_cycles"], 0.0,
        )  # fmt: skip
    return np.where(is_sm90 | is_streaming, c["cut_us"] * p["cycles_per_us"] + stored + read, 0.0)


def no_bound_columns(num_rows: int) -> npt.NDArray[np.float64]:
    """Return the columns of kernels that are evaluated but never searched, so that nothing bounds them: [0, rows]."""
    return read_only(np.empty((0, num_rows)))


if TYPE_CHECKING:
    from gemm_eval.models.gpu.correction import PackedCorrection


_INTS = (
    "num_sms", "group_size", "group_n", "l2_state", "is_a_along_m", "is_b_along_n", "min_split_steps",
    "is_split_full", "is_split_lone", "is_split_short", "max_split_parts",
    "is_split_even", "has_stream_k", "is_calibrated", "k_pad", "n_pad", "quantize_passes", "has_cast",
    "num_l2_partitions", "least_step", "fills_across_groups",
)  # fmt: skip
_FLOATS = (
    "a_elem_bytes", "b_elem_bytes", "c_elem_bytes", "scale_bytes_per_group", "a_scale_bytes_per_group",
    "cycles_per_us", "tensor_cycles_per_us", "sustained_cycles_per_us", "launch_us", "load_latency_cycles",
    "l2_latency_cycles", "call_weights",
    "smem_bytes_per_cycle", "dram_peak_bytes_per_us", "dram_spec_bytes_per_us", "l2_peak_bytes_per_us", "l2_bytes",
    "quantize_elem_bytes", "l3_bytes", "l3_bytes_per_us", "num_l2_caches",
)  # fmt: skip
GPU_PARAMS_DTYPE = np.dtype([(name, np.int64) for name in _INTS] + [(name, np.float64) for name in _FLOATS])
"""What of GPU, data types, library, L2 and clock state the kernels read."""

_RATES = ("dram_bytes_per_us", "l2_bytes_per_us", "l2_hold_bytes", "sm_l2_bytes_per_cycle")
_NAMES = tuple(dict.fromkeys(item.name for family in FAMILIES.values() for item in family.coefficients))
COEFFICIENTS_DTYPE = np.dtype([(name, np.float64) for name in (*_NAMES, *_RATES)])
"""The coefficients of a kernel family, 0 where it has no such one, and what the GPU does at them."""

L2_STATES: dict[str, int] = {L2State.COLD: COLD, L2State.COLD_ALL: ALL_COLD, L2State.WARM: WARM}
"""What L2 holds when a kernel starts, as users say it, and as records do; MODEL.md, "Bytes"."""


class Packed:
    """The kernels of a library on a GPU for some data types, as searches take them.

    Attributes:
        params: array [1] of `GPU_PARAMS_DTYPE`.
        candidates: kernels [num] of `CANDIDATE_DTYPE`.
        columns: [columns, num], what else is packed for their bounds.
        coefficients: [1, sets] of `COEFFICIENTS_DTYPE`, which `coefficient_set` of a kernel indexes.
        ranges: [1, 2], the first and last but one of `candidates`: all of them.
        sizes: which sizes the kernels take.
        library: whose kernels.
        has_kernels: whether the library has kernels for such sizes, on whatever GPU.
        correction: what timings showed beyond the terms; None: nothing, or it is not asked for.
        carried: answers to other questions, which these take their correction from; None: to none.
        most_rows: of C that the kernels take, of single GEMMs alone; None: any, and batches.

    Arrays are read-only: numba compiles for both kinds otherwise.
    """

    def __init__(
        self, params: npt.NDArray[np.void], candidates: npt.NDArray[np.void], coefficients: npt.NDArray[np.void],
        sizes: SizeRule = ANY_SIZE, *, library: str, columns: npt.NDArray[np.float64] | None = None,
        make_fallback: Callable[[], Packed] | None = None, has_kernels: bool = True,
        correction: PackedCorrection | None = None, carried: Carried | None = None, most_rows: int | None = None,
    ) -> None:  # fmt: skip
        self.params, self.candidates = read_only(params), read_only(candidates)
        self.columns = no_bound_columns(len(candidates)) if columns is None else columns
        self.coefficients = read_only(coefficients[None])
        self.ranges = read_only(np.array([[0, len(candidates)]], np.int64))
        self.sizes = sizes
        self.library = library
        self.has_kernels = has_kernels
        self.correction = correction
        self.carried = carried
        self.most_rows = most_rows
        self._make_fallback = make_fallback

    @property
    def is_ours(self) -> bool:
        """True if these are our W4A16 kernels."""
        return self.has_kernels and self.library == OURS

    @property
    def is_ranked(self) -> bool:
        """True if the correction also chooses among configs that take about as long: of our kernels, single GEMMs."""
        return self.correction is not None and self.carried is None and self.is_ours

    @cached_property
    def fallback(self) -> Packed:
        """The kernels for sizes that these do not take."""
        return self if self._make_fallback is None else self._make_fallback()

    def takes(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which problems [num, 4] of G, M, K, N the kernels run."""
        taken: npt.NDArray[np.bool_] = np.asarray(self.sizes.takes(sizes[:, 1], sizes[:, 2], sizes[:, 3]), bool)
        if self.most_rows is not None:
            taken &= (sizes[:, 0] == 1) & (sizes[:, 1] <= self.most_rows)
        return taken

    def for_sizes(self, G: int, M: int, K: int, N: int) -> Packed:
        """Return the kernels that run problems of these sizes."""
        has_rows = self.most_rows is None or (G == 1 and self.most_rows >= M)
        is_taken = (has_rows and self.sizes.takes(M, K, N)) or self._make_fallback is None
        return self if is_taken else self.fallback.for_sizes(G, M, K, N)


class Carried(NamedTuple):
    """Answers to other questions on the same GEMMs, which decide the correction of an answer."""

    reference: Packed | None  # its factor corrects the answer; None: the answer has trees of its own
    ceiling: Packed | None  # the same in a slower state of L2, above whose latency no answer is; None: nothing
    limits: npt.NDArray[np.void]  # array [1] of LIMITS_DTYPE, the data sheet's floor


class Joined(NamedTuple):
    """Several `Packed` of one kind of kernels, as the numba searches take them."""

    params: npt.NDArray[np.void]  # [packed]
    candidates: npt.NDArray[np.void]  # those of all, one after another
    columns: npt.NDArray[np.float64]  # [columns, candidates]
    ranges: npt.NDArray[np.int64]  # [packed, 2], first and stop of each one's candidates
    coefficients: npt.NDArray[np.void]  # [packed, sets]
    is_ours: bool


def join_packed(packed: Sequence[Packed]) -> Joined:
    """Join at least one; either all are of our kernels, or none is."""
    if len(packed) == 1:
        one = packed[0]
        return Joined(one.params, one.candidates, one.columns, one.ranges, one.coefficients, one.is_ours)
    stops = np.cumsum([len(one.candidates) for one in packed])
    return Joined(
        read_only(np.concatenate([one.params for one in packed])),
        read_only(np.concatenate([one.candidates for one in packed])),
        read_only(np.concatenate([one.columns for one in packed], axis=1)),
        read_only(np.stack([np.concatenate([[0], stops[:-1]]), stops], axis=1).astype(np.int64)),
        read_only(np.concatenate([one.coefficients for one in packed])), packed[0].is_ours,
    )  # fmt: skip


def split_by_size(
    packed: Sequence[Packed], type_of: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> tuple[list[Packed], npt.NDArray[np.int64]]:
    """Say which kernels run which problem.

    Args:
        packed: of each combination of types and options.
        type_of: [num], index into `packed`.
        sizes: [num, 4] of G, M, K, N.

    Returns:
        Those of `packed` and their fallbacks that are needed, and for each problem [num] the index into them.
    """
    known, numbers, rest = list(packed), type_of.copy(), np.arange(len(sizes))
    while len(rest):
        is_taken = np.zeros(len(rest), bool)
        for number in np.unique(numbers[rest]).tolist():
            some = numbers[rest] == number
            is_taken[some] = known[number].takes(sizes[rest[some]])
        rest = rest[~is_taken]
        for number in np.unique(numbers[rest]).tolist():
            rows = rest[numbers[rest] == number]
            fallback = known[number].fallback
            if fallback is known[number]:
                rest = np.setdiff1d(rest, rows)
            else:
                numbers[rows] = len(known)
                known.append(fallback)
    used = np.flatnonzero(np.bincount(numbers, minlength=len(known)))
    place_of = np.zeros(len(known), np.int64)
    place_of[used] = np.arange(len(used))
    return [known[number] for number in used.tolist()], place_of[numbers]


def pack_kernels(
    arch: GpuSpec, types: GemmTypes, library: str, coefficients: Mapping[str, float], *, l2: str, clock: str,
    is_calibrated: bool, load_bytes: int = ROW_BYTES, call_weights: float = 1.0,
    quantization: Quantization = NO_QUANTIZATION, make_fallback: Callable[[], Packed] | None = None,
    correction: PackedCorrection | None = None, carried: Carried | None = None, most_rows: int | None = None,
) -> Packed:  # fmt: skip
    """Pack the generic kernels of a library.

    Args:
        coefficients: of the kernel family that the library uses for these types.
        is_calibrated: whether the coefficients were fitted on this GPU.
        load_bytes: of `LOAD_BYTES`, pack the kernels for rows that start on so many.
        call_weights: weights that a call of all that is timed reads, over those of this GEMM: what is warm has to hold
            them all.
        make_fallback: packs those for rows that do not.
        carried: where that comes from, if it is of other answers.

    Raises:
        UnsupportedError: GPU, types and library do not go together.
    """
    rules = library_of(library)
    rules.check(arch, types)
    split, padding = rules.split_rule(arch, types, load_bytes=load_bytes), rules.padding(arch.sm_arch, types)
    params = _pack_chip(arch, types, l2, clock, padding)
    params["quantize_passes"] = quantization.num_passes
    params["quantize_elem_bytes"] = quantization.elem_bytes
    params["has_cast"] = quantization.has_cast
    params["min_split_steps"] = split.min_steps
    params["is_split_full"] = split.is_full
    params["is_split_lone"] = split.is_lone
    params["is_split_short"] = split.is_short
    params["max_split_parts"] = split.max_parts
    params["is_split_even"] = split.is_even
    params["has_stream_k"] = rules.has_stream_k
    family = FAMILIES[rules.family(arch, types, load_bytes=load_bytes)]
    params["fills_across_groups"] = family.fills_across_groups
    if family.least_step_bytes:
        params["least_step"] = step_elems(types, family.name, family.least_step_bytes)
    params["is_calibrated"] = is_calibrated
    params["call_weights"] = call_weights
    if rules.is_chosen_by_model:
        coefficients = {**coefficients, "choice_loss": 0.0}
    candidates = build_candidates(arch, types, library, load_bytes=load_bytes)
    packed = pack_coefficients(params, coefficients)
    return Packed(
        params, candidates, packed, rows_on(types, load_bytes, padding), library=library,
        columns=pack_bound_columns(params, packed, candidates), make_fallback=make_fallback, correction=correction,
        carried=carried, most_rows=most_rows,
    )  # fmt: skip


_DEFAULTS = {item.name: item.default for item in COEFFICIENTS}


def pack_no_kernels(arch: GpuSpec, types: GemmTypes, library: str, *, l2: str, clock: str) -> Packed:
    """Pack a library without a kernel."""
    params = _pack_chip(arch, types, l2, clock)
    candidates, coefficients = np.empty(0, CANDIDATE_DTYPE), pack_coefficients(params, _DEFAULTS)
    columns = pack_bound_columns(params, coefficients, candidates)
    return Packed(params, candidates, coefficients, library=library, columns=columns, has_kernels=False)


def pack_w4a16(
    arch: GpuSpec, types: GemmTypes, coefficients: Mapping[str, Mapping[str, float]], *, l2: str, clock: str,
    is_calibrated: bool, make_fallback: Callable[[], Packed], correction: PackedCorrection | None,
    carried: Carried | None,
) -> Packed:  # fmt: skip
    """Pack our W4A16 kernels.

    Args:
        arch: a GPU that has such kernels (`has_our_kernels`).
        is_calibrated: whether those of all families were fitted on this GPU.
        make_fallback: packs what runs rows that do not start on 16 bytes.
    """
    params = _pack_chip(arch, types, l2, clock)
    scale = types.b.scale
    if scale is not None and scale.zero_dtype is not None:  # packed, a zero point is as wide as a scale
        params["scale_bytes_per_group"] = 2 * scale.dtype.bits / 8
    params["is_calibrated"] = is_calibrated
    candidates, packed = build_w4a16_candidates(arch, types), pack_w4a16_coefficients(coefficients)
    return Packed(
        params, candidates, packed, W4A16_SIZES, library=OURS,
        columns=pack_w4a16_bound_columns(params, packed, candidates), make_fallback=make_fallback,
        correction=correction, carried=carried,
    )  # fmt: skip


def _pack_chip(
    arch: GpuSpec, types: GemmTypes, l2: str, clock: str, padding: Padding = NO_PADDING
) -> npt.NDArray[np.void]:
    """Fill in what GPU, data types and states decide."""
    clock_ghz = arch.tensor_clock_ghz(types.a.dtype, clock)
    cycles = cycles_per_us(arch.max_clock_ghz)
    values: dict[str, float] = {
        "num_sms": arch.num_sms,
        "group_size": types.group_size or 0,
        "group_n": 1 if types.b.scale is None else types.b.scale.group_n,
        "l2_state": L2_STATES[l2],
        "is_a_along_m": types.is_a_along_m,
        "is_b_along_n": types.is_b_along_n,
        "k_pad": padding.k_multiple,
        "n_pad": padding.n_multiple,
        "a_elem_bytes": types.a.dtype.bits / 8,
        "b_elem_bytes": types.b.dtype.bits / 8,
        "c_elem_bytes": types.c.bits / 8,
        "scale_bytes_per_group": types.group_bits / 8,
        "a_scale_bytes_per_group": 0.0 if types.a.scale is None else types.a.scale.group_bits / 8,
        "cycles_per_us": cycles,
        "tensor_cycles_per_us": cycles_per_us(clock_ghz),
        "sustained_cycles_per_us": cycles_per_us(arch.tensor_clock_ghz(types.a.dtype, ClockState.SUSTAINED)),
        "launch_us": arch.graph_node_us,
        "load_latency_cycles": arch.dram_latency_ns * cycles / 1e3,
        "l2_latency_cycles": arch.l2_latency_cycles,
        "call_weights": 1.0,
        "smem_bytes_per_cycle": arch.smem_bytes_per_cycle,
        "dram_peak_bytes_per_us": bytes_per_us(arch.dram_achievable_gb_per_s),
        "dram_spec_bytes_per_us": bytes_per_us(arch.dram_gb_per_s),
        "l2_peak_bytes_per_us": bytes_per_us(arch.l2_gb_per_s),
        "l2_bytes": arch.l2_bytes,
        "num_l2_partitions": arch.num_l2_partitions,
        "num_l2_caches": arch.num_l2_caches,
        "l3_bytes": arch.l3_bytes or 0,
        "l3_bytes_per_us": bytes_per_us(arch.l3_gb_per_s or math.inf),
    }
    params = np.zeros(1, GPU_PARAMS_DTYPE)
    for name, value in values.items():
        params[name] = value
    return params


def pack_w4a16_coefficients(coefficients: Mapping[str, Mapping[str, float]]) -> npt.NDArray[np.void]:
    """Return coefficients by family as [families] of `COEFFICIENTS_DTYPE`; our kernels read no rates."""
    return np.array([_values(coefficients.get(family, {})) for family in PACKED_SETS], COEFFICIENTS_DTYPE)


def _values(coefficients: Mapping[str, float]) -> tuple[float, ...]:
    return (*(coefficients.get(name, 0.0) for name in _NAMES), *(0.0 for _ in _RATES))


def pack_coefficients(params: npt.NDArray[np.void], coefficients: Mapping[str, float]) -> npt.NDArray[np.void]:
    """Return the coefficients of a generic family on a GPU, [1] of `COEFFICIENTS_DTYPE`; `params` [1] is the GPU's."""
    packed = np.array([_values(coefficients)], COEFFICIENTS_DTYPE)
    # a share that was fitted on one chip may be too much for another, whose efficiency is higher
    packed["dram_bytes_per_us"] = np.minimum(
        params["dram_peak_bytes_per_us"] * packed["dram_frac"], params["dram_spec_bytes_per_us"]
    )
    packed["l2_bytes_per_us"] = params["l2_peak_bytes_per_us"] * packed["l2_frac"]
    packed["l2_hold_bytes"] = params["l2_bytes"] * packed["l2_hold_frac"]
    packed["sm_l2_bytes_per_cycle"] = SM_L2_BYTES_PER_CYCLE * packed["sm_l2_frac"]
    return read_only(packed)
