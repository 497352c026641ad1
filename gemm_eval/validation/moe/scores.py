"""How layers of experts and their grouped GEMMs are predicted, whole models held out; and their calibrations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gemm_eval.arch import GpuSpec, list_archs, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu import (
    GPU_MODEL_VERSION,
    Calibration,
    ErrorFigures,
    Library,
    calibration_path,
    fit_intervals,
    library_of,
    load_calibration,
)
from gemm_eval.models.gpu.families import FAMILIES, Family
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import fit_roof
from gemm_eval.validation.fit import provenance, rounded, sha256_of
from gemm_eval.validation.metrics import REGIMES, Metrics, error_figures, measure_errors
from gemm_eval.validation.moe.model import PackedLayers, fit_layers, pack_grouped, pack_layers
from gemm_eval.validation.moe.tables import (
    GroupedTimings,
    LayerTimings,
    list_grouped_timings,
    list_layer_timings,
)
from gemm_eval.validation.tables import measured_root
from gemm_eval.validation.timings import Floats, Mask
from gemm_eval.words import refusal

__all__ = [
    "MODEL",
    "ROOFLINE",
    "LayerLine",
    "calibrate_layers",
    "find_layer_timings",
    "free_coefficients",
    "gpus_with_layers",
    "held_out",
    "score_layers",
]

AnyTimings = LayerTimings | GroupedTimings

MODEL, ROOFLINE = "gemm_eval", "fitted roofline"
"""Who predicts."""

_GEMM = (
    "kernel_us", "ramp_us", "step_cycles", "tile_cycles", "epilogue_bytes_per_cycle", "sm_l2_frac", "dram_frac",
    "l2_first", "matrix_frac",
)  # fmt: skip
_PERSISTENT = ("pingpong_cycles",)
_MULTISTAGE = ("l2_hold_frac",)
_COOPERATIVE = ("coop_step_cycles", "coop_tile_cycles", "l2_frac", "l2_hold_frac", "outside_rows_per_cycle")
_DEQUANT, _CUT_TILES = ("dequant", "dequant_exposed"), ("fixup_us", "reduce_frac")
_COMPILED = ("l2_frac", "load_wait_cycles")
# one tile has most of the rows, and small kernels hardly differ: defaults, so that fits say the same of all GPUs
_NOT_OF_COMPILED = {
    "matrix_frac", "sm_l2_frac", "step_cycles", "l2_first", "moe_token_ns", "moe_token_expert_ps", "moe_row_ns",
    "moe_active_ns", "moe_grouped_router_ns",
}  # fmt: skip
# activations that are kernels of their own, with CTAs of each expert or of all rows
_OF_ONE_FAMILY = {"moe_most_row_ns": "sm100_deepgemm_moe", "moe_any_row_us": "gen_moe_fp8"}
# of fused kernels that chain both GEMMs these say nothing that the others do not: fits end where they are absent
_NOT_OF_GEN = {"tile_cycles", "l2_first", "moe_token_ns", "moe_expert_ns", "moe_row_ns"}


class LayerLine(NamedTuple):
    """Errors on the rows of a table and a regime of tokens, or of one model.

    Attributes:
        gpu, data, library, dtype: what was measured.
        group: a regime (``decode``, ``mid``, ``prefill``: tokens of the layer; ``all``) or a model.
        errors: by predictor.
    """

    gpu: str
    data: str
    library: str
    dtype: str
    group: str
    errors: dict[str, Metrics]

    @property
    def is_regime(self) -> bool:
        """Whether the group is one of tokens, not a model."""
        return self.group in {regime.name for regime in REGIMES}


def free_coefficients(family: Family) -> tuple[str, ...]:
    """Return the names of the coefficients that layers, or grouped GEMMs, tell something about."""
    names = list(_GEMM)
    names += _PERSISTENT if family.is_warp_specialized else _MULTISTAGE
    if Schedule.COOPERATIVE in {tile.schedule for tile in family.dense_tiles(family.sm_archs[0], DType.BF16)}:
        names += _COOPERATIVE
    if family.name == "marlin_moe":
        names += (*_DEQUANT, *_CUT_TILES)
    if family.name == "triton_moe_mxfp4":
        names += _DEQUANT
    if family.is_compiled:
        names += _COMPILED
    names += [item.name for item in family.coefficients if item.name.startswith("moe_")]
    left_out = {name for name, only in _OF_ONE_FAMILY.items() if only != family.name}
    if family.is_compiled:
        left_out |= _NOT_OF_COMPILED
    if family.name.startswith("gen_moe"):
        left_out |= _NOT_OF_GEN
    return tuple(name for name in names if name not in left_out)


# coefficients and the column of `MoeWork` that multiplies each: where a table has one value of it, the term looks like
# that of a simpler coefficient, and no fit can tell the two apart
_TOLD_BY = {
    "moe_token_expert_ps": "num_experts", "moe_expert_ns": "num_local_experts",
    "moe_grouped_router_ns": "has_grouped_router",
}  # fmt: skip


class Told(NamedTuple):
    """Facts that a table tells of the coefficients of its family.

    Attributes:
        free: names of those that are fitted.
        held: value of each that the table cannot tell, but tables of other types of the library can.
        sources: where each value of `held` is from.
    """

    free: tuple[str, ...]
    held: dict[str, float]
    sources: dict[str, str]


def told_by(arch: GpuSpec, timings: AnyTimings, packed: PackedLayers, train: Mask) -> Told:
    """Return what is fitted on rows of a table, and what is shared with other types of its library on the same GPU.

    A coefficient that these rows cannot tell is the mean of those that were fitted on such tables, or keeps its
    default: left free, it would end anywhere in its range, and rows that are held out would pay for it.

    Args:
        arch, timings, packed: the table.
        train: [rows], those of the fit.
    """
    library = library_of(timings.library)
    family = library.family(arch, timings.types)
    free, held, sources = [], {}, {}
    for name in free_coefficients(FAMILIES[family]):
        column = getattr(packed.work, _TOLD_BY[name]) if packed.work is not None and name in _TOLD_BY else None
        if column is None or np.ptp(column[train[packed.row_of]]) > 0:
            free.append(name)
        elif siblings := _fitted_on_siblings(arch, library, family, name):
            held[name] = float(np.mean(list(siblings.values())))
            sources[name] = f"mean of {', '.join(siblings)}: these rows have one value of {_TOLD_BY[name]}"
    return Told(tuple(free), held, sources)


def _fitted_on_siblings(arch: GpuSpec, library: Library, family: str, name: str) -> dict[str, float]:
    """Return the values of a coefficient that were fitted for other families of a library on a GPU, by family."""
    paths = {other: calibration_path(arch.name, library.name, other) for other in library.grouped_families}
    fitted = {other: load_calibration(path) for other, path in paths.items() if other != family and path.is_file()}
    return {other: found.coefficients[name] for other, found in fitted.items() if name in found.fitted}


def gpus_with_layers() -> list[str]:
    """Return the GPUs with measured layers or grouped GEMMs, by name."""
    return [name for name in list_archs() if measured_root(name).is_dir() and find_layer_timings(name)]


def find_layer_timings(gpu: str, names: Sequence[str] = ()) -> list[AnyTimings]:
    """Return the measured layers and grouped GEMMs of a GPU: all, or those named (``triton-bf16``).

    Raises:
        InvalidOptionError: none of that name.
    """
    found: list[AnyTimings] = [*list_layer_timings(gpu), *list_grouped_timings(gpu)]
    by_name = {item.name.split("/")[-1] if isinstance(item, LayerTimings) else item.name: item for item in found}
    for name in names:
        if name not in by_name:
            raise InvalidOptionError(refusal("data", name, tuple(by_name)))
    return [by_name[name] for name in names] if names else found


def pack_timings(arch: GpuSpec, timings: AnyTimings, seed: int = 0) -> PackedLayers:
    """Pack rows of either kind."""
    return pack_grouped(arch, timings) if isinstance(timings, GroupedTimings) else pack_layers(arch, timings, seed)


def held_out(arch: GpuSpec, timings: AnyTimings, seed: int = 0) -> tuple[PackedLayers, Floats]:
    """Return predictions [rows] in microseconds, each by a fit that has not seen the row's model.

    Of a table of one model each half of its tokens is held out of the other.
    """
    packed = pack_timings(arch, timings, seed)
    predicted = np.zeros(len(timings))
    for mask in _folds(timings):
        told = told_by(arch, timings, packed, ~mask)
        fitted = fit_layers(arch, timings, packed, ~mask, told.free, seed, told.held)
        predicted[mask] = fitted.predict(timings, packed, mask)[mask]
    return packed, predicted


def _folds(timings: AnyTimings) -> list[Mask]:
    models = np.array(timings.models)
    names = np.unique(models)
    if len(names) > 1:
        return [models == name for name in names]
    is_odd = np.unique(timings.num_tokens, return_inverse=True)[1] % 2 == 1
    return [is_odd, ~is_odd]


def score_layers(names: Sequence[str], data: Sequence[str] = (), seed: int = 0) -> Iterator[LayerLine]:
    """Yield the errors of each table of some GPUs, whole models held out, by regime and by model.

    Args:
        names: arch names; ``all``: every GPU with such timings.
        data: names of tables; none: all.
        seed: of the draws of loads, and of rows in fits.

    Raises:
        InvalidOptionError: no such GPU or table.
    """
    known = gpus_with_layers()
    for name in known if list(names) == ["all"] else names:
        if name not in known:
            raise InvalidOptionError(refusal("gpu", name, (*known, "all")))
        arch = load_arch(name, GpuSpec)
        for timings in find_layer_timings(name, data):
            yield from _lines(arch, timings, seed)


def _lines(arch: GpuSpec, timings: AnyTimings, seed: int) -> Iterator[LayerLine]:
    packed, predicted = held_out(arch, timings, seed)
    roofline = _held_out_roofline(arch, timings, packed)
    models, tokens = np.array(timings.models), timings.num_tokens
    groups: dict[str, Mask] = {}
    for regime in REGIMES:
        most = np.inf if regime.max_rows is None else regime.max_rows
        groups[regime.name] = (tokens >= regime.min_rows) & (tokens <= most)
    groups |= {name: models == name for name in dict.fromkeys(timings.models)}
    has_work = predicted > 0.0
    for group, mask in groups.items():
        some = mask & has_work
        if some.any():
            errors = {
                name: measure_errors(timings.measured_us[some], values[some])
                for name, values in ((ROOFLINE, roofline), (MODEL, predicted))
            }
            yield LayerLine(arch.name, timings.name, timings.library, timings.dtype, group, errors)


_MOST_OVERHEAD_US = 100.0  # of a roofline's layer: a dozen small kernels


def _held_out_roofline(arch: GpuSpec, timings: AnyTimings, packed: PackedLayers) -> Floats:
    """The roofline with constants that are fitted on the other models; 0 of rows without any work."""
    compute_us, dram_us = _roofs(arch, timings, packed)
    predicted, has_work = np.zeros(len(timings)), dram_us > 0.0
    for mask in _folds(timings):
        train, held = ~mask & has_work, mask & has_work
        roof = fit_roof(compute_us[train], dram_us[train], timings.measured_us[train], _MOST_OVERHEAD_US)
        predicted[held] = roof.predict(compute_us[held], dram_us[held])
    return predicted


def _roofs(arch: GpuSpec, timings: AnyTimings, packed: PackedLayers) -> tuple[Floats, Floats]:
    """Times at the data sheet's rates of a row's GEMMs, means over draws: weights of experts with rows, A and C."""
    types, sizes = timings.types, packed.sizes.astype(float)
    active, rows = sizes[:, 0].copy(), sizes[:, 0] * sizes[:, 1]
    for gemm in np.flatnonzero(packed.layouts.is_grouped(len(sizes))).tolist():
        some = slice(*packed.layouts.starts[packed.layouts.of[gemm] :][:2].tolist())
        counts = packed.layouts.counts[some]
        active[gemm], rows[gemm] = counts.sum(), (counts * packed.layouts.rows[some]).sum()
    K, N = sizes[:, 2], sizes[:, 3]
    compute = 2.0 * rows * K * N / (arch.peak_tflop_per_s(types.a.dtype) * 1e6)
    bits = active * K * N * types.b.dtype.bits + rows * (K * types.a.dtype.bits + N * types.c.bits)
    dram = bits / 8.0 / bytes_per_us(arch.dram_gb_per_s)
    mean = np.maximum(packed.num_draws, 1)
    of_runs = (np.append(values, 0.0)[packed.gemm_rows].sum(axis=1) for values in (compute, dram))
    sums = (np.bincount(packed.row_of, values, minlength=len(timings)) for values in of_runs)
    compute_us, dram_us = (total / mean for total in sums)
    return compute_us, dram_us


def calibrate_layers(arch: GpuSpec, timings: AnyTimings, seed: int = 0) -> Calibration:
    """Fit the family of a library that a table is of, on all its rows; errors are of whole models that are held out.

    Raises:
        InvalidInputError: a table of another GPU.
        UnsupportedError: the library does not run these types on this GPU.
    """
    if timings.gpu != arch.name:
        raise InvalidInputError(f"{timings.name} is of {timings.gpu}, not of {arch.name}")
    library = library_of(timings.library)
    packed, predicted = held_out(arch, timings, seed)
    everything = np.ones(len(timings), np.bool_)
    told = told_by(arch, timings, packed, everything)
    fitted = fit_layers(arch, timings, packed, everything, told.free, seed, told.held)
    kept = predicted > 0.0
    measured = timings.measured_us[kept]
    folder = measured_root(arch.name) / timings.name
    errors = ErrorFigures(
        data=timings.name, sha256=sha256_of(folder.with_suffix(".parquet")), **error_figures(measured, predicted[kept])
    )
    intervals = fit_intervals(timings.mean_rows[kept], np.log(measured / predicted[kept]))
    return Calibration(
        gpu=arch.name,
        library=library.name,
        family=library.family(arch, timings.types),
        model_version=GPU_MODEL_VERSION,
        coefficients=rounded(fitted.coefficients),
        fitted=told.free,
        shared=told.sources,
        errors=(errors,),
        intervals=intervals,
        **provenance(len(_folds(timings)), "rows", seed, "model"),
    )
