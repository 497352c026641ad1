"""Answers for grouped GEMMs that no model gives: what stands between users and models is tested apart from these.

All rows are priced as those of one plain GEMM, and empty groups as nothing: different problems get different answers,
and the order of groups does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gemm_eval.evaluate.gpu import GpuBackend
from gemm_eval.evaluate.multicore import MulticoreBackend
from gemm_eval.workload import NO_LAYOUTS, GemmProblem, Layouts, problem_of

Backend = type[MulticoreBackend] | type[GpuBackend]


def one_gemm(problem: GemmProblem) -> GemmProblem:
    """The plain GEMM whose price a grouped one gets."""
    if problem.row_groups is None:
        return problem
    return problem_of(problem.types, 1, problem.rows, problem.K, problem.N)


def with_sums(sizes: Any, layouts: Layouts) -> Any:
    """Sizes [num, 4], of grouped GEMMs those of `one_gemm`."""
    if not len(layouts.of):
        return sizes
    sizes = sizes.copy()
    assert len(sizes) == len(layouts.of)
    for problem in np.flatnonzero(layouts.of >= 0).tolist():
        some = slice(*layouts.starts[layouts.of[problem] :][:2].tolist())
        assert layouts.rows[some][0] == sizes[problem, 1]
        sizes[problem, :2] = 1, (layouts.rows[some] * layouts.counts[some]).sum()
    return sizes


def give_answers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Let both backends answer for grouped GEMMs; return what they are asked from now on: (what, is it grouped)."""
    asked: list[tuple[Any, ...]] = []
    for backend in (MulticoreBackend, GpuBackend):
        _give(monkeypatch, backend, asked)
    return asked


def _give(monkeypatch: pytest.MonkeyPatch, backend: Backend, asked: list[tuple[Any, ...]]) -> None:
    def single(name: str) -> Callable[..., Any]:
        search = getattr(backend, name)

        def find(self: Any, problem: GemmProblem, *rest: Any) -> Any:
            asked.append((name, problem.is_grouped))
            return search(self, one_gemm(problem), *rest)

        return find

    for name in ("find", "find_top", "replay"):
        monkeypatch.setattr(backend, name, single(name))
    find_many, intervals, resolve = (getattr(backend, name) for name in ("find_many", "intervals", "resolve"))

    def found(self: Any, types: Any, packed: Any, kind_of: Any, sizes: Any, layouts: Any, advance: Any) -> Any:
        asked.append(("find_many", len(layouts.of) > 0))
        return find_many(self, types, packed, kind_of, with_sums(sizes, layouts), NO_LAYOUTS, advance)

    def ends(self: Any, kinds: Any, kind_of: Any, sizes: Any, layouts: Any, records: Any) -> Any:
        asked.append(("intervals", len(layouts.of) > 0))
        return intervals(self, kinds, kind_of, sizes, layouts, records)

    def resolved(self: Any, *given: Any, is_grouped: bool = False) -> Any:
        asked.append(("resolve", is_grouped))
        return resolve(self, *given)  # they are priced as plain ones

    for name, with_layouts in (("find_many", found), ("intervals", ends)):
        monkeypatch.setattr(backend, name, with_layouts)
    monkeypatch.setattr(backend, "resolve", resolved)
