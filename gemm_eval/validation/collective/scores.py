"""How collectives are predicted, whole blocks of sizes and ranks held out; and their calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import TWO_SOCKETS, GpuSpec, list_archs, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu import ErrorFigures
from gemm_eval.models.gpu.collective import (
    COLLECTIVE_COEFFICIENTS,
    COLLECTIVE_MODEL_VERSION,
    DIRECT,
    EXCHANGE,
    MULTICAST,
    RING,
    SOCKETS,
    CollectiveCalibration,
    collectives_us,
)
from gemm_eval.validation.collective.baselines import Kinds, alpha_beta, interpolated_table, kinds_of, link_us
from gemm_eval.validation.collective.fit import fit_collectives, interconnect_of, measured_rows
from gemm_eval.validation.collective.tables import CollectiveTimings, list_collective_timings
from gemm_eval.validation.fit import provenance, rounded, sha256_of
from gemm_eval.validation.metrics import ALL, Metrics, error_figures, measure_errors
from gemm_eval.validation.tables import measured_root
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.words import refusal

__all__ = [
    "FITTED",
    "HOLD_OUTS",
    "MODEL",
    "NAIVE",
    "TABLE",
    "CollectiveLine",
    "calibrate_collectives",
    "gpus_with_collectives",
    "groups_of",
    "held_out_collectives",
    "score_collectives",
]

MODEL, FITTED, NAIVE, TABLE = "gemm_eval", "alpha-beta", "link rate", "table"
"""Who predicts: the model, latency and rate fitted, the rate of the link alone, a table interpolated."""

BLOCKS, RANKS = "blocks", "ranks"
HOLD_OUTS = (BLOCKS, RANKS)
"""What is held out together: rows of as many ranks whose sizes are of one decade, or all rows of as many ranks."""

_REGIMES = (("up to 64 KiB", 0, 1 << 16), ("up to 8 MiB", 1 << 16, 1 << 23), ("more", 1 << 23, 1 << 62))


class CollectiveLine(NamedTuple):
    """Errors on some rows of a table.

    Attributes:
        gpu, data, library: the table.
        what: an operation, or ``all``.
        group: ``all``, or some sizes, or as many ranks.
        errors: by who predicts.
    """

    gpu: str
    data: str
    library: str
    what: str
    group: str
    errors: Mapping[str, Metrics]


def gpus_with_collectives() -> list[str]:
    """Return the GPUs that have measured collectives."""
    return [name for name in list_archs() if any(measured_root(name).glob("collective-*/*.parquet"))]


def score_collectives(names: Sequence[str], hold_out: str = BLOCKS) -> Iterator[CollectiveLine]:
    """Yield the errors of rows that were held out, for each table, operation and group of its rows.

    Args:
        names: GPUs; empty: all that have tables.
        hold_out: of `HOLD_OUTS`.

    Raises:
        InvalidOptionError: no such GPU, or way of holding out.
    """
    known = gpus_with_collectives()
    for name in names:
        if name not in known:
            raise InvalidOptionError(refusal("gpu", name, known))
    if hold_out not in HOLD_OUTS:
        raise InvalidOptionError(refusal("hold-out", hold_out, HOLD_OUTS))
    for name in names or known:
        sets = list_collective_timings(name)
        predicted = held_out_collectives(load_arch(name, GpuSpec), sets, groups_of(sets, hold_out))
        yield from _lines(name, sets, predicted)


def groups_of(sets: Sequence[CollectiveTimings], hold_out: str = BLOCKS) -> list[str]:
    """Return the group of each row of all tables: all of a group is held out together, of all operations and types."""
    kinds = kinds_of(sets)
    decades = np.floor(np.log10(kinds.size)).astype(int).tolist()
    return [
        f"{ranks:.0f} ranks" + (f", 1e{decade} bytes" if hold_out == BLOCKS else "")
        for ranks, decade in zip(kinds.ranks.tolist(), decades, strict=True)
    ]


def held_out_collectives(arch: GpuSpec, sets: Sequence[CollectiveTimings], groups: Sequence[str]) -> dict[str, Floats]:
    """Return predictions by who makes them, [rows] of all tables: each row by fits on all groups but its own."""
    link = interconnect_of(arch)
    rows, kinds = measured_rows(link, sets), kinds_of(sets)
    predicted = {name: np.empty(len(groups)) for name in (FITTED, TABLE, MODEL)}
    group_of = np.array(groups)
    for group in dict.fromkeys(groups):
        held = group_of == group
        coefficients = fit_collectives(link, rows.take(~held))
        predicted[MODEL][held] = collectives_us(link, coefficients, rows.rows.take(held))
        predicted[FITTED][held] = alpha_beta(link, kinds, rows.measured_us, ~held)[held]
        predicted[TABLE][held] = interpolated_table(kinds, rows.measured_us, ~held)[held]
    return {NAIVE: link_us(link, kinds)} | predicted


def calibrate_collectives(arch: GpuSpec) -> CollectiveCalibration:
    """Fit all coefficients on the committed tables of a GPU; errors are of blocks that are held out.

    Raises:
        InvalidInputError: there are none.
    """
    sets = list_collective_timings(arch.name)
    if not sets:
        raise InvalidInputError(f"no timings of collectives on {arch.name} are committed")
    link = interconnect_of(arch)
    predicted = held_out_collectives(arch, sets, groups_of(sets))[MODEL]
    errors = []
    for timings, of_set in zip(sets, _parts(sets), strict=True):
        path = measured_root(arch.name) / f"{timings.name}.parquet"
        figures: dict[str, Any] = error_figures(timings.measured_us, predicted[of_set])
        errors.append(ErrorFigures(data=timings.name, sha256=sha256_of(path), **figures))
    fitted = [*RING, *EXCHANGE]
    fitted += MULTICAST if link.has_multicast else ()
    fitted += DIRECT if link.is_nvlink else ()
    fitted += SOCKETS if link.topology == TWO_SOCKETS else ()
    names = {item.name for item in fitted}
    how = provenance(1, "rows", 0)
    return CollectiveCalibration(
        gpu=arch.name,
        libraries=tuple(timings.framework for timings in sets),
        model_version=COLLECTIVE_MODEL_VERSION,
        code_version=how["code_version"],
        date=how["date"],
        folds="each block of as many ranks and a decade of bytes by a fit on the others, all operations together",
        errors=tuple(errors),
        fitted=tuple(item.name for item in COLLECTIVE_COEFFICIENTS if item.name in names),
        coefficients=rounded(fit_collectives(link, measured_rows(link, sets))),
    )


def _parts(sets: Sequence[CollectiveTimings]) -> Iterator[Ints]:
    start = 0
    for timings in sets:
        yield np.arange(start, start + len(timings))
        start += len(timings)


def _lines(gpu: str, sets: Sequence[CollectiveTimings], predicted: Mapping[str, Floats]) -> Iterator[CollectiveLine]:
    for timings, of_set in zip(sets, _parts(sets), strict=True):
        kinds = kinds_of([timings])
        operations = list(dict.fromkeys(timings.what))
        for what in (*operations, *((ALL,) if len(operations) > 1 else ())):
            of_what = np.array([what in (ALL, name) for name in timings.what])
            for group, mask in _groups(kinds).items():
                if (of_group := of_what & mask).any():
                    errors = {
                        name: measure_errors(timings.measured_us[of_group], us[of_set][of_group])
                        for name, us in predicted.items()
                    }
                    yield CollectiveLine(gpu, timings.name, timings.library, what, group, errors)


def _groups(kinds: Kinds) -> dict[str, Mask]:
    groups: dict[str, Mask] = {name: (kinds.size > low) & (kinds.size <= high) for name, low, high in _REGIMES}
    groups |= {f"{ranks:.0f} ranks": kinds.ranks == ranks for ranks in sorted(set(kinds.ranks.tolist()))}
    return groups | {ALL: np.ones(len(kinds.size), np.bool_)}
