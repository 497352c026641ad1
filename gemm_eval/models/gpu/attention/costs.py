"""`attention_costs`: the time of attention on a GPU, of many problems at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu.attention.families import (
    ATTENTION_FAMILIES,
    can_run_as_context,
    can_run_as_generation,
    families_of_rows,
)
from gemm_eval.models.gpu.attention.rows import AttentionRows

__all__ = ["AttentionCosts", "attention_costs", "family_us"]

Floats = npt.NDArray[np.float64]


class AttentionCosts(NamedTuple):
    """What problems take.

    Attributes:
        latency_us: [rows].
        families: [rows], names of `ATTENTION_FAMILIES`.
        terms: of each row, by name, in microseconds; they add up to its latency.
    """

    latency_us: Floats
    families: npt.NDArray[np.str_]
    terms: list[dict[str, float]]


def family_us(arch: GpuSpec, name: str, c: Mapping[str, float], rows: AttentionRows) -> Floats:
    """Return the time of problems by one family, [rows], in microseconds."""
    total: Floats = np.sum(list(ATTENTION_FAMILIES[name].terms(arch, c, rows).values()), axis=0)
    return total


def attention_costs(
    arch: GpuSpec, coefficients: Mapping[str, Mapping[str, float]], rows: AttentionRows, library: str
) -> AttentionCosts:
    """Return the time of attention by the kernels that a library takes.

    Several tokens over a longer cache can be verified by either kind of kernels; the faster is taken. One token runs on
    those for few queries, a whole prompt on those for many.

    Args:
        arch: the GPU.
        coefficients: of each family, by its name.
        rows: the problems.
        library: whose kernels, of `ATTENTION_LIBRARIES`.
    """
    few, many = can_run_as_generation(rows, library), can_run_as_context(rows, library)
    both = [
        _of_kind(arch, coefficients, rows, library, mask, is_decode=kind) for mask, kind in ((few, True), (many, False))
    ]
    is_first = both[0].latency_us <= both[1].latency_us
    return AttentionCosts(
        np.where(is_first, both[0].latency_us, both[1].latency_us),
        np.where(is_first, both[0].families, both[1].families),
        [a if first else b for first, a, b in zip(is_first.tolist(), both[0].terms, both[1].terms, strict=True)],
    )


def _of_kind(
    arch: GpuSpec, coefficients: Mapping[str, Mapping[str, float]], rows: AttentionRows, library: str,
    mask: npt.NDArray[np.bool_], *, is_decode: bool,
) -> AttentionCosts:  # fmt: skip
    num = len(rows)
    latency_us = np.full(num, np.inf)
    terms: list[dict[str, float]] = [{} for _ in range(num)]
    families = np.full(num, "", dtype="U32")
    some = np.flatnonzero(mask)
    if some.size:
        names = families_of_rows(arch, rows.take(some), library, is_decode=is_decode)
        for name in np.unique(names).tolist():
            places = some[names == name]
            found = ATTENTION_FAMILIES[name].terms(arch, coefficients[name], rows.take(places))
            latency_us[places] = np.sum(list(found.values()), axis=0)
            families[places] = name
            columns = {term: values.tolist() for term, values in found.items()}
            for place, *values in zip(places.tolist(), *columns.values(), strict=True):
                terms[place] = dict(zip(columns, values, strict=True))
    return AttentionCosts(latency_us, families, terms)
