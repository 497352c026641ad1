"""The GPU cost model from Python: options, packing and unpacking."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import ClockState, GpuSpec, L2State, check_carried, data_root
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.frozen import FrozenDict
from gemm_eval.jit import read_only
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu.calibration import ALL_OURS, coefficients_for, is_preset, preset_of
from gemm_eval.models.gpu.correction import (
    PackedCorrection,
    check_version,
    correction_for,
    nearest_corrected,
    pack_limits,
)
from gemm_eval.models.gpu.cost_kernels import GPU_COST_DTYPE
from gemm_eval.models.gpu.engines import engine_kernel
from gemm_eval.models.gpu.families import FAMILIES, QUANTIZE
from gemm_eval.models.gpu.libraries import AUTO, ENGINES, HYPOTHETICAL, OURS, TRTLLM, default_library, library_of
from gemm_eval.models.gpu.packed import L2_STATES, Carried, Packed, pack_kernels, pack_no_kernels, pack_w4a16
from gemm_eval.models.gpu.sizes import LOAD_BYTES, load_levels, quantization_of
from gemm_eval.models.gpu.terms import BOUNDS, Times
from gemm_eval.models.gpu.w4a16.candidates import check_w4a16_types, has_our_kernels
from gemm_eval.models.gpu.w4a16.coefficients import W4A8_FAMILIES, W4A16_GROUPED_FAMILIES, W4A16_SETS
from gemm_eval.words import refusal
from gemm_eval.workload import GemmTypes, RunOptions

GPU_MODEL_VERSION = "gpu-8"
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
        "l2": tuple(L2_STATES),
        "clock": tuple(map(str, ClockState)),
    }
    for name, allowed in known.items():
        value = getattr(options, name)
        if value is not None and value not in allowed:
            raise InvalidOptionError(refusal(name, value, allowed))
    if options.library not in (None, AUTO, *ENGINES):
        library_of(str(options.library))
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
    is_calibrated: int  # 1, or `AS_PRESET`
    correction_factor: float
    correction_trust: float


_BREAKDOWN = (*Times._fields, "correction_us", "hidden_us")
_TRAFFIC = {
    "a_bytes": "dram_a_bytes", "b_bytes": "dram_b_bytes", "scale_bytes": "dram_scale_bytes", "c_bytes": "dram_c_bytes",
}  # fmt: skip


def pack_gpu(arch: GpuSpec, types: GemmTypes, options: RunOptions, *, call_weights: float = 1.0) -> Packed:
    """Pack the kernels that run GEMMs of some data types on a GPU.

    Their answers are those of physics alone, unless `options.correction` is True.

    Args:
        options: library, states of L2 and clock, quantization and correction.
        call_weights: bytes of weights that a repeated call reads in all, over those of each GEMM.

    Raises:
        InvalidOptionError: there is no such library or state, or A is no narrower than what it is quantized from.
        UnsupportedError: GPU, types and library do not go together.
    """
    options = check_options(options)
    l2, clock = str(options.l2), str(options.clock)
    quantization = quantization_of(types, options.quantize_from)
    if quantization.num_passes > 0:
        check_carried(arch, "quantize_from")
    is_carried = quantization.num_passes > 0 and arch.carried_from is not None  # kernels that another maker's stand for
    library = default_library(arch, types) if options.library in (None, AUTO) else str(options.library)
    rules = library_of(HYPOTHETICAL if library == AUTO else library)
    rules.check_layout(arch, types)
    is_ours = library == OURS or (library == AUTO and has_our_kernels(arch, types))
    if library == OURS:
        rules.check(arch, types)
        check_w4a16_types(arch, types)
    elif library == AUTO:
        library = HYPOTHETICAL

    of_engine = engine_kernel(library, arch, types)

    def pack_generic(load_bytes: int = LOAD_BYTES[0]) -> Packed:
        family = rules.family(arch, types, load_bytes=load_bytes)
        coefficients, origin = coefficients_for(arch, rules.name, family)
        if quantization.num_passes > 0:
            coefficients = coefficients_for(arch, TRTLLM, QUANTIZE.name)[0] | coefficients
        correction, carried = None, None
        if options.correction:
            if load_bytes == LOAD_BYTES[0]:  # of rows off 16 bytes versions are not told apart
                check_version(preset_of(arch) or arch, rules.name, family, types, options, GPU_MODEL_VERSION)
            correction, carried = _corrected(arch, rules.name, family, types, options)
        few_rows = rules.few_row_family(arch, types)
        levels = load_levels(rules.padding(arch.sm_arch, types))
        make_fallback: Callable[[], Packed] = partial(pack_others, [num for num in levels if num < load_bytes])
        if few_rows is not None:
            make_fallback = partial(pack_gpu, arch, types, options._replace(library="cublas"))
        return pack_kernels(
            arch, types, library, coefficients, l2=l2, clock=clock,
            is_calibrated=origin.is_calibrated and not (is_carried or (of_engine and of_engine.other_log)),
            load_bytes=load_bytes, call_weights=call_weights, quantization=quantization, correction=correction,
            carried=carried, make_fallback=make_fallback, most_rows=None if few_rows is None else few_rows.most_rows,
        )  # fmt: skip

    def pack_others(loads: Sequence[int]) -> Packed:
        if loads and rules.runs_unaligned(types):
            return pack_generic(loads[0])
        return pack_no_kernels(arch, types, library, l2=l2, clock=clock)

    if not is_ours:
        return pack_generic()
    families = W4A8_FAMILIES if types.a.dtype is DType.FP8 else W4A16_SETS
    found = {family: coefficients_for(arch, OURS, family) for family in families}
    correction, carried = _corrected(arch, OURS, ALL_OURS, types, options) if options.correction else (None, None)
    return pack_w4a16(
        arch, types, {family: values for family, (values, _) in found.items()}, l2=l2, clock=clock,
        is_calibrated=all(
            origin.is_calibrated for family, (_, origin) in found.items() if family not in W4A16_GROUPED_FAMILIES
        ),
        make_fallback=partial(pack_others, LOAD_BYTES), correction=correction, carried=carried,
    )  # fmt: skip


def _corrected(
    arch: GpuSpec, library: str, family: str, types: GemmTypes, options: RunOptions
) -> tuple[PackedCorrection | None, Carried | None]:
    """Return the trees that correct answers, and the other answers that do.

    A changed spec takes the factor of the preset that it was made of, a state without timings that of the nearest one.
    """
    base = preset_of(arch)
    near = None if base is None else nearest_corrected(base, library, family, types, options, GPU_MODEL_VERSION)
    if base is None or near is None:
        return None, None
    correction = reference = ceiling = None
    if not is_preset(arch):
        reference = _packed_again(data_root(), base, types, options)
    elif (near.l2, near.clock) == (options.l2, options.clock):
        correction = correction_for(base, library, family, types, near, GPU_MODEL_VERSION)
    else:
        reference = _packed_again(data_root(), base, types, options._replace(l2=near.l2, clock=near.clock))
    if near.l2 == L2State.WARM:  # learned apart from cold
        ceiling = _packed_again(data_root(), arch, types, options._replace(l2=str(L2State.COLD)))
    if reference is None and ceiling is None:
        return correction, None
    return correction, Carried(reference, ceiling, read_only(pack_limits(arch, types, options)))


@lru_cache(maxsize=128)
def _packed_again(root: Path, arch: GpuSpec, types: GemmTypes, options: RunOptions) -> Packed:  # noqa: ARG001
    """Pack what answers of several specs and states take their correction from."""
    return pack_gpu(arch, types, options)


def _pick(*names: str) -> operator.itemgetter[Any]:
    """Return what takes these fields of a record that is a tuple."""
    return operator.itemgetter(*((GPU_COST_DTYPE.names or ()).index(name) for name in names))


_CONFIG_OF = _pick(*KernelConfig._fields)
_TERMS_OF = _pick(*Times._fields)
_TRAFFIC_OF = _pick(*_TRAFFIC.values())
_TOTALS_OF = _pick("latency_us", "compute_us", "dram_us", "dram_bytes", "bound", "physics_us")
_COUNTS_OF = _pick(
    "smem_bytes", "active_sms", "ctas_per_sm", "num_ctas", "num_waves", "num_candidates", "num_bounded",
    "is_calibrated", "correction_factor", "correction_trust",
)  # fmt: skip


_AS_PYTHON = struct.Struct("".join(GPU_COST_DTYPE[name].char for name in GPU_COST_DTYPE.names or ()))


def unpack_gpu_cost(record: np.void) -> GpuCost:
    """Turn a record of `GPU_COST_DTYPE` into Python values.

    Raises:
        KeyError, ValueError, IndexError: the record holds a code that does not exist.
    """
    values = _AS_PYTHON.unpack(record.tobytes())  # in a third of the time of `tolist`
    family, m, n, k, cluster_m, cluster_n, warps, stages, schedule, work, split_k, order, swizzle = _CONFIG_OF(values)
    config = KernelConfig(
        _FAMILY_NAMES[family], m, n, k, cluster_m, cluster_n, warps, stages, _SCHEDULES[schedule],
        _DECOMPOSITIONS[work], split_k, _RASTER_ORDERS[order], swizzle,
    )  # fmt: skip
    latency_us, compute_us, dram_us, dram_bytes, bound, physics_us = _TOTALS_OF(values)
    smem, sms, ctas_per_sm, ctas, waves, num_candidates, num_bounded, *correction = _COUNTS_OF(values)
    terms = _TERMS_OF(values)
    correction_us = latency_us - physics_us
    hidden_us = latency_us - (sum(terms) + correction_us)
    times = (*terms, correction_us, hidden_us)
    breakdown = FrozenDict({name: us for name, us in zip(_BREAKDOWN, times, strict=True)})  # noqa: C416  faster
    traffic = FrozenDict({name: size for name, size in zip(_TRAFFIC, _TRAFFIC_OF(values), strict=True)})  # noqa: C416
    return GpuCost(
        config, latency_us, physics_us, compute_us, dram_us, dram_bytes, _BOUND_WORDS[bound], breakdown, traffic, smem,
        sms, ctas_per_sm, ctas, waves, num_candidates, FrozenDict(lower_bound=num_bounded), *correction,
    )  # fmt: skip
