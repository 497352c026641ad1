"""The model of a layer of experts over many measured rows at once, for given coefficients, and their fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.jit import read_only
from gemm_eval.models.gpu import (
    Joined,
    LayerShape,
    coefficients_for,
    join_packed,
    layer_libraries,
    layer_terms,
    library_of,
    pack_bound_columns,
    pack_coefficients,
    pack_kernels,
    padded_inter,
)
from gemm_eval.models.gpu.families import FAMILIES, default_coefficients
from gemm_eval.search import OF_GENERIC, run_in_chunks
from gemm_eval.validation.fit import Ranges, Search, fit_logs
from gemm_eval.validation.moe.tables import GroupedTimings, LayerTimings
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.workload import Layouts, MoeWork, pack_layouts, without_even_groups

__all__ = ["LayerModel", "PackedLayers", "fit_layers", "layer_model", "pack_grouped", "pack_layers"]

NUM_DRAWS = 5
"""Of the loads of a row that were not kept."""

# layers are timed in replays of one graph, so that weights stay that fit in L2; those of both GEMMs, over those of each
_CALL_WEIGHTS = {True: (1.5, 3.0), False: (2.0, 2.0)}  # by whether they are gated
_SEARCH = Search(loss_scale=0.1, difference=0.01, off_bounds=0.01, evaluations=16)
_FIT_ROWS = 700  # rows of a fit, drawn at random: more change no figure


class PackedLayers(NamedTuple):
    """Rows of a table as grouped GEMMs: one of each kind for each row and draw that gives the rank any work."""

    kernels: Joined
    type_of: tuple[Ints, ...]  # [evaluations] of each GEMM, index into the joined kernels
    sizes: tuple[Ints, ...]  # [evaluations, 4] of G, M, K, N, of each GEMM
    layouts: Layouts  # of evaluations
    row_of: Ints  # [evaluations], row of the table
    work: MoeWork | None  # arrays [evaluations]; None: rows are GEMMs alone
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
    sizes, layouts = without_even_groups(np.column_stack([G, M, depth, columns]), pack_layouts(groups))
    num = len(timings)
    zeros, rows = read_only(np.zeros(num, np.int64)), np.arange(num)
    return PackedLayers(
        join_packed([kernels]), (zeros,), (read_only(sizes),), layouts, rows, None, np.ones(num, np.int64)
    )


def pack_layers(arch: GpuSpec, timings: LayerTimings, seed: int = 0, l2: str = "warm") -> PackedLayers:
    """Pack rows with default coefficients.

    Args:
        arch, timings: the layers.
        seed: of the draws of loads.
        l2: ``warm``, as all tables were timed; ``cold``, as layers of a model are.

    Raises:
        UnsupportedError: the library does not run these types on this GPU.
    """
    types, library = timings.types, timings.library
    loads = timings.loads(NUM_DRAWS, seed)
    row_of, groups = [], []
    for row, draws in enumerate(loads):
        for load in draws:
            row_of.append(row)
            groups.append(load)
    rows = np.array([sum(load) for load in groups], np.float64)
    is_run = rows > 0
    kept = np.flatnonzero(is_run).tolist()
    row_at = np.array(row_of)[kept]
    layouts = pack_layouts([groups[place] for place in kept])
    G, M = (np.array([of(groups[place]) for place in kept]) for of in (len, max))
    hidden, local = timings.column("hidden_size"), timings.num_local_experts
    inter = np.array([padded_inter(library, value) for value in timings.inter.tolist()])
    gated = 1 + timings.column("gated")
    names = _libraries(arch, timings, inter)
    unique = list(dict.fromkeys(of for pair in names for of in enumerate(pair)))
    number = {name: place for place, name in enumerate(unique)}
    defaults = default_coefficients(library_of(library).family(arch, types))
    weights = _CALL_WEIGHTS[bool(gated.max() > 1)]
    packed = [
        pack_kernels(arch, types, name, defaults, l2=l2, clock="burst", is_calibrated=False, call_weights=weights[gemm])
        for gemm, name in unique
    ]
    types_of = tuple(read_only(np.array([number[gemm, pair[gemm]] for pair in names])[row_at]) for gemm in (0, 1))
    first = np.stack([G, M, hidden[row_at], (gated * inter)[row_at]], axis=1)
    second = np.stack([G, M, inter[row_at], hidden[row_at]], axis=1)
    work = MoeWork(
        timings.num_tokens[row_at], hidden[row_at], inter[row_at], timings.column("num_experts")[row_at], local[row_at],
        timings.column("topk")[row_at], rows[kept].astype(np.int64),
        np.array([np.count_nonzero(groups[place]) for place in kept]), M, (gated - 1)[row_at], types,
        _has_grouped_router(timings)[row_at],
    )  # fmt: skip
    even = [without_even_groups(sizes.astype(np.int64), layouts) for sizes in (first, second)]
    sizes = (read_only(even[0][0]), read_only(even[1][0]))
    draws_of_row = np.bincount(np.array(row_of), minlength=len(timings))
    return PackedLayers(join_packed(packed), types_of, sizes, even[0][1], row_at, work, draws_of_row)


def _libraries(arch: GpuSpec, timings: LayerTimings, inter: Ints) -> list[tuple[str, str]]:
    engine, _, release = timings.framework.partition(" ")
    known: dict[LayerShape, tuple[str, str]] = {}
    names = []
    columns = (
        timings.num_tokens,
        timings.column("hidden_size"),
        inter,
        timings.num_local_experts,
        timings.column("topk"),
        1 + timings.column("gated"),
    )
    for sizes in zip(*(column.tolist() for column in columns), strict=True):
        shape = LayerShape(*sizes)
        if shape not in known:
            more = {"release": release} if engine == "sglang" else {}
            known[shape] = layer_libraries(arch, timings.library, timings.types, shape, **more)
        names.append(known[shape])
    return names


def _has_grouped_router(timings: LayerTimings) -> Ints:
    """Whether a row is of DeepSeek-V3, the one model of the tables that chooses groups of experts first."""
    hidden, num_experts = timings.column("hidden_size"), timings.column("num_experts")
    return np.array((hidden == 7168) & (num_experts == 256), np.int64)


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

    def predict(self, timings: LayerTimings | GroupedTimings, packed: PackedLayers, mask: Mask | None = None) -> Floats:
        """Return the time of each row, in microseconds, the mean over draws; only where `mask` is true, else 0."""
        some = np.arange(len(packed.row_of)) if mask is None else np.flatnonzero(mask[packed.row_of])
        layouts = packed.layouts.take(some)
        coefficients = self._packed(packed)
        columns = _columns(packed.kernels, coefficients)
        total = np.zeros(len(some))
        if packed.work is not None:
            sizes_of = {name: value[some] for name, value in packed.work._asdict().items() if name != "types"}
            work = packed.work._replace(**sizes_of)
            total += sum(layer_terms(self.arch, self.coefficients, work).values(), np.zeros(len(some)))
        for type_of, sizes in zip(packed.type_of, packed.sizes, strict=True):
            total += _best_us(packed.kernels, columns, coefficients, type_of[some], sizes[some], layouts)
        sums = np.bincount(packed.row_of[some], total, minlength=len(timings))
        mean: Floats = sums / np.maximum(packed.num_draws, 1)
        return mean

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
    seed: int = 0,
) -> LayerModel:  # fmt: skip
    """Fit coefficients of the library's family on some rows, from its defaults on.

    Args:
        arch: the GPU.
        timings, packed: the rows.
        train: [rows], those that count.
        free: names of the coefficients that are fitted; others keep their defaults.
        seed: draws the rows of the fit.
    """
    rules = library_of(timings.library)
    family = FAMILIES[rules.family(arch, timings.types)]
    items = [item for item in family.coefficients if item.name in free]
    ranges = Ranges(items, family.defaults)
    chosen = np.flatnonzero(train & (packed.num_draws > 0) & (np.bincount(packed.row_of, minlength=len(timings)) > 0))
    if len(chosen) > _FIT_ROWS:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, _FIT_ROWS, replace=False))
    mask = np.zeros(len(timings), np.bool_)
    mask[chosen] = True
    model = LayerModel(arch, rules.name, family.defaults)

    def predict(values: dict[str, float]) -> Floats:
        return replace(model, coefficients=values).predict(timings, packed, mask)[chosen]

    start = ranges.shares(family.defaults, _SEARCH.off_bounds)
    found = fit_logs(ranges, predict, timings.measured_us[chosen], start, _SEARCH)
    return replace(model, coefficients=ranges.values(found))
