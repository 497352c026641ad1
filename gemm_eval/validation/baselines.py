"""Baselines of GEMMs: rooflines, an interpolated table, and nvMatmulHeuristics.

nvMatmulHeuristics is NVIDIA's own analytical model of its GEMM kernels, a baseline where it is installed (``pip install
'gemm_eval[compare]'``). It needs no GPU. Its prediction is the least run time that it estimates among the CUTLASS
kernels that it proposes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.units import bytes_per_us, tflop_per_s
from gemm_eval.validation.fit import robust_fit
from gemm_eval.validation.tables import Floats, Ints, Mask, Timings
from gemm_eval.words import check_extra, has_package, needs_extra

_US_PER_TFLOP_PER_S = 1.0 / tflop_per_s(1.0, 1.0)  # flop in a microsecond, at 1 TFLOP/s

# The fit runs over logarithms of the fields of `SmoothRoof`, which keeps all of them positive.
_LOWER = (0.1, 0.05, 0.05, 1.0)
_UPPER = (50.0, 1.5, 1.5, 32.0)
_TYPE_COLUMNS = ["input_dtype", "weight_dtype", "output_dtype", "group_size"]
_LEAST_POINTS = 8  # of a table, for anything but its nearest one
_LOSS_SCALE = 0.1  # relative errors beyond 10% count linearly, not squared


def rooflines(arch: GpuSpec, rows: Timings) -> tuple[Floats, Floats]:
    """Return each row's time, in us, at the published peak of the input type and at the published bandwidth."""
    rate = np.empty(len(rows))
    types = rows.column("input_dtype")
    for dtype in sorted(set(types.tolist())):
        try:
            rate[types == dtype] = arch.peak_tflop_per_s(dtype) * _US_PER_TFLOP_PER_S
        except KeyError:
            raise UnsupportedError(f"{arch.name} has no peak for {dtype} inputs") from None
    return rows.flop / rate, rows.compulsory_bytes / bytes_per_us(arch.dram_gb_per_s)


@dataclass(frozen=True)
class NaiveRoofline:
    """max(flop / published peak, compulsory bytes / published bandwidth): nothing is fitted."""

    arch: GpuSpec = field(repr=False)
    name: str = "naive roofline"

    def fit(self, *_: Timings) -> NaiveRoofline:
        return self

    def predict(self, rows: Timings) -> Floats:
        return np.maximum(*rooflines(self.arch, rows)) + rows.timer_us


class SmoothRoof(NamedTuple):
    """Constants of an overhead and a smooth maximum of two roofs, of whose rates shares are reached.

    The smooth maximum is the p-norm (c^p + d^p)^(1/p), p being the sharpness: the sum at 1, the maximum as p grows.
    """

    overhead_us: float = 3.0
    compute_frac: float = 0.7
    dram_frac: float = 0.8
    sharpness: float = 4.0

    def predict(self, compute_us: Floats, dram_us: Floats) -> Floats:
        compute, dram = compute_us / self.compute_frac, dram_us / self.dram_frac
        longer = np.maximum(compute, dram)
        ratio = np.minimum(compute, dram) / longer
        return self.overhead_us + longer * (1.0 + ratio**self.sharpness) ** (1.0 / self.sharpness)


def fit_roof(
    compute_us: Floats, dram_us: Floats, measured_us: Floats, most_overhead_us: float = _UPPER[0]
) -> SmoothRoof:
    """Return the constants that fit best: least squares of log errors, with a robust loss."""
    target, upper = np.log(measured_us), (most_overhead_us, *_UPPER[1:])

    def errors(logs: Floats) -> Floats:
        return np.log(SmoothRoof(*np.exp(logs).tolist()).predict(compute_us, dram_us)) - target

    logs = robust_fit(errors, np.log(SmoothRoof()), np.log(_LOWER), np.log(upper), _LOSS_SCALE)
    return SmoothRoof(*np.exp(logs).tolist())


def fit_positive(
    times: Callable[[Floats, Any], Floats], rows: Mask | Ints, measured_us: Floats, start: Sequence[float],
    low: Sequence[float], high: Sequence[float],
) -> Floats:  # fmt: skip
    """Return positive constants with which `times(constants, rows)` fits the measured times of `rows` best."""

    def errors(logs: Floats) -> Floats:
        return np.log(times(np.exp(logs), rows) / measured_us[rows])

    return np.exp(robust_fit(errors, np.log(start), np.log(low), np.log(high), _LOSS_SCALE))


def fit_rate(
    least_us: Floats, measured_us: Floats, train: Mask, rows: Mask, start: Sequence[float], low: Sequence[float],
    high: Sequence[float],
) -> Floats:  # fmt: skip
    """Predict rows by an overhead in microseconds and a share of the rate of `least_us`, fitted on those of `train`."""

    def times(constants: Floats, some: Mask) -> Floats:
        return constants[0] + least_us[some] / constants[1]

    return times(fit_positive(times, train, measured_us, start, low, high), rows)


@dataclass(frozen=True)
class FittedRoofline:
    """The fitted roofline, on all rows or by group; groups below `min_rows` keep the constants a fit starts at."""

    arch: GpuSpec = field(repr=False)
    by_group: bool = False
    min_rows: int = 1
    roofs: Mapping[str, SmoothRoof] = field(default_factory=dict)
    name: str = "fitted roofline"

    def fit(self, *train: Timings) -> FittedRoofline:
        columns = [(*rooflines(self.arch, timings), timings.measured_us) for timings in train]
        roofs = {}
        for name in dict.fromkeys(name for timings in train for name in self._groups(timings)):
            masks = [self._groups(timings).get(name, slice(0)) for timings in train]
            of_group = [[column[mask] for column in of_set] for of_set, mask in zip(columns, masks, strict=True)]
            compute_us, dram_us, measured_us = (np.concatenate(parts) for parts in zip(*of_group, strict=True))
            if len(measured_us) >= self.min_rows:
                roofs[name] = fit_roof(compute_us, dram_us, measured_us)
        return replace(self, roofs=roofs)

    def predict(self, rows: Timings) -> Floats:
        latency_us, columns = np.empty(len(rows)), rooflines(self.arch, rows)
        for name, mask in self._groups(rows).items():
            latency_us[mask] = self.roofs.get(name, SmoothRoof()).predict(*(column[mask] for column in columns))
        return latency_us

    def _groups(self, rows: Timings) -> dict[str, Any]:
        return {name: rows.of_group(name) for name in rows.groups} if self.by_group else {"": slice(None)}


@dataclass(frozen=True, eq=False)
class TableInterpolation:
    """Latencies of other GEMMs of the same types (`train`), interpolated, as planners do that keep a table a GPU."""

    arch: GpuSpec = field(repr=False)
    name: str = "interpolation"
    train: tuple[Timings, ...] = ()

    def fit(self, *train: Timings) -> TableInterpolation:
        return replace(self, train=train)

    def predict(self, rows: Timings) -> Floats:
        latency_us, roof = np.full(len(rows), np.nan), NaiveRoofline(self.arch)
        for types in rows.frame[_TYPE_COLUMNS].drop_duplicates().to_numpy().tolist():
            mask = _is_of(rows, types)
            asked = rows.select(mask)
            parts = [part for part in (item.select(_is_of(item, types)) for item in self.train) if len(part)]
            if parts:
                columns = ([part.sizes, part.measured_us, roof.predict(part)] for part in parts)
                sizes, measured_us, roof_us = (np.concatenate(column) for column in zip(*columns, strict=True))
                latency_us[mask] = interpolated(sizes, measured_us, roof_us, asked.sizes, roof.predict(asked))
        return latency_us


def _is_of(rows: Timings, types: list[object]) -> Mask:
    return (rows.frame[_TYPE_COLUMNS] == types).all(axis=1).to_numpy(bool)


def interpolated(known: Ints, measured_us: Floats, roof_us: Floats, asked: Ints, asked_roof_us: Floats) -> Floats:
    """Return the latency of GEMMs by those of others: linear in the logarithms of sizes and of the latency.

    Sizes are [GEMMs, sizes]; `roof_us` and `asked_roof_us` are times by a roofline. Beyond the known GEMMs the nearest
    counts, times the ratio of their roofs.
    """
    from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
    from scipy.spatial import QhullError

    at, wanted = (np.log2(sizes.astype(np.float64)) for sizes in (known, asked))
    varies = np.ptp(at, axis=0) > 0.0
    logs = np.log(measured_us)
    nearest = NearestNDInterpolator(at, logs - np.log(roof_us))(wanted) + np.log(asked_roof_us)
    inside = np.full(len(asked), np.nan)
    if np.count_nonzero(varies) > 1 and len(at) > _LEAST_POINTS:
        with suppress(QhullError):  # all in one plane
            inside = LinearNDInterpolator(at[:, varies], logs)(wanted[:, varies])
    return np.exp(np.where(np.isnan(inside), nearest, inside))


NVIDIA = "nvMatmulHeuristics"
"""Name of the package, and of the predictor."""

_NUM_PROPOSALS = 8  # more change its mean error by one part in a hundred, at twice the time
_LAYOUT = "NT_ROW_MAJOR"  # A[M,K], B stored as [N,K], C[M,N], as in a linear layer
_LEAST_US = 0.1  # an offset below 0 must not make a prediction negative
_ASKED = ["G", "M", "K", "N", "input_dtype", "weight_dtype"]
_US_PER_S = 1e6
_GPUS = (
    "a100-sxm-80gb", "a100-pcie-80gb", "l4", "l40s", "rtx-4090", "h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm", "b200"
)  # fmt: skip
_PRECISIONS = {("fp16", "fp16"): "HSH", ("bf16", "bf16"): "TST"}  # inputs, accumulator, output
_WITH_CLUSTERS = ("h100", "h200", "b200")


def has_heuristics(gpu: str) -> bool:
    """Return whether nvMatmulHeuristics is installed and knows `gpu` (an arch name)."""
    return gpu in _GPUS and has_package(NVIDIA)


def knows_types(timings: Timings) -> bool:
    """Return whether nvMatmulHeuristics can answer for the data types of all rows."""
    return set(zip(timings.column("input_dtype"), timings.column("weight_dtype"), strict=True)) <= set(_PRECISIONS)


@dataclass(frozen=True)
class NvidiaHeuristics:
    """Run time of nvMatmulHeuristics' best kernel: raw, or with `is_refit` a fitted offset_us + scale * raw."""

    gpu: str
    is_refit: bool = False
    offset_us: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.gpu not in _GPUS:
            raise UnsupportedError(f"nvMatmulHeuristics has no {self.gpu}; it has {', '.join(_GPUS)}")
        check_extra("comparing with nvMatmulHeuristics", "compare", "nvMatmulHeuristics")

    @property
    def name(self) -> str:
        return "nvMMH, refitted" if self.is_refit else NVIDIA

    def fit(self, *train: Timings) -> NvidiaHeuristics:
        if not self.is_refit:
            return self
        raw_us = np.concatenate([self._raw_us(timings) for timings in train])
        measured_us = np.concatenate([timings.measured_us for timings in train])

        def errors(constants: Floats) -> Floats:
            return (constants[0] + constants[1] * raw_us) / measured_us - 1.0

        # a bound above 0 on the scale and on the value at the least raw time keeps predictions positive
        lowest = -0.9 * float(raw_us.min())
        offset_us, scale = robust_fit(errors, (0.0, 1.0), (lowest, 0.05), (100.0, 20.0), loss_scale=0.1).tolist()
        return replace(self, offset_us=offset_us, scale=scale)

    def predict(self, rows: Timings) -> Floats:
        return np.maximum(self.offset_us + self.scale * self._raw_us(rows), _LEAST_US)

    def _raw_us(self, rows: Timings) -> Floats:
        asked = rows.frame[_ASKED].itertuples(index=False, name=None)
        return np.array([_least_us(self.gpu, *row) for row in asked])


@cache
def _library(gpu: str) -> tuple[Any, Any]:
    """Return the C++ library's interface, and the layout of matrices."""
    with needs_extra("comparing with nvMatmulHeuristics", "compare"):
        import nvMatmulHeuristics

    module: Any = nvMatmulHeuristics
    target = module.NvMatmulHeuristicsTarget
    return module.NvMatmulHeuristicsInterfaceEx(
        backend=target.CUTLASS3 if gpu.startswith(_WITH_CLUSTERS) else target.CUTLASS,
        flags=module.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=module.NvMatmulHeuristicsNvidiaGpu[gpu.upper().replace("-", "_")],
    ), module.NvMatmulHeuristicsMatmulLayout[_LAYOUT]  # fmt: skip


@cache
def _least_us(gpu: str, G: int, M: int, K: int, N: int, input_dtype: str, weight_dtype: str) -> float:
    """Return the least run time of the kernels that nvMatmulHeuristics proposes, in microseconds."""
    precision = _PRECISIONS.get((DType(input_dtype), DType(weight_dtype)))
    if precision is None:
        raise UnsupportedError(f"nvMatmulHeuristics: no {input_dtype} x {weight_dtype}, only fp16 and bf16")
    interface, layout = _library(gpu)
    kernels = interface.get(interface.makeNvMatmulHeuristicsProblem(M, N, K, layout, G), _NUM_PROPOSALS, precision)
    if not kernels:
        raise UnsupportedError(f"nvMatmulHeuristics proposes no kernel for G={G} M={M} K={K} N={N}")
    return _US_PER_S * min(float(kernel["runtime"]) for kernel in kernels)
