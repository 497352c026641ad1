"""The exam of layers of experts and their grouped GEMMs: whole models held out; their fits and calibrations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.jit import read_only
from gemm_eval.mapping import Schedule
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.gpu import Features
from gemm_eval.models.gpu.families import FAMILIES, Family, default_coefficients
from gemm_eval.moe import make_runs, mean_work, works_of
from gemm_eval.search import OF_GENERIC, run_in_chunks
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import fit_roof
from gemm_eval.validation.exam import FITTED, MODEL, Exam, Groups, Predict, errors_of
from gemm_eval.validation.fit import Ranges, Search, provenance, rounded
from gemm_eval.validation.learned import PHYSICS, Subject
from gemm_eval.validation.metrics import REGIMES
from gemm_eval.validation.subjects import Fitted, fitted
from gemm_eval.validation.subjects import experts_tables as measured
from gemm_eval.validation.subjects.dense import calibration_out, family_title
from gemm_eval.validation.tables import Floats, Ints, Mask, measured_root
from gemm_eval.words import check_word
from gemm_eval.workload import Layouts, MoeWork, pack_layouts, run_options, without_lone_groups

_MOST_OVERHEAD_US = 100.0  # of a roofline's layer: a dozen small kernels
_SEARCH = Search(loss_scale=0.1, difference=0.01, off_bounds=0.01, evaluations=16)
_AITER = "mfma_moe"  # families of aiter's kernels
_HOLD = 3.0
"""Of their fits (`Search.hold`): few models leave much untold, which would end anywhere. Of 0, 1.5, 3 and
5 it has the least error on whole models that were held out, on any five of the six tables."""
_OF_LAYERS = {item.name for item in gpu_model.MOE_LAYER}
_FIT_ROWS = 700  # rows of a fit, drawn at random: more change no figure


class PackedLayers(NamedTuple):
    """Rows of a table as grouped GEMMs, and the runs that they are of: one rank in one draw of a row."""

    kernels: gpu_model.Joined
    type_of: Ints  # [gemms], index into the joined kernels
    sizes: Ints  # [gemms, 4] of G, M, K, N
    layouts: Layouts  # of the GEMMs
    gemm_rows: Ints  # [runs, GEMMs of a run], index into the GEMMs; -1: none, as the rank has no token
    row_of: Ints  # [runs], row of the table
    work: MoeWork | None  # arrays [runs]; None: rows are GEMMs alone
    num_draws: Ints  # [rows]
    outside: tuple[str, ...] = ()  # terms of a layer that the rows leave out


def pack_table(arch: GpuSpec, table: measured.ExpertTable, seed: int = 0, l2: str = "") -> PackedLayers:
    """Pack rows with default coefficients; `seed` draws loads; `l2` is of layers; empty: as the table was timed."""
    types, num = table.types, len(table)
    defaults = default_coefficients(gpu_model.library_of(table.library).family(arch, types))

    def kernels(library: str, l2: str, clock: str, call_weights: float = 1.0) -> gpu_model.Packed:
        return gpu_model.pack_kernels(
            arch, types, library, defaults, l2=l2, clock=clock, is_calibrated=False, call_weights=call_weights
        )

    if isinstance(table, measured.GroupedTable):
        groups, rows = table.row_groups, np.arange(num)
        G, M = ([of(load) for load in groups] for of in (len, max))
        sizes, layouts = without_lone_groups(
            np.column_stack([G, M, table.column("K"), table.column("N")]), pack_layouts(groups)
        )
        joined, zeros = gpu_model.join_packed([kernels(table.library, "cold", "burst")]), np.zeros(num, np.int64)
        return PackedLayers(
            joined, read_only(zeros), read_only(sizes), layouts, rows[:, None], rows, None, np.ones(num, np.int64)
        )  # fmt: skip
    assert isinstance(table, measured.LayerTable)
    l2 = l2 or table.l2
    layers, row_of = table.layers(seed)
    runs = make_runs(layers, [types] * len(layers), GEMMEvaluator(arch), run_options(table.library, l2, None))
    batch = runs.batch
    packed = [
        kernels(str(kind.options.library), l2, str(kind.options.clock), kind.call_weights) for kind in batch.kinds
    ]
    problems = batch.packed((), range(len(batch.sizes)))
    sizes, layouts = without_lone_groups(problems.sizes, problems.layouts)
    works = [(chosen, work) for _, chosen, work in works_of(runs)]
    order = np.argsort(np.concatenate([chosen for chosen, _ in works]), kind="stable")
    merged = {
        name: np.concatenate([np.broadcast_to(getattr(work, name), chosen.shape) for chosen, work in works])[order]
        for name in MoeWork._fields
        if name != "types"
    }
    row_of_run = row_of[runs.layer_of]
    return PackedLayers(
        gpu_model.join_packed(packed), read_only(batch.kind_of), read_only(sizes), layouts, runs.gemm_rows, row_of_run,
        MoeWork(**merged, types=types), np.bincount(row_of_run, minlength=num), table.outside,
    )  # fmt: skip


@dataclass(frozen=True)
class LayerModel:
    """The model of a library's layers on a GPU, with some coefficients of the library's family for the types."""

    arch: GpuSpec
    coefficients: Mapping[str, float]

    def predict(self, packed: PackedLayers, mask: Mask | None = None, gemms_us: Floats | None = None) -> Floats:
        """Return the time of each row, in microseconds, the mean over draws; only where `mask` is true, else 0.

        Args:
            packed: the rows.
            mask: [rows]; None: all.
            gemms_us: times of the GEMMs, as `gemms_us` returns them; None: they are evaluated.
        """
        num_rows = len(packed.num_draws)
        runs = np.arange(len(packed.row_of)) if mask is None else np.flatnonzero(mask[packed.row_of])
        if gemms_us is None:
            gemms_us = self.gemms_us(packed, mask)
        total = gemms_us[packed.gemm_rows[runs]].sum(axis=1)
        if packed.work is not None:
            of_runs = {name: value[runs] for name, value in packed.work._asdict().items() if name != "types"}
            terms = gpu_model.layer_terms(self.arch, self.coefficients, packed.work._replace(**of_runs))
            inside = (us for name, us in terms.items() if name not in packed.outside)
            total += sum(inside, np.zeros(len(runs)))
        return np.bincount(packed.row_of[runs], total, minlength=num_rows) / np.maximum(packed.num_draws, 1)

    def gemms_us(self, packed: PackedLayers, mask: Mask | None = None) -> Floats:
        """Return the time of each GEMM of the rows where `mask` is true, else 0; the last is that of no GEMM."""
        kernels = packed.kernels
        rows = packed.gemm_rows if mask is None else packed.gemm_rows[mask[packed.row_of]]
        gemms = np.unique(rows[rows >= 0])
        params = [kernels.params[kind : kind + 1] for kind in range(len(kernels.params))]
        coefficients = read_only(
            np.stack([gpu_model.pack_coefficients(of_kind, self.coefficients) for of_kind in params])
        )
        bounds = [
            gpu_model.pack_bound_columns(of_kind, coefficients[kind], kernels.candidates[first:stop])
            for kind, (of_kind, (first, stop)) in enumerate(zip(params, kernels.ranges.tolist(), strict=True))
        ]
        columns, layouts = read_only(np.concatenate(bounds, axis=1)), packed.layouts.take(gemms)
        type_of, sizes = read_only(packed.type_of[gemms]), read_only(packed.sizes[gemms])
        best_us, which = np.empty(len(gemms)), np.empty((len(gemms), 2), np.int64)

        def work(start: int, stop: int) -> None:
            OF_GENERIC.find_best_rows(
                kernels.params, kernels.candidates, columns, kernels.ranges, coefficients, type_of, sizes, layouts,
                start, stop, best_us, which,
            )  # fmt: skip

        run_in_chunks(work, len(gemms))
        latency_us: Floats = np.zeros(len(packed.sizes) + 1)
        latency_us[gemms] = best_us
        return latency_us


def fit_layers(
    arch: GpuSpec, table: measured.ExpertTable, packed: PackedLayers, train: Mask, free: Sequence[str],
    seed: int = 0, held: Mapping[str, float] = MappingProxyType({}),
) -> LayerModel:  # fmt: skip
    """Fit the coefficients `free` of the library's family on the rows of `train`; others keep `held`, or defaults."""
    rules = gpu_model.library_of(table.library)
    family = FAMILIES[rules.family(arch, table.types)]
    items = [item for item in family.coefficients if item.name in free]
    start = family.defaults | dict(held)
    ranges = Ranges(items, start)
    chosen = np.flatnonzero(train & (packed.num_draws > 0) & (np.bincount(packed.row_of, minlength=len(table)) > 0))
    if len(chosen) > _FIT_ROWS:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, _FIT_ROWS, replace=False))
    mask = np.zeros(len(table), np.bool_)
    mask[chosen] = True
    model = LayerModel(arch, start)
    times: dict[tuple[float, ...], Floats] = {}  # times of the GEMMs, which most coefficients of a layer leave alone

    def predict(values: dict[str, float]) -> Floats:
        changed = replace(model, coefficients=values)
        key = tuple(value for name, value in values.items() if name not in _OF_LAYERS)
        if key not in times:
            times.clear()
            times[key] = changed.gemms_us(packed, mask)
        return changed.predict(packed, mask, times[key])[chosen]

    search = _SEARCH._replace(hold=_HOLD * family.name.startswith(_AITER))
    return replace(model, coefficients=ranges.fit(predict, table.measured_us[chosen], search, start))


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

# sorting of tokens and quantization are outside aiter's timings (arch/measured/mi355x/moe-aiter)
_NOT_OF_AITER = {
    "moe_fixed_us", "moe_token_ns", "moe_token_expert_ps", "moe_row_ns", "moe_expert_ns", "moe_active_ns",
    "moe_token_frac", "moe_grouped_router_ns",
}  # fmt: skip


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
    if family.name.startswith(_AITER):
        left_out |= _NOT_OF_AITER
    return tuple(name for name in names if name not in left_out)


# coefficients and the column of `MoeWork` that multiplies each: where a table has one value of it, the term looks like
# that of a simpler coefficient, and no fit can tell the two apart
_TOLD_BY = {
    "moe_token_expert_ps": "num_experts", "moe_expert_ns": "num_local_experts",
    "moe_grouped_router_ns": "has_grouped_router",
}  # fmt: skip

_OF_FEW_TOKENS, _MOST_FEW_TOKENS = ("kernel_us", "ramp_us"), 8  # which rows of more tokens hardly tell: defaults hold


class Told(NamedTuple):
    """The coefficients that a table tells, and values and sources of those that only tables of other types tell."""

    free: tuple[str, ...]
    held: dict[str, float]
    sources: dict[str, str]


def told_by(arch: GpuSpec, table: measured.ExpertTable, packed: PackedLayers, train: Mask) -> Told:
    """Return what is fitted on rows of a table, and what is shared with other types of its library on the same GPU.

    A coefficient that these rows cannot tell is the mean of those that were fitted on such tables, or keeps its
    default: left free, it would end anywhere in its range, and rows that are held out would pay for it.
    """
    library = gpu_model.library_of(table.library)
    family = library.family(arch, table.types)
    paths = {name: gpu_model.calibration_path(arch.name, library.name, name) for name in library.grouped_families}
    others = {
        name: gpu_model.load_calibration(path) for name, path in paths.items() if name != family and path.is_file()
    }
    free, held, sources = [], {}, {}
    has_few = table.num_tokens[train].min(initial=_MOST_FEW_TOKENS + 1) <= _MOST_FEW_TOKENS
    for name in free_coefficients(FAMILIES[family]):
        if name in _OF_FEW_TOKENS and not has_few:
            continue
        column = getattr(packed.work, _TOLD_BY[name]) if packed.work is not None and name in _TOLD_BY else None
        if column is None or np.ptp(column[train[packed.row_of]]) > 0:
            free.append(name)
        elif siblings := {other: of.coefficients[name] for other, of in others.items() if name in of.fitted}:
            held[name] = float(np.mean(list(siblings.values())))
            sources[name] = f"mean of {', '.join(siblings)}: these rows have one value of {_TOLD_BY[name]}"
    return Told(tuple(free), held, sources)


def tables(gpu: str) -> dict[str, measured.ExpertTable]:
    """Read the measured layers and grouped GEMMs of a GPU, by name, such as ``triton-bf16``."""
    layers = (measured.LayerTable.read(path) for path in sorted(measured_root(gpu).glob("moe-*/*.parquet")))
    grouped = sorted(path for path in measured_root(gpu).glob("grouped/*.parquet") if "repeat" not in path.stem)
    return {
        **{table.path.stem: table for table in layers},
        **{table.name: table for table in map(measured.GroupedTable.read, grouped)},
    }


def find_tables(gpu: str, names: Sequence[str] = ()) -> list[measured.ExpertTable]:
    """Return the tables of a GPU: all, or those named; InvalidOptionError: none of that name."""
    by_name = tables(gpu)
    for name in names:
        check_word("data", name, by_name)
    return [by_name[name] for name in names or by_name]


def predictions(arch: GpuSpec, table: measured.ExpertTable, seed: int = 0) -> Predict:
    """Return the predictions of a table, ready to be fitted. Rows without any work are 0."""
    layers = pack_table(arch, table, seed)
    compute_us, dram_us = _roofs(arch, table, layers)
    has_work = dram_us > 0.0

    def predict(train: Mask, rows: Mask) -> dict[str, Floats]:
        chosen = told_by(arch, table, layers, train)
        model = fit_layers(arch, table, layers, train, chosen.free, seed, chosen.held)
        known, asked, roof_us = train & has_work, rows & has_work, np.zeros(len(table))
        roof = fit_roof(compute_us[known], dram_us[known], table.measured_us[known], _MOST_OVERHEAD_US)
        roof_us[asked] = roof.predict(compute_us[asked], dram_us[asked])
        return {FITTED: roof_us[rows], MODEL: model.predict(layers, rows)[rows]}

    return predict


def folds_of(table: measured.ExpertTable) -> list[str]:
    """Return the model of each row; of a table of one model halves, by tokens."""
    models = table.models
    if len(set(models)) > 1:
        return models
    return [str(index % 2) for index in np.unique(table.num_tokens, return_inverse=True)[1].tolist()]


def _roofs(arch: GpuSpec, table: measured.ExpertTable, packed: PackedLayers) -> tuple[Floats, Floats]:
    """Return times of a row's GEMMs at the data sheet's rates, means over draws: weights, A and C."""
    types, sizes = table.types, packed.sizes.astype(float)
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
    sums = (np.bincount(packed.row_of, values, minlength=len(table)) for values in of_runs)
    compute_us, dram_us = (total / mean for total in sums)
    return compute_us, dram_us


def calibrate_layers(arch: GpuSpec, table: measured.ExpertTable, seed: int = 0) -> gpu_model.Calibration:
    """Fit the family of a library that a table is of, on all its rows; errors are of whole models that are held out."""
    predicted_us = exam(seed=seed)._replace(learns=None).held_out(arch, [table])[MODEL]
    library, packed = gpu_model.library_of(table.library), pack_table(arch, table, seed)
    everything = np.ones(len(table), bool)
    chosen = told_by(arch, table, packed, everything)
    model = fit_layers(arch, table, packed, everything, chosen.free, seed, chosen.held)
    kept = predicted_us > 0.0
    places = gpu_model.regime_places(table.mean_rows[kept])
    return gpu_model.Calibration(
        gpu=arch.name, library=library.name, family=library.family(arch, table.types),
        model_version=gpu_model.GPU_MODEL_VERSION, coefficients=rounded(model.coefficients), fitted=chosen.free,
        shared=chosen.sources, errors=(errors_of(table, predicted_us),),
        intervals=gpu_model.fit_intervals(places, np.log(table.measured_us[kept] / predicted_us[kept])),
        **provenance(len(set(folds_of(table))), "rows", seed, "model"),
    )  # fmt: skip


def calibrate(arch: str, data: str, seed: int, out: Path | None) -> Iterator[Fitted]:
    """Fit a family of grouped kernels; parameters are the options of the command."""
    spec = load_arch(arch, GpuSpec)
    (table,) = find_tables(spec.name, [data])
    calibration = calibrate_layers(spec, table, seed)
    path = out or calibration_out(spec.name, calibration.library, calibration.family)
    notes = [f"{name} = {calibration.coefficients[name]:.6g}, {why}" for name, why in calibration.shared.items()]
    yield fitted(calibration, path, family_title(calibration), {table.name: len(table)}, notes)


@lru_cache(maxsize=2)
def _mean_work(arch: GpuSpec, table: measured.LayerTable) -> MoeWork:
    """Return the work of each row, the mean over draws."""
    packed = pack_table(arch, table)
    assert packed.work is not None
    return mean_work(packed.work, packed.row_of, len(table))


def committed_us(arch: GpuSpec, sets: Sequence[measured.ExpertTable]) -> tuple[Floats, dict[str, str]]:
    """Return the latencies of rows by committed coefficients, and the digest of these by family."""
    (table,) = sets
    library = gpu_model.library_of(table.library)
    family = library.family(arch, table.types)
    coefficients, _ = gpu_model.coefficients_for(arch, library.name, family)
    digest = gpu_model.physics_digest(coefficients, gpu_model.GPU_MODEL_VERSION)
    return LayerModel(arch, coefficients).predict(pack_table(arch, table)), {family: digest}


def describe(
    arch: GpuSpec, sets: Sequence[measured.ExpertTable], latency_us: Floats
) -> tuple[npt.NDArray[np.str_], Features]:
    """Return the family of each row, and its features; answers for grouped GEMMs alone have no correction."""
    (table,) = sets
    if not isinstance(table, measured.LayerTable):
        return np.full(len(table), ""), Features({}, {})
    family = gpu_model.library_of(table.library).family(arch, table.types)
    return np.full(len(table), family), gpu_model.layer_features(arch, _mean_work(arch, table), latency_us)


# models are few, and some rows are far off: smaller trees that see few features at a time, of absolute errors
_TREES = {"loss": "absolute_error", "max_features": 0.3, "max_leaf_nodes": 15, "min_samples_leaf": 30}
LEARNS = Subject(gpu_model.MOE, gpu_model.GPU_MODEL_VERSION, (), committed_us, describe, _TREES)


def _groups(table: measured.ExpertTable) -> Groups:
    models, tokens = np.array(table.models), table.num_tokens
    groups = {regime.name: regime.mask(tokens) for regime in REGIMES}
    groups |= {name: models == name for name in dict.fromkeys(table.models)}
    for group, mask in groups.items():
        yield {"library": table.library, "dtype": table.dtype, "group": group}, mask


def exam(data: Sequence[str] | None = None, seed: int = 0) -> Exam[measured.ExpertTable]:
    """Return the exam of some tables, or all; `seed` is of the draws of loads, and of rows in fits."""
    if data:
        known = dict.fromkeys(name for path in measured_root("").iterdir() for name in tables(path.name))
        for name in data:
            check_word("data", name, known)
    return Exam(
        read=lambda gpu: [table for name, table in tables(gpu).items() if not data or name in data],
        predict=lambda arch, sets: predictions(arch, sets[0], seed),
        folds=lambda sets: folds_of(sets[0]),
        groups=_groups,
        headline="whole models held out: MAPE of a fitted roofline, and of the model without what was learned beyond "
        "its terms, then the errors of gemm_eval",
        title="{gpu}, {data}: {dtype} by {library}",
        columns={"group": "tokens, or model"},
        baselines={FITTED: "roofline", PHYSICS: "physics"},
        is_main=lambda labels: labels["group"] in {regime.name for regime in REGIMES},
        learns=LEARNS,
    )
