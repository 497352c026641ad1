"""Bytes and energy of the attention of a point, which `AttentionResult` has in part."""

from __future__ import annotations

import math

from gemm_eval.arch import ArchSpec, MulticoreSpec
from gemm_eval.evaluate import AttentionResult
from gemm_eval.units import FLOP_PER_MAC

__all__ = ["attention_dram_bytes", "attention_energy_pj"]

_BITS_PER_BYTE = 8
_PJ_PER_W_US = 1e6
_SCORE_PASSES = 4  # unfused: written by the first GEMM, read and written by the softmax, read by the second GEMM


def attention_dram_bytes(result: AttentionResult) -> float:
    """Return the DRAM traffic of attention: as its mapping has it, else the compulsory bytes, and scores if unfused."""
    if result.dram_bytes is not None:
        return float(result.dram_bytes)
    problem = result.problem
    scores = problem.batch * problem.num_heads * problem.q_len * problem.kv_len * problem.dtype.bits / _BITS_PER_BYTE
    return float(problem.num_bytes) + (0.0 if result.is_fused else _SCORE_PASSES * scores)


def attention_energy_pj(arch: ArchSpec, result: AttentionResult) -> float:
    """Return the energy of attention by MODEL.md, "Energy"; nan where the chip does not say.

    Its DRAM bytes stand for what cores move through their ports, and the softmax takes none, as no spec has energies of
    the vector unit.
    """
    if not isinstance(arch, MulticoreSpec):
        return math.nan
    arch = arch.for_dtype(result.problem.dtype)
    mac_pj = arch.mac_pj.get(result.problem.dtype)
    if mac_pj is None or arch.sram_pj_per_byte is None or arch.dram_pj_per_byte is None:
        return math.nan
    if arch.noc_gb_per_s is not None and arch.noc_pj_per_byte is None:
        return math.nan
    macs, dram_bytes = result.flop / FLOP_PER_MAC, attention_dram_bytes(result)
    operand_bytes = macs * (1 / arch.cube_m + 1 / arch.cube_n) * result.problem.dtype.bits / _BITS_PER_BYTE
    energy_pj = macs * mac_pj + dram_bytes * (arch.dram_pj_per_byte + (arch.noc_pj_per_byte or 0.0))
    energy_pj += (dram_bytes + operand_bytes) * arch.sram_pj_per_byte
    return energy_pj + arch.static_w * _PJ_PER_W_US * result.latency_us
