"""The model of our W4A16 kernels, config by config: its predictions, the fit of its families, and what each term does.

Unlike timings of a library's own choice, a row tells the config exactly, so nothing is searched in a fit: the model is
evaluated at the configs that ran. Rows count by 1 / sqrt(configs of their GEMM), or a few GEMMs with hundreds of
configs would be all that counts, and those beyond twice the best of their GEMM by less, because nobody chooses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.jit import read_only
from gemm_eval.models.gpu import (
    BEST_RASTER,
    GPU_COST_DTYPE,
    GPU_MODEL_VERSION,
    KERNEL_COST_DTYPE,
    Calibration,
    Coefficient,
    ErrorFigures,
    Times,
    coefficients_for,
    fit_intervals,
    pack_w4a16_coefficients,
)
from gemm_eval.models.gpu.families import FAMILIES, default_coefficients
from gemm_eval.models.gpu.w4a16 import W4A16_FAMILIES
from gemm_eval.search import OF_OURS, run_in_chunks
from gemm_eval.validation.fit import MIN_ROWS, Ranges, Search, fit_logs, provenance, rounded, sha256_of
from gemm_eval.validation.folds import cross_fit
from gemm_eval.validation.metrics import error_figures
from gemm_eval.validation.predictors.w4a16_rows import read_w4a16_timings, rows_of
from gemm_eval.validation.timings import Floats, Mask, Timings
from gemm_eval.words import shown
from gemm_eval.workload import NO_LAYOUTS

__all__ = ["W4A16Model", "calibrate_w4a16", "is_w4a16_calibrated"]

_SEARCH = Search(loss_scale=0.05, difference=1e-4, off_bounds=1e-3, evaluations=60)
_NEAR = 2.0
_TERMS = (*(name for name in Times._fields if name != "choice_us"), "hidden_us")  # of ours, this model chooses


@dataclass(frozen=True, eq=False)
class W4A16Model:
    """The model of our kernels with coefficients of its families; see `Model`.

    Attributes:
        arch: the GPU.
        coefficients: by family; one that is missing has its defaults.
        families: those that a fit fits.
        held: coefficients that a fit leaves as they are; they may be out of their ranges.
    """

    arch: GpuSpec
    coefficients: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    families: tuple[str, ...] = W4A16_FAMILIES
    held: Mapping[str, float] = field(default_factory=dict)
    name: str = "model"
    is_screened: ClassVar[bool] = True
    buys_nothing_points: ClassVar[float] = 0.02
    num_threads: ClassVar[int] = 1  # the kernels of the model take all

    @classmethod
    def as_it_is(cls, arch: GpuSpec) -> tuple[W4A16Model, str]:
        """Return the model with the coefficients that the library has for this GPU, and where they come from."""
        found = {family: coefficients_for(arch, "gemm-eval", family) for family in W4A16_FAMILIES}
        texts = dict.fromkeys(origin.text for _, origin in found.values())
        return cls(arch, {family: values for family, (values, _) in found.items()}), "; ".join(texts)

    @property
    def values(self) -> Mapping[str, float]:
        """The coefficients of its one family."""
        (family,) = self.families
        return self.coefficients[family]

    def fit(self, *train: Timings) -> W4A16Model:
        """Return one whose families are fitted on one set, from defaults on, which stay where rows are too few."""
        (rows,) = train
        found = {family: default_coefficients(family) | self.held_of(family) for family in W4A16_FAMILIES}
        for family in self.families:
            of_family = rows.of_group(family)
            if np.count_nonzero(of_family) >= MIN_ROWS:
                found[family] = self._fit_family(rows.select(of_family), family)
        return replace(self, coefficients=found)

    def held_of(self, family: str) -> dict[str, float]:
        """Return what is held of a family."""
        return {item.name: self.held[item.name] for item in FAMILIES[family].coefficients if item.name in self.held}

    def _fit_family(self, rows: Timings, family: str) -> dict[str, float]:
        held = self.held_of(family)
        ranges = Ranges([item for item in FAMILIES[family].coefficients if item.name not in held], held)
        start = ranges.shares(default_coefficients(family), _SEARCH.off_bounds)
        root = np.sqrt(self.row_weights(rows))

        others = {name: default_coefficients(name) for name in W4A16_FAMILIES}

        def predict(values: dict[str, float]) -> Floats:
            return replace(self, coefficients=others | {family: values}).predict(rows)

        return ranges.values(fit_logs(ranges, predict, rows.measured_us, start, _SEARCH, root))

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row at the config that ran, in microseconds."""
        latency_us, coefficients = np.empty(len(rows)), self._packed()
        of_rows, sizes = rows_of(rows), rows.sizes
        packed = of_rows.packed
        of_types = read_only(np.repeat(coefficients[None], len(packed.params), axis=0))

        def work(start: int, stop: int) -> None:
            part = slice(start, stop)
            OF_OURS.evaluate_rows(
                packed.params, packed.candidates, of_types, of_rows.type_of[part], sizes[part],
                NO_LAYOUTS, of_rows.which[part], latency_us[part],
            )  # fmt: skip

        run_in_chunks(work, len(rows))
        return latency_us

    def breakdown(self, timings: Timings, row: int) -> dict[str, float]:
        """Return the terms of a row's prediction, in microseconds; `hidden`, which is negative, overlaps.

        The terms add up to the prediction.
        """
        rows, out = rows_of(timings), np.zeros(1, GPU_COST_DTYPE)
        kind = int(rows.type_of[row])
        place, parts = rows.which[row].tolist()
        _, M, K, N = timings.sizes[row].tolist()
        params = rows.packed.params[kind : kind + 1]
        OF_OURS.evaluate_one(
            params, rows.packed.candidates, read_only(self._packed()[None]), place, parts, BEST_RASTER, 1, M, K, N,
            NO_LAYOUTS, out.view(KERNEL_COST_DTYPE),
        )  # fmt: skip
        return {term.removesuffix("_us"): float(out[term][0]) for term in _TERMS}

    def _packed(self) -> npt.NDArray[np.void]:
        return pack_w4a16_coefficients({family: self._values_of(family) for family in W4A16_FAMILIES})

    def _values_of(self, family: str) -> Mapping[str, float]:
        return self.coefficients.get(family) or default_coefficients(family)

    def parts(self, timings: Timings) -> Iterator[tuple[str, W4A16Model, Mask]]:
        """Yield each family that has rows enough for a fit."""
        for family in self.families:
            rows = timings.of_group(family)
            if np.count_nonzero(rows) >= MIN_ROWS:
                yield family, replace(self, families=(family,)), rows

    def terms(self) -> Sequence[Coefficient]:
        """Return the coefficient of each term of its one family."""
        (family,) = self.families
        return FAMILIES[family].coefficients

    def without(self, values: Mapping[str, float]) -> W4A16Model:
        """Return one of the same family with these values, which a fit leaves as they are."""
        coefficients = {family: {**self._values_of(family), **values} for family in self.families}
        return replace(self, coefficients=coefficients, held={**self.held, **values})

    def row_weights(self, rows: Timings) -> Floats:
        """Return what each row counts in a fit, [rows]; 1 in the mean."""
        weights = np.minimum(1.0, _NEAR * rows.best_us / rows.measured_us) / np.sqrt(rows.num_configs)
        scaled: Floats = weights / weights.mean()
        return scaled


def is_w4a16_calibrated(arch: GpuSpec) -> bool:
    """Whether all families have calibrations of this very GPU."""
    return all(coefficients_for(arch, "gemm-eval", family)[1].is_calibrated for family in W4A16_FAMILIES)


def calibrate_w4a16(
    arch: GpuSpec, family: str, paths: Sequence[Path], *, num_folds: int = 5, seed: int = 0
) -> Calibration:
    """Fit a W4A16 family on tables of our kernels; the errors are held out by (N, K) over all tables together.

    Args:
        arch: the GPU that the tables are of.
        family: one of `W4A16_FAMILIES`.
        paths: tables of `gemm-eval measure --kernel w4a16`.
        num_folds, seed: deal the pairs to the folds.

    Raises:
        InvalidInputError: no table, one that cannot be read, or too few rows of the family.
        InvalidOptionError: no such family, or fewer pairs than folds.
    """
    if family not in W4A16_FAMILIES:
        raise InvalidOptionError(f"W4A16 families are {', '.join(W4A16_FAMILIES)}, got {shown(family)}")
    timings = read_w4a16_timings(arch, paths)
    rows = timings.select(timings.of_group(family))
    if len(rows) < MIN_ROWS:
        raise InvalidInputError(f"a fit needs at least {MIN_ROWS} rows of {family}, got {len(rows)}")
    model = W4A16Model(arch, families=(family,))
    fitted = model.fit(rows)
    predicted_us = cross_fit(model, [rows], num_folds, seed).predict(rows)
    errors = []
    for path in paths:
        mask = (rows.frame["table"] == path.stem).to_numpy(bool)
        if not mask.any():  # a table of other families
            continue
        figures = error_figures(rows.measured_us[mask], predicted_us[mask])
        errors.append(ErrorFigures(data=f"w4a16/{path.stem}", sha256=sha256_of(path), **figures))
    # of the configs that are chosen, not of those that lose by far
    near = rows.measured_us <= (rows.form.near_best or np.inf) * rows.best_us
    intervals = fit_intervals(rows.sizes[near, 1], np.log(rows.measured_us[near] / predicted_us[near]))
    return Calibration(
        gpu=arch.name, library="gemm-eval", family=family, model_version=GPU_MODEL_VERSION,
        coefficients=rounded(fitted.values), fitted=tuple(fitted.values), errors=tuple(errors), intervals=intervals,
        **provenance(num_folds, "tables", seed),
    )  # fmt: skip
