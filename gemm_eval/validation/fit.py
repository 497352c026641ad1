"""Fitting the coefficients of a library's kernel families on measured timings.

A timing without a config is explained by the best config that the model finds, as the library's own choice is. So a fit
alternates: with the coefficients as they are, search the config of each row; with the configs fixed, fit the
coefficients (scipy's robust least squares on log latencies, within bounds). Timings whose config is known, such as
those with the name of a cuBLAS kernel, count at that config as well. A fit starts at the defaults of the family, never
at a committed calibration, so nothing of held-out rows can come in by the start.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version

import numpy as np

from gemm_eval._words import shown
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu.calibration import Calibration, coefficients_for
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.libraries import LIBRARIES
from gemm_eval.models.gpu.model import GPU_MODEL_VERSION
from gemm_eval.validation.metrics import error_figures
from gemm_eval.validation.objective import ROUNDS, fit_family
from gemm_eval.validation.packing import Coefficients, best_configs, pack_problems, pack_timings, with_families
from gemm_eval.validation.scoring import cross_validate_sets
from gemm_eval.validation.timings import Floats, TimingSet

__all__ = ["MIN_ROWS", "ModelPredictor", "calibrate", "model_predictor"]

MIN_ROWS = 30
"""Of a family, for a fit of its coefficients."""

GENERIC = tuple(name for name, family in FAMILIES.items() if not family.is_ours)
"""Families that are fitted here; for our W4A16 kernels see `kernel_fit`."""

_FOLDS = 5
_DIGITS = 6  # of a coefficient, here and in files


@dataclass(frozen=True)
class ModelPredictor:
    """The GPU cost model with coefficients of a library's kernel families; see `Predictor`.

    Attributes:
        arch: the GPU.
        library: whose kernels.
        coefficients: by family; one that is missing has its defaults.
        num_rounds: of search and fit.
    """

    arch: GpuSpec
    library: str
    coefficients: Coefficients = field(default_factory=dict)
    num_rounds: int = ROUNDS
    name: str = "gemm_eval"

    def fit(self, *train: TimingSet) -> ModelPredictor:
        """Return one whose coefficients are fitted on `train` and on nothing else.

        Families with fewer than `MIN_ROWS` rows get their defaults: what this predictor has may have been fitted on the
        very rows that are held out now.
        """
        timings = pack_timings(self.arch, self.library, train)
        fitted = {
            family: fit_family(timings, family, self.library, self.num_rounds)[0]
            for family in GENERIC
            if np.count_nonzero(timings.rows.family_of == family) >= MIN_ROWS
        }
        return replace(self, coefficients=fitted)

    def predict(self, rows: TimingSet) -> Floats:
        """Return the latency of each row at the best config of the library, in microseconds."""
        packed = pack_problems(self.arch, self.library, [rows])
        return best_configs(packed, with_families(packed, self.coefficients))[0]


def model_predictor(arch: GpuSpec, library: str) -> ModelPredictor:
    """Return the model with the coefficients that it has for this GPU and library."""
    return ModelPredictor(arch, library, {family: coefficients_for(arch, library, family)[0] for family in GENERIC})


def calibrate(
    arch: GpuSpec,
    library: str,
    family: str,
    sets: Sequence[TimingSet],
    *,
    max_evaluations: int = ROUNDS,
    seed: int = 0,
) -> Calibration:
    """Fit a kernel family on all sets together; errors are held out by (N, K) over the union of the sets.

    Rows that the library runs with another family, and those of a band that is reported apart, do not count.

    Args:
        arch: the GPU that the timings are of.
        library: whose kernels ran.
        family: the kernel family whose coefficients are fitted.
        sets: timings, with or without the configs.
        max_evaluations: rounds of search and fit.
        seed: deals the pairs to the folds.

    Raises:
        InvalidOptionError: no such library or family.
        InvalidInputError: too few rows or pairs of the family, or sets of another GPU or library.
    """
    kept = _rows_of_family(arch, library, family, sets)
    coefficients, fitted = fit_family(pack_timings(arch, library, kept), family, library, max_evaluations)
    predictor = ModelPredictor(arch, library, num_rounds=max_evaluations)
    predictions = cross_validate_sets(predictor, kept, _FOLDS, seed)
    return Calibration(
        gpu=arch.name, library=library, family=family, model_version=GPU_MODEL_VERSION,
        code_version=version("gemm_eval"), date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        folds=f"{_FOLDS}-fold by (N, K) over all sets together, seed {seed}",
        coefficients={name: float(f"{value:.{_DIGITS}g}") for name, value in coefficients.items()}, fitted=fitted,
        errors=tuple(
            error_figures(
                item.name, item.content_hash.removeprefix("sha256:"), item.latency_us, predicted
            )
            for item, predicted in zip(kept, predictions, strict=True)
        ),
    )  # fmt: skip


def _rows_of_family(arch: GpuSpec, library: str, family: str, sets: Sequence[TimingSet]) -> list[TimingSet]:
    for what, name, known in (("library", library, LIBRARIES), ("family", family, FAMILIES)):
        if name not in known:
            raise InvalidOptionError(f"{what} must be one of {', '.join(known)}, got {shown(name)}")
    kept = []
    for item in sets:
        if item.gpu != arch.name or item.library != library:
            raise InvalidInputError(f"{item.name} is of {item.library} on {item.gpu}, not of {library} on {arch.name}")
        if len(item):
            mask = (pack_problems(arch, library, [item]).family_of == family) & ~item.in_band
            kept += [item.select(mask)] if mask.any() else []
    num_rows = sum(len(item) for item in kept)
    num_pairs = len({pair for item in kept for pair in zip(item.column("N"), item.column("K"), strict=True)})
    if num_rows < MIN_ROWS or num_pairs < _FOLDS:
        raise InvalidInputError(
            f"a fit needs at least {MIN_ROWS} rows and {_FOLDS} (N, K) pairs that {library} runs with {family} kernels "
            f"on {arch.name}, got {num_rows} rows and {num_pairs} pairs"
        )
    return kept
