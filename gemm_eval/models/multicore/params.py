"""Packing of an arch and the data types of a problem into one record of scalars for the kernels.

Archs are data to the kernels, never constants: a sweep over ten thousand chips compiles nothing anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.dtypes import HALF_BITS_PER_BYTE, DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.jit import read_only
from gemm_eval.units import bytes_per_us, cycles_per_us, pj_per_us
from gemm_eval.workload import GemmProblem, GemmTypes, Layouts

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
        "cube_k": cube_k,
        "unit_k": math.lcm(cube_k, group_size) if group_size else cube_k,
        "a_buffers": arch.tile_buffers.get("A", arch.input_buffers),
        "b_buffers": arch.tile_buffers.get("B", arch.input_buffers),
        "c_buffers": arch.tile_buffers.get("C", arch.output_buffers),
        "is_fair": arch.dram_sharing == "fair",
        "is_multicast": arch.load_sharing == "multicast",
        "has_noc": has_noc,
        "reduction": REDUCTIONS.index(arch.reduction),
        "is_quantized": types.is_weight_quantized,
        "has_dequant_copy": types.is_weight_quantized and arch.dequant == "vector",
        "is_pipeline": arch.timing == "pipeline",
        "a_half_bits": dtype.half_bits,
        "b_half_bits": types.b.dtype.half_bits,
        "c_half_bits": types.c.half_bits,
        "acc_half_bits": types.acc.half_bits,
        "group_half_bits": 2 * types.group_bits,
        "group_size": group_size,
        "has_energy": has_energy,
        "steps_per_cycle": arch.cube_steps_per_cycle[dtype],
        "cycles_per_us": _cycles_per_us(arch, dtype),
        "vector_ops_per_cycle": arch.vector_ops_per_cycle or 1.0,
        "dequant_ops_per_elem": arch.dequant_ops_per_elem or 1.0,
        "dram_bytes_per_us": reads,
        "dram_core_limit_bytes_per_us": math.inf if limit is None else bytes_per_us(limit),
        "noc_bytes_per_us": math.inf if arch.noc_gb_per_s is None else bytes_per_us(arch.noc_gb_per_s),
        "launch_us": arch.launch_us,
        "mac_pj": arch.mac_pj.get(dtype, 0.0),
        "sram_pj_per_byte": arch.sram_pj_per_byte or 0.0,
        "dram_pj_per_byte": arch.dram_pj_per_byte or 0.0,
        "noc_pj_per_byte": arch.noc_pj_per_byte or 0.0,
        "static_pj_per_us": pj_per_us(arch.static_w),
        "spill_half_bits": arch.partial_dtype.get(dtype, types.acc).half_bits,
        "has_shared": arch.shared_bytes is not None,
        "has_resident": bool(arch.resident),
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
    }
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
