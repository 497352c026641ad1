"""The GPU cost model from Python: options, packing and unpacking."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import ClockState, GpuSpec, L2State
from gemm_eval.errors import InvalidOptionError
from gemm_eval.frozen import FrozenDict
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu.calibration import coefficients_for
from gemm_eval.models.gpu.correction import correction_for
from gemm_eval.models.gpu.cost_kernels import GPU_COST_DTYPE
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.libraries import AUTO, HYPOTHETICAL, LIBRARIES, OURS, default_library
from gemm_eval.models.gpu.packed import L2_STATES, Packed, pack_kernels, pack_no_kernels, pack_w4a16
from gemm_eval.models.gpu.terms import BOUNDS, Times
from gemm_eval.models.gpu.w4a16.candidates import check_w4a16_types, has_w4a16_kernels
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES
from gemm_eval.words import refusal
from gemm_eval.workload import GemmTypes, RunOptions

__all__ = ["GPU_MODEL_VERSION", "GpuCost", "check_options", "pack_gpu", "unpack_config", "unpack_gpu_cost"]

GPU_MODEL_VERSION = "gpu-5"
"""Changes whenever the same GPU, problem and config can get another cost."""

_BOUND_WORDS = tuple(BOUNDS)
_FAMILY_NAMES: dict[int, str] = {family.number: family.name for family in FAMILIES.values()}
# a look-up takes a tenth of the time of a call of an enum
_SCHEDULES: dict[int, Schedule] = {int(item): item for item in Schedule}
_DECOMPOSITIONS: dict[int, Decomposition] = {int(item): item for item in Decomposition}
_RASTER_ORDERS: dict[int, RasterOrder] = {int(item): item for item in RasterOrder}
_DEFAULTS = RunOptions(None, str(L2State.COLD), str(ClockState.BURST))


def check_options(options: RunOptions) -> RunOptions:
    """Return options with L2 and clock state filled in where nothing is said.

    Raises:
        InvalidOptionError: there is no such library or state.
    """
    known: Mapping[str, tuple[str, ...]] = {
        "library": (*LIBRARIES, AUTO),
        "l2": tuple(L2_STATES),
        "clock": tuple(map(str, ClockState)),
    }
    for name, allowed in known.items():
        value = getattr(options, name)
        if value is not None and value not in allowed:
            raise InvalidOptionError(refusal(name, value, allowed))
    return options.over(_DEFAULTS)


class GpuCost(NamedTuple):
    """The cost of one kernel config; times in us, terms of `breakdown` add up to `latency_us`."""

    config: KernelConfig
    latency_us: float
    physics_us: float
    compute_us: float
    dram_us: float
    dram_bytes: int
    bound: str
    breakdown: FrozenDict[str, float]
    traffic: FrozenDict[str, int]
    smem_bytes: int
    active_sms: int
    ctas_per_sm: int
    num_ctas: int
    num_waves: int
    num_candidates: int
    num_refused: FrozenDict[str, int]
    is_calibrated: bool
    is_corrected: bool


_BREAKDOWN = (*Times._fields, "correction_us", "hidden_us")
_TRAFFIC = {
    "a_bytes": "dram_a_bytes", "b_bytes": "dram_b_bytes", "scale_bytes": "dram_scale_bytes", "c_bytes": "dram_c_bytes",
}  # fmt: skip


def pack_gpu(arch: GpuSpec, types: GemmTypes, options: RunOptions) -> Packed:
    """Pack the kernels that run GEMMs of some data types on a GPU.

    Their answers are those of physics alone, unless `options.correction` is True.

    Raises:
        InvalidOptionError: there is no such library or state.
        UnsupportedError: GPU, types and library do not go together.
    """
    options = check_options(options)
    states = {"l2": str(options.l2), "clock": str(options.clock)}
    library = default_library(types) if options.library in (None, AUTO) else str(options.library)
    is_ours = library == OURS or (library == AUTO and has_w4a16_kernels(arch, types))
    if library == OURS:
        LIBRARIES[library].check(arch, types)
        check_w4a16_types(arch, types)
    elif library == AUTO:
        library = HYPOTHETICAL

    def pack_generic(*, is_unaligned: bool = False, make_fallback: Callable[[], Packed] | None = None) -> Packed:
        family = LIBRARIES[library].family(arch, types, is_unaligned=is_unaligned)
        coefficients, origin = coefficients_for(arch, library, family)
        correction = None
        if options.correction:
            correction = correction_for(arch, library, family, types, options, GPU_MODEL_VERSION)
        return pack_kernels(
            arch, types, library, coefficients, **states, is_calibrated=origin.is_calibrated,
            is_unaligned=is_unaligned, make_fallback=make_fallback, correction=correction,
        )  # fmt: skip

    def make_fallback() -> Packed:
        if LIBRARIES[library].runs_unaligned(types):
            return pack_generic(is_unaligned=True)
        return pack_no_kernels(arch, types, library, **states)

    if not is_ours:
        return pack_generic(make_fallback=make_fallback)
    found = {family: coefficients_for(arch, OURS, family) for family in W4A16_FAMILIES}
    return pack_w4a16(
        arch, types, {family: values for family, (values, _) in found.items()}, **states,
        is_calibrated=all(origin.is_calibrated for _, origin in found.values()), make_fallback=make_fallback,
    )  # fmt: skip


def _pick(*names: str) -> operator.itemgetter[Any]:
    """Return what takes these fields of a record that is a tuple."""
    return operator.itemgetter(*((GPU_COST_DTYPE.names or ()).index(name) for name in names))


_CONFIG_OF = _pick(*KernelConfig._fields)
_TERMS_OF = _pick(*Times._fields)
_TRAFFIC_OF = _pick(*_TRAFFIC.values())
_TOTALS_OF = _pick("latency_us", "compute_us", "dram_us", "dram_bytes", "bound", "physics_us", "correction_factor")
_COUNTS_OF = _pick(
    "smem_bytes", "active_sms", "ctas_per_sm", "num_ctas", "num_waves", "num_candidates", "num_bounded",
    "is_calibrated",
)  # fmt: skip


def unpack_gpu_cost(record: np.void) -> GpuCost:
    """Turn a record of `GPU_COST_DTYPE` into Python values.

    Raises:
        KeyError, ValueError, IndexError: the record holds a code that does not exist.
    """
    values = record.tolist()  # all at once: field by field it takes five times as long
    config = _config_of(values)
    latency_us, compute_us, dram_us, dram_bytes, bound, physics_us, factor = _TOTALS_OF(values)
    smem, sms, ctas_per_sm, ctas, waves, num_candidates, num_bounded, is_calibrated = _COUNTS_OF(values)
    terms = _TERMS_OF(values)
    correction_us = latency_us - physics_us
    hidden_us = latency_us - (sum(terms) + correction_us)
    breakdown = FrozenDict(zip(_BREAKDOWN, (*terms, correction_us, hidden_us), strict=True))
    traffic = FrozenDict(zip(_TRAFFIC, _TRAFFIC_OF(values), strict=True))
    return GpuCost(
        config, latency_us, physics_us, compute_us, dram_us, dram_bytes, _BOUND_WORDS[bound], breakdown, traffic, smem,
        sms, ctas_per_sm, ctas, waves, num_candidates, FrozenDict(lower_bound=num_bounded), bool(is_calibrated),
        factor != 1.0,
    )  # fmt: skip


def unpack_config(record: np.void) -> KernelConfig:
    """Return the config alone, as `unpack_gpu_cost` does."""
    return _config_of(record.tolist())


def _config_of(values: Any) -> KernelConfig:
    family, m, n, k, cluster_m, cluster_n, warps, stages, schedule, work, split_k, order, swizzle = _CONFIG_OF(values)
    return KernelConfig(
        _FAMILY_NAMES[family], m, n, k, cluster_m, cluster_n, warps, stages, _SCHEDULES[schedule],
        _DECOMPOSITIONS[work], split_k, _RASTER_ORDERS[order], swizzle,
    )  # fmt: skip
