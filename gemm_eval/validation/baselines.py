"""What a model is compared with: rooflines, from the data sheet alone and with fitted constants, and a table."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.units import bytes_per_us, tflop_per_s
from gemm_eval.validation.fit import MIN_ROWS, robust_fit
from gemm_eval.validation.timings import Floats, Ints, Timings

_US_PER_TFLOP_PER_S = 1.0 / tflop_per_s(1.0, 1.0)  # flop in a microsecond, at 1 TFLOP/s

# The fit runs over logarithms of (overhead_us, compute_frac, dram_frac, sharpness), which keeps all of them positive.
_START = (3.0, 0.7, 0.8, 4.0)
_LOWER = (0.1, 0.05, 0.05, 1.0)
_UPPER = (50.0, 1.5, 1.5, 32.0)
_TYPE_COLUMNS = ("input_dtype", "weight_dtype", "output_dtype", "group_size")
_LEAST_POINTS = 8  # of a table, for anything but its nearest one
_LOSS_SCALE = 0.1  # relative errors beyond 10% count linearly, not squared


class RooflineSpec(Protocol):
    """What a roofline reads of an arch spec: published numbers only."""

    @property
    def name(self) -> str:
        """Name of the arch."""

    @property
    def dram_gb_per_s(self) -> float:
        """Published DRAM bandwidth, 1e9 bytes a second."""

    def peak_tflop_per_s(self, dtype: DType | str | None = None) -> float:
        """Return the published dense peak for inputs of `dtype`, in 1e12 FLOP/s."""


def rooflines(arch: RooflineSpec, rows: Timings) -> tuple[Floats, Floats]:
    """Return the time of each row at the published peak and at the published DRAM bandwidth, in microseconds.

    The peak is that of the input type, since weights of fewer bits are multiplied in it; the bytes are compulsory ones.

    Raises:
        UnsupportedError: the arch has no peak for an input type.
    """
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

    arch: RooflineSpec = field(repr=False)
    name: str = "naive roofline"

    def fit(self, *_: Timings) -> NaiveRoofline:
        """Return itself."""
        return self

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row, in microseconds."""
        compute_us, dram_us = rooflines(self.arch, rows)
        longer: Floats = np.maximum(compute_us, dram_us) + rows.timer_us
        return longer


class SmoothRoof(NamedTuple):
    """Constants of t0 + a smooth maximum of two roofs; see `FittedRoofline`."""

    overhead_us: float
    compute_frac: float
    dram_frac: float
    sharpness: float

    def predict(self, compute_us: Floats, dram_us: Floats) -> Floats:
        """Return the latency of each row, whose roofs are given and positive, in microseconds."""
        compute, dram = compute_us / self.compute_frac, dram_us / self.dram_frac
        longer = np.maximum(compute, dram)
        ratio = np.minimum(compute, dram) / longer
        total: Floats = self.overhead_us + longer * (1.0 + ratio**self.sharpness) ** (1.0 / self.sharpness)
        return total


def fit_roof(
    compute_us: Floats, dram_us: Floats, measured_us: Floats, most_overhead_us: float = _UPPER[0]
) -> SmoothRoof:
    """Return the constants that fit best: least squares of log errors, with a robust loss."""
    target, upper = np.log(measured_us), (most_overhead_us, *_UPPER[1:])

    def errors(logs: Floats) -> Floats:
        result: Floats = np.log(SmoothRoof(*np.exp(logs).tolist()).predict(compute_us, dram_us)) - target
        return result

    return SmoothRoof(*np.exp(robust_fit(errors, np.log(_START), np.log(_LOWER), np.log(upper), _LOSS_SCALE)).tolist())


@dataclass(frozen=True)
class FittedRoofline:
    """t0 + a smooth maximum of the two roofs with fitted efficiencies, the fairest roofline that there is.

    The smooth maximum is the p-norm (c^p + d^p)^(1/p): the sum at p = 1, the maximum as p grows.

    Attributes:
        overhead_us: t0.
        compute_frac, dram_frac: share of the published peak and bandwidth that is reached.
        sharpness: p.
    """

    arch: RooflineSpec = field(repr=False)
    name: str = "fitted roofline"
    overhead_us: float = field(default=_START[0])
    compute_frac: float = field(default=_START[1])
    dram_frac: float = field(default=_START[2])
    sharpness: float = field(default=_START[3])

    def fit(self, *train: Timings) -> FittedRoofline:
        """Return one with the constants that fit `train` best: least squares of log errors, with a robust loss."""
        roofs = [rooflines(self.arch, timings) for timings in train]
        compute_us, dram_us = (np.concatenate(times) for times in zip(*roofs, strict=True))
        measured_us = np.concatenate([timings.measured_us for timings in train])
        return replace(self, **fit_roof(compute_us, dram_us, measured_us)._asdict())

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row, in microseconds."""
        roof = SmoothRoof(self.overhead_us, self.compute_frac, self.dram_frac, self.sharpness)
        return roof.predict(*rooflines(self.arch, rows))


@dataclass(frozen=True)
class GroupedRoofline:
    """A `FittedRoofline` for each group of rows (`Timings.groups`): families of kernels, or data types.

    Attributes:
        min_rows: of a group, for a fit; with fewer it has the constants of `FittedRoofline`.
        fitted: by group.
    """

    arch: RooflineSpec = field(repr=False)
    min_rows: int = MIN_ROWS
    name: str = "fitted roofline"
    fitted: Mapping[str, FittedRoofline] = field(default_factory=dict)

    def fit(self, *train: Timings) -> GroupedRoofline:
        """Return one whose constants are fitted on `train`, group by group."""
        fitted = {}
        for name in dict.fromkeys(name for timings in train for name in timings.groups):
            of_group = [timings.select(timings.of_group(name)) for timings in train]
            if sum(map(len, of_group)) >= self.min_rows:
                fitted[name] = FittedRoofline(self.arch).fit(*of_group)
        return replace(self, fitted=fitted)

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row, in microseconds."""
        latency_us = np.empty(len(rows))
        for name in rows.groups:
            if (mask := rows.of_group(name)).any():
                latency_us[mask] = self.fitted.get(name, FittedRoofline(self.arch)).predict(rows.select(mask))
        return latency_us


@dataclass(frozen=True, eq=False)
class TableInterpolation:
    """Latencies of other GEMMs of the same types, interpolated: linear in the logarithms of sizes and of the latency.

    As planners do that keep a table for each GPU. Beyond the GEMMs of the table the nearest one counts, times the ratio
    of the rooflines of the data sheet.

    Attributes:
        train: the table, one part for each set that it comes from.
    """

    arch: RooflineSpec = field(repr=False)
    name: str = "interpolation"
    train: tuple[Timings, ...] = ()

    def fit(self, *train: Timings) -> TableInterpolation:
        """Return one whose table these rows are."""
        return replace(self, train=train)

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row, in microseconds; nan where the table has no GEMM of its types."""
        latency_us = np.full(len(rows), np.nan)
        types_of = _types_of(rows)
        for types in set(types_of):
            wanted = np.array([item == types for item in types_of])
            parts = [part.select(np.array([item == types for item in _types_of(part)])) for part in self.train]
            if parts := [part for part in parts if len(part)]:
                latency_us[wanted] = self._of_types(parts, rows.select(wanted))
        return latency_us

    def _of_types(self, train: list[Timings], rows: Timings) -> Floats:
        roof = NaiveRoofline(self.arch)
        measured_us = np.concatenate([part.measured_us for part in train])
        roof_us = np.concatenate([roof.predict(part) for part in train])
        return interpolated(_sizes(train), measured_us, roof_us, rows.sizes, roof.predict(rows))


def interpolated(known: Ints, measured_us: Floats, roof_us: Floats, asked: Ints, asked_roof_us: Floats) -> Floats:
    """Return the latency of GEMMs by those of others: linear in the logarithms of sizes and of the latency.

    Beyond the known ones the nearest counts, times the ratio of their roofs.

    Args:
        known: [num_known, num_sizes], sizes of GEMMs whose latency is known.
        measured_us, roof_us: [num_known], of them: as measured, and by a roofline.
        asked: [num_asked, num_sizes].
        asked_roof_us: [num_asked].
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
    result: Floats = np.exp(np.where(np.isnan(inside), nearest, inside))
    return result


def _sizes(sets: list[Timings]) -> Ints:
    return np.concatenate([item.sizes for item in sets])


def _types_of(rows: Timings) -> list[tuple[object, ...]]:
    return list(zip(*(rows.frame[name] for name in _TYPE_COLUMNS), strict=True))
