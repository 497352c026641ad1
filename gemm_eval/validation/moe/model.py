"""The model of a layer of experts over many measured rows at once, for given coefficients, and their fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.jit import read_only
from gemm_eval.models.gpu import (
    MOE_LAYER,
    Joined,
    coefficients_for,
    join_packed,
    layer_terms,
    library_of,
    pack_bound_columns,
    pack_coefficients,
    pack_kernels,
)
from gemm_eval.models.gpu.families import FAMILIES, default_coefficients
from gemm_eval.moe import make_runs, works_of
from gemm_eval.search import OF_GENERIC, run_in_chunks
from gemm_eval.validation.fit import Ranges, Search, fit_logs
from gemm_eval.validation.moe.tables import GroupedTimings, LayerTimings
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.workload import Layouts, MoeWork, pack_layouts, run_options, without_lone_groups

__all__ = ["LayerModel", "PackedLayers", "fit_layers", "layer_model", "pack_grouped", "pack_layers"]

_SEARCH = Search(loss_scale=0.1, difference=0.01, off_bounds=0.01, evaluations=16)
_OF_LAYERS = {item.name for item in MOE_LAYER}
_FIT_ROWS = 700  # rows of a fit, drawn at random: more change no figure


class PackedLayers(NamedTuple):
    """Rows of a table as grouped GEMMs, and the runs that they are of: one rank in one draw of a row."""

    kernels: Joined
    type_of: Ints  # [gemms], index into the joined kernels
    sizes: Ints  # [gemms, 4] of G, M, K, N
    layouts: Layouts  # of the GEMMs
    gemm_rows: Ints  # [runs, GEMMs of a run], index into the GEMMs; -1: none, as the rank has no token
    row_of: Ints  # [runs], row of the table
    work: MoeWork | None  # arrays [runs]; None: rows are GEMMs alone
    num_draws: Ints  # [rows]


def pack_grouped(arch: GpuSpec, timings: GroupedTimings) -> PackedLayers:
    """Pack rows that are one grouped GEMM each, with default coefficients.

    Raises:
        UnsupportedError: the library does not run these types on this GPU.
    """
    types, groups = timings.types, timings.row_groups
    defaults = default_coefficients(library_of(timings.library).family(arch, types))
    kernels = pack_kernels(arch, types, timings.library, defaults, l2="cold", clock="burst", is_calibrated=False)
    G, M = ([of(load) for load in groups] for of in (len, max))
    depth, columns = (timings.frame[name].to_numpy(np.int64) for name in ("K", "N"))
    sizes, layouts = without_lone_groups(np.column_stack([G, M, depth, columns]), pack_layouts(groups))
    num = len(timings)
    zeros, rows = read_only(np.zeros(num, np.int64)), np.arange(num)
    return PackedLayers(
        join_packed([kernels]), zeros, read_only(sizes), layouts, rows[:, None], rows, None, np.ones(num, np.int64)
    )


def pack_layers(arch: GpuSpec, timings: LayerTimings, seed: int = 0, l2: str = "warm") -> PackedLayers:
    """Pack rows as `moe_layers` does, with nothing that a user does not say, but with default coefficients.

    Args:
        arch, timings: the layers.
        seed: of the draws of loads.
        l2: ``warm``, as all tables were timed; ``cold``, as layers of a model are.

    Raises:
        UnsupportedError: the library does not run these types on this GPU.
    """
    layers, row_of = timings.layers(seed)
    types = timings.types
    runs = make_runs(layers, [types] * len(layers), GEMMEvaluator(arch), run_options(timings.library, l2, None))
    defaults = default_coefficients(library_of(timings.library).family(arch, types))
    packed = [
        pack_kernels(
            arch,
            types,
            str(kind.options.library),
            defaults,
            l2=l2,
            clock=str(kind.options.clock),
            is_calibrated=False,
            call_weights=kind.call_weights,
        )
        for kind in runs.batch.kinds
    ]
    batch = runs.batch
    sizes, layouts = without_lone_groups(batch.sizes, batch.layouts(range(len(batch.sizes))))
    works = [(chosen, work) for _, chosen, work in works_of(runs)]
    names = [name for name in MoeWork._fields if name != "types"]
    order = np.argsort(np.concatenate([chosen for chosen, _ in works]), kind="stable")
    merged = {
        name: np.concatenate([np.broadcast_to(getattr(work, name), chosen.shape) for chosen, work in works])[order]
        for name in names
    }
    row_of_run = row_of[runs.layer_of]
    return PackedLayers(
        join_packed(packed), read_only(batch.kind_of), read_only(sizes), layouts, runs.gemm_rows, row_of_run,
        MoeWork(**merged, types=types), np.bincount(row_of_run, minlength=len(timings)),
    )  # fmt: skip


@dataclass(frozen=True)
class LayerModel:
    """The model of a library's layers on a GPU with some coefficients.

    Attributes:
        arch: the GPU.
        library: whose kernels.
        coefficients: of the library's family for the types.
    """

    arch: GpuSpec
    library: str
    coefficients: Mapping[str, float]
    name: str = field(default="gemm_eval")

    def predict(
        self, timings: LayerTimings | GroupedTimings, packed: PackedLayers, mask: Mask | None = None,
        gemms_us: Floats | None = None,
    ) -> Floats:  # fmt: skip
        """Return the time of each row, in microseconds, the mean over draws; only where `mask` is true, else 0.

        Args:
            timings, packed: the rows.
            mask: [rows]; None: all.
            gemms_us: times of the GEMMs, as `gemms_us` returns them; None: they are evaluated.
        """
        runs = np.arange(len(packed.row_of)) if mask is None else np.flatnonzero(mask[packed.row_of])
        if gemms_us is None:
            gemms_us = self.gemms_us(packed, mask)
        total = gemms_us[packed.gemm_rows[runs]].sum(axis=1)
        if packed.work is not None:
            of_runs = {name: value[runs] for name, value in packed.work._asdict().items() if name != "types"}
            work = packed.work._replace(**of_runs)
            total += sum(layer_terms(self.arch, self.coefficients, work).values(), np.zeros(len(runs)))
        sums = np.bincount(packed.row_of[runs], total, minlength=len(timings))
        mean: Floats = sums / np.maximum(packed.num_draws, 1)
        return mean

    def gemms_us(self, packed: PackedLayers, mask: Mask | None = None) -> Floats:
        """Return the time of each GEMM of the rows where `mask` is true, else 0; the last is that of no GEMM."""
        rows = packed.gemm_rows if mask is None else packed.gemm_rows[mask[packed.row_of]]
        gemms = np.unique(rows[rows >= 0])
        coefficients = self._packed(packed)
        found: Floats = np.zeros(len(packed.sizes) + 1)
        found[gemms] = _best_us(
            packed.kernels, _columns(packed.kernels, coefficients), coefficients, packed.type_of[gemms],
            packed.sizes[gemms], packed.layouts.take(gemms),
        )  # fmt: skip
        return found

    def _packed(self, packed: PackedLayers) -> npt.NDArray[np.void]:
        params = packed.kernels.params
        return read_only(
            np.stack([pack_coefficients(params[place : place + 1], self.coefficients) for place in range(len(params))])
        )


def _columns(kernels: Joined, coefficients: npt.NDArray[np.void]) -> Floats:
    columns = [
        pack_bound_columns(kernels.params[kind : kind + 1], coefficients[kind], kernels.candidates[first:stop])
        for kind, (first, stop) in enumerate(kernels.ranges.tolist())
    ]
    return read_only(np.concatenate(columns, axis=1))


def _best_us(
    kernels: Joined, columns: Floats, coefficients: npt.NDArray[np.void], type_of: Ints, sizes: Ints, layouts: Layouts
) -> Floats:
    latency_us, which = np.empty(len(sizes)), np.empty((len(sizes), 2), np.int64)

    def work(start: int, stop: int) -> None:
        OF_GENERIC.find_best_rows(
            kernels.params, kernels.candidates, columns, kernels.ranges, coefficients, read_only(type_of),
            read_only(sizes), layouts, start, stop, latency_us, which,
        )  # fmt: skip

    run_in_chunks(work, len(sizes))
    return latency_us


def layer_model(arch: GpuSpec, timings: LayerTimings | GroupedTimings) -> LayerModel:
    """Return the model with the coefficients that it has for this GPU, library and types."""
    rules = library_of(timings.library)
    return LayerModel(arch, rules.name, coefficients_for(arch, rules.name, rules.family(arch, timings.types))[0])


def fit_layers(
    arch: GpuSpec, timings: LayerTimings | GroupedTimings, packed: PackedLayers, train: Mask, free: Sequence[str],
    seed: int = 0, held: Mapping[str, float] = MappingProxyType({}),
) -> LayerModel:  # fmt: skip
    """Fit coefficients of the library's family on some rows, from its defaults on.

    Args:
        arch: the GPU.
        timings, packed: the rows.
        train: [rows], those that count.
        free: names of the coefficients that are fitted; others keep their defaults.
        seed: draws the rows of the fit.
        held: values of coefficients that no row tells, in place of their defaults.
    """
    rules = library_of(timings.library)
    family = FAMILIES[rules.family(arch, timings.types)]
    items = [item for item in family.coefficients if item.name in free]
    start = family.defaults | dict(held)
    ranges = Ranges(items, start)
    chosen = np.flatnonzero(train & (packed.num_draws > 0) & (np.bincount(packed.row_of, minlength=len(timings)) > 0))
    if len(chosen) > _FIT_ROWS:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, _FIT_ROWS, replace=False))
    mask = np.zeros(len(timings), np.bool_)
    mask[chosen] = True
    model = LayerModel(arch, rules.name, start)
    known: dict[tuple[float, ...], Floats] = {}  # times of the GEMMs, which most coefficients of a layer leave alone

    def predict(values: dict[str, float]) -> Floats:
        changed = replace(model, coefficients=values)
        key = tuple(value for name, value in values.items() if name not in _OF_LAYERS)
        if key not in known:
            known.clear()
            known[key] = changed.gemms_us(packed, mask)
        return changed.predict(timings, packed, mask, known[key])[chosen]

    shares = ranges.shares(start, _SEARCH.off_bounds)
    found = fit_logs(ranges, predict, timings.measured_us[chosen], shares, _SEARCH)
    return replace(model, coefficients=ranges.values(found))
