"""Packing of an arch and the data types of a problem into one record of scalars for the kernels.

Archs are data to the kernels, never constants: a sweep over ten thousand chips compiles nothing anew.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import MulticoreSpec
from gemm_eval.errors import UnsupportedError
from gemm_eval.units import bytes_per_us, cycles_per_us, pj_per_us
from gemm_eval.workload import GemmTypes

__all__ = ["PARAMS_DTYPE", "REDUCTIONS", "pack_params"]

REDUCTIONS = ("none", "dram", "noc")
"""Codes of the field `reduction`: an index into this tuple, the same that the kernels compare with."""

_INTS = (
    "num_cores", "cube_m", "cube_k", "cube_n", "unit_k", "fill_drain_cycles",
    "sram_usable_bytes", "input_buffers", "output_buffers", "lane_num", "align_bytes",
    "is_fair", "is_multicast", "has_noc", "reduction",
    "is_quantized", "has_dequant_copy", "vector_is_concurrent", "is_pipeline",
    "a_bits", "b_bits", "c_bits", "acc_bits", "group_bits", "group_size",
    "has_energy",
)  # fmt: skip
_FLOATS = (
    "steps_per_cycle", "cycles_per_us", "vector_ops_per_cycle", "dequant_ops_per_elem",
    "dram_bytes_per_us", "dram_core_limit_bytes_per_us", "noc_bytes_per_us",
    "overlap_frac", "launch_us",
    "mac_pj", "sram_pj_per_byte", "dram_pj_per_byte", "noc_pj_per_byte", "static_pj_per_us",
)  # fmt: skip

PARAMS_DTYPE = np.dtype([(name, np.int64) for name in _INTS] + [(name, np.float64) for name in _FLOATS])
"""One record per (arch, data types). Absent limits are inf, absent units 1.0 with the flag that nobody reads them."""


def pack_params(arch: MulticoreSpec, types: GemmTypes) -> npt.NDArray[np.void]:
    """Return a read-only array [1] of `PARAMS_DTYPE`.

    Raises:
        UnsupportedError: the matrix unit does not take the input type, or nothing can dequantize the weights.
    """
    dtype = types.a.dtype
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
    limit = arch.dram_core_limit_gb_per_s
    values: dict[str, float] = {
        "num_cores": arch.num_cores,
        "cube_m": arch.cube_m,
        "cube_k": cube_k,
        "cube_n": arch.cube_n,
        "unit_k": math.lcm(cube_k, group_size) if group_size else cube_k,
        "fill_drain_cycles": arch.fill_drain_cycles,
        "sram_usable_bytes": arch.sram_usable_bytes,
        "input_buffers": arch.input_buffers,
        "output_buffers": arch.output_buffers,
        "lane_num": arch.lane_num,
        "align_bytes": arch.align_bytes,
        "is_fair": arch.dram_sharing == "fair",
        "is_multicast": arch.load_sharing == "multicast",
        "has_noc": has_noc,
        "reduction": REDUCTIONS.index(arch.reduction),
        "is_quantized": types.is_weight_quantized,
        "has_dequant_copy": types.is_weight_quantized and arch.dequant == "vector",
        "vector_is_concurrent": arch.vector_is_concurrent,
        "is_pipeline": arch.timing == "pipeline",
        "a_bits": dtype.bits,
        "b_bits": types.b.dtype.bits,
        "c_bits": types.c.bits,
        "acc_bits": types.acc.bits,
        "group_bits": types.group_bits,
        "group_size": group_size,
        "has_energy": has_energy,
        "steps_per_cycle": arch.cube_steps_per_cycle[dtype],
        "cycles_per_us": cycles_per_us(arch.frequency_ghz),
        "vector_ops_per_cycle": arch.vector_ops_per_cycle or 1.0,
        "dequant_ops_per_elem": arch.dequant_ops_per_elem or 1.0,
        "dram_bytes_per_us": bytes_per_us(arch.dram_gb_per_s) * arch.dram_efficiency_frac,
        "dram_core_limit_bytes_per_us": math.inf if limit is None else bytes_per_us(limit),
        "noc_bytes_per_us": math.inf if arch.noc_gb_per_s is None else bytes_per_us(arch.noc_gb_per_s),
        "overlap_frac": arch.overlap_frac,
        "launch_us": arch.launch_us,
        "mac_pj": arch.mac_pj.get(dtype, 0.0),
        "sram_pj_per_byte": arch.sram_pj_per_byte or 0.0,
        "dram_pj_per_byte": arch.dram_pj_per_byte or 0.0,
        "noc_pj_per_byte": arch.noc_pj_per_byte or 0.0,
        "static_pj_per_us": pj_per_us(arch.static_w),
    }
    params = np.array([tuple(values[name] for name in PARAMS_DTYPE.names or ())], dtype=PARAMS_DTYPE)
    params.setflags(write=False)
    return params
