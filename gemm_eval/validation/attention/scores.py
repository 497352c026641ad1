"""How attention is predicted, heads held out; and its calibration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import GpuSpec, list_archs, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu import Coefficient, ErrorFigures
from gemm_eval.models.gpu.attention import (
    ATTENTION_FAMILIES,
    ATTENTION_MODEL_VERSION,
    AttentionCalibration,
    AttentionFamily,
    AttentionRows,
    FittedFamily,
    attention_coefficients,
    attention_costs,
    family_us,
)
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.attention.tables import PHASES, AttentionTimings, list_attention_timings
from gemm_eval.validation.baselines import fit_roof
from gemm_eval.validation.fit import MIN_ROWS, Ranges, Search, fit_logs, provenance, rounded, sha256_of
from gemm_eval.validation.metrics import ALL, Metrics, error_figures, measure_errors
from gemm_eval.validation.tables import measured_root
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.words import refusal

__all__ = [
    "FITTED",
    "MODEL",
    "NAIVE",
    "AttentionLine",
    "calibrate_attention",
    "gpus_with_attention",
    "held_out_attention",
    "score_attention",
]

MODEL, FITTED, NAIVE = "gemm_eval", "fitted roofline", "naive roofline"
"""Who predicts."""

NUM_FOLDS = 5
_SEARCH = Search(loss_scale=0.1, difference=0.01, off_bounds=0.01, evaluations=60)
_MOST_OVERHEAD_US = 100.0


class AttentionLine(NamedTuple):
    """Errors on some rows of a table.

    Attributes:
        gpu, data, library, phase: the table, and whose kernels it is of.
        group: ``all``, or some of the rows: by tokens of a prompt, by keys of all sequences, by types.
        errors: by who predicts.
    """

    gpu: str
    data: str
    library: str
    phase: str
    group: str
    errors: Mapping[str, Metrics]


def gpus_with_attention() -> list[str]:
    """Return the GPUs that have measured attention."""
    return [name for name in list_archs() if any((measured_root(name)).glob("attention-*/*.parquet"))]


def score_attention(names: Sequence[str], phases: Sequence[str], seed: int = 0) -> Iterator[AttentionLine]:
    """Yield the errors of rows whose heads were held out, for each table, and each group of its rows.

    Args:
        names: GPUs; empty: all that have tables.
        phases: of `PHASES`; empty: all.
        seed: deals heads to folds.

    Raises:
        InvalidOptionError: no such GPU or phase.
    """
    known = gpus_with_attention()
    for name in names:
        if name not in known:
            raise InvalidOptionError(refusal("gpu", name, known))
    for phase in phases:
        if phase not in PHASES:
            raise InvalidOptionError(refusal("phase", phase, PHASES))
    for name in names or known:
        arch = load_arch(name, GpuSpec)
        for timings in list_attention_timings(name):
            if not phases or timings.phase in phases:
                yield from _lines(arch, timings, seed)


def _lines(arch: GpuSpec, timings: AttentionTimings, seed: int) -> Iterator[AttentionLine]:
    folds = folds_of_heads(timings, seed)
    compute_us, dram_us = roofs(arch, timings)
    predicted = {
        NAIVE: np.maximum(compute_us, dram_us),
        FITTED: _held_out_roofline(timings, folds, compute_us, dram_us),
        MODEL: held_out_attention(arch, timings, seed),
    }
    for group, mask in _groups(timings).items():
        if mask.any():
            errors = {name: measure_errors(timings.measured_us[mask], us[mask]) for name, us in predicted.items()}
            yield AttentionLine(arch.name, timings.name, timings.library, timings.phase, group, errors)


_TOKENS = (("up to 1,024 tokens", 0, 1024), ("up to 8,192", 1024, 8192), ("more", 8192, np.inf))
_KEYS = (("up to 4,096 keys", 0, 4096), ("up to 65,536", 4096, 65536), ("more", 65536, np.inf))


def _groups(timings: AttentionTimings) -> dict[str, Mask]:
    rows = timings.rows
    is_context = "context" in timings.phase
    sizes = rows.batch * (rows.q_len if is_context else rows.keys)
    groups: dict[str, Mask] = {
        name: (sizes > low) & (sizes <= high) for name, low, high in (_TOKENS if is_context else _KEYS)
    }
    types = timings.frame["dtype"] + ", KV " + timings.frame["kv_dtype"]
    groups |= {str(name): (types == name).to_numpy(bool) for name in sorted(types.unique())}
    windows = (rows.window < rows.kv_len).astype(bool)
    groups |= {"window": windows} if windows.any() else {}
    return groups | {ALL: np.ones(len(timings), bool)}


def folds_of_heads(timings: AttentionTimings, seed: int = 0) -> Ints:
    """Return the fold of each row: heads are dealt in the order of a hash, those of MLA one number of heads each."""
    ordered = sorted(set(timings.heads), key=lambda heads: hashlib.sha256(f"{seed}:{heads}".encode()).digest())
    num = min(NUM_FOLDS, len(ordered))
    fold_of = {heads: place % num for place, heads in enumerate(ordered)}
    return np.array([fold_of[heads] for heads in timings.heads], np.int64)


def roofs(arch: GpuSpec, timings: AttentionTimings) -> tuple[Floats, Floats]:
    """Return the times at the data sheet's rates, [rows], in microseconds: of the products, and of compulsory bytes."""

    def rate(dtype: DType) -> float:
        is_narrow = dtype is DType.FP8 and DType.FP8 in arch.tensor_flop_per_cycle
        return arch.peak_tflop_per_s(DType.FP8 if is_narrow else DType.BF16) * 1e6

    compute = [item.flop / rate(item.dtype) for item in timings.problems]
    dram = [item.num_bytes / bytes_per_us(arch.dram_gb_per_s) for item in timings.problems]
    return np.array(compute), np.array(dram)


def _held_out_roofline(timings: AttentionTimings, folds: Ints, compute_us: Floats, dram_us: Floats) -> Floats:
    predicted = np.empty(len(timings))
    for fold in range(int(folds.max()) + 1):
        train, held = folds != fold, folds == fold
        roof = fit_roof(compute_us[train], dram_us[train], timings.measured_us[train], _MOST_OVERHEAD_US)
        predicted[held] = roof.predict(compute_us[held], dram_us[held])
    return predicted


def held_out_attention(arch: GpuSpec, timings: AttentionTimings, seed: int = 0) -> Floats:
    """Return predictions, [rows], in microseconds: each row by coefficients fitted on other heads.

    The library chooses its kernels by the sizes alone, as for whoever asks for an answer.

    Raises:
        InvalidInputError: a table of another GPU.
    """
    folds, names = folds_of_heads(timings, seed), _families(arch, timings)
    known = attention_coefficients(arch, timings.library).values
    predicted = np.empty(len(timings))
    for fold in np.unique(folds).tolist():
        held, train = folds == fold, folds != fold
        fitted = {
            name: _fit(arch, timings, name, train & (names == name))
            for name in np.unique(names[held]).tolist()
            if (train & (names == name)).sum() >= MIN_ROWS
        }
        predicted[held] = attention_costs(arch, known | fitted, timings.rows.take(held), timings.library).latency_us
    return predicted


def calibrate_attention(arch: GpuSpec, library: str, seed: int = 0) -> AttentionCalibration:
    """Fit all families of a library on the committed tables of a GPU; errors are of heads that are held out.

    Raises:
        InvalidInputError: there are none.
    """
    sets = [timings for timings in list_attention_timings(arch.name) if timings.library == library]
    if not sets:
        raise InvalidInputError(f"no timings of attention by {library} on {arch.name} are committed")
    families: dict[str, FittedFamily] = {}
    errors = []
    for timings in sets:
        names = _families(arch, timings)
        for name in (item for item in ATTENTION_FAMILIES if (names == item).sum() >= MIN_ROWS):
            fitted = rounded(_fit(arch, timings, name, names == name))
            families[name] = FittedFamily(num_rows=int((names == name).sum()), coefficients=fitted)
        path = measured_root(arch.name) / f"{timings.name}.parquet"
        figures: dict[str, Any] = error_figures(timings.measured_us, held_out_attention(arch, timings, seed))
        errors.append(ErrorFigures(data=timings.name, sha256=sha256_of(path), **figures))
    return AttentionCalibration(
        gpu=arch.name,
        library=library,
        model_version=ATTENTION_MODEL_VERSION,
        errors=tuple(errors),
        families=families,
        **provenance(NUM_FOLDS, "rows", seed, "heads"),
    )


def _families(arch: GpuSpec, timings: AttentionTimings) -> Any:
    if timings.gpu != arch.name:
        raise InvalidInputError(f"{timings.name} is of {timings.gpu}, not of {arch.name}")
    known = attention_coefficients(arch, timings.library).values
    return attention_costs(arch, known, timings.rows, timings.library).families


def _fit(arch: GpuSpec, timings: AttentionTimings, name: str, train: Mask) -> dict[str, float]:
    family = ATTENTION_FAMILIES[name]
    rows = timings.rows.take(train)
    told = [item for item in family.coefficients if _moves_some_row(arch, family, item, rows)]
    ranges = Ranges(told, {item.name: item.default for item in family.coefficients if item not in told})

    def predict(values: dict[str, float]) -> Floats:
        return family_us(arch, name, values, rows)

    start = ranges.shares(family.defaults, _SEARCH.off_bounds)
    found = fit_logs(ranges, predict, timings.measured_us[train], start, _SEARCH)
    return {item.name: ranges.values(found)[item.name] for item in family.coefficients}


def _moves_some_row(arch: GpuSpec, family: AttentionFamily, item: Coefficient, rows: AttentionRows) -> bool:
    """Return whether a coefficient changes the time of any of these rows; one that does not keeps its default."""
    low_us, high_us = (
        family_us(arch, family.name, family.defaults | {item.name: end}, rows) for end in (item.low, item.high)
    )
    return not np.array_equal(low_us, high_us)
