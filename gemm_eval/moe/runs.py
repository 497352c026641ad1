"""The runs behind layers of experts: one rank in one draw of one layer, with the GEMMs that it needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec
from gemm_eval.evaluate import GEMMTable
from gemm_eval.moe.layer import MoeLayer, RoutedDraws, route
from gemm_eval.moe.table import DrawColumns
from gemm_eval.moe.terms import BREAKDOWN, layer_terms
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.workload import MAX_MACS, GemmProblem, GemmTypes, MoeWork, RowGroups, problem_of

__all__ = ["Runs", "draw_columns", "make_runs"]

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_WORK_SIZES = ("num_tokens", "hidden", "inter", "num_experts", "num_local_experts", "topk")
_SHARED_SIZES = ("shared_width", "shared_tokens")
_GEMM1, _GEMM2, _SHARED = (BREAKDOWN.index(name) for name in ("gemm1_us", "gemm2_us", "shared_us"))


class Runs(NamedTuple):
    """All runs of some layers: those of a draw stand together, and those of a layer.

    Attributes:
        layers: [num_layers] what was asked.
        types: [num_layers] data types of their GEMMs.
        routed: [num_layers] what routing gives their ranks.
        problems: the GEMMs of all.
        layer_of: [num_runs].
        gemm_rows: [num_runs, 2], places of GEMM 1 and 2 in `problems`; -1: the rank has no token.
        shared_rows: [num_layers, 2], the same of the shared experts; -1: there are none.
    """

    layers: list[MoeLayer]
    types: list[GemmTypes]
    routed: list[RoutedDraws]
    problems: list[GemmProblem]
    layer_of: Rows
    gemm_rows: Rows
    shared_rows: Rows

    def column(self, name: str) -> Rows:
        """Return what `RoutedDraws` has by that name, [num_runs]."""
        return np.concatenate([getattr(draws, name) for draws in self.routed])


def make_runs(layers: list[MoeLayer], types: list[GemmTypes]) -> Runs:
    """Route the tokens of some layers, at least one, and list the GEMMs.

    Raises:
        InvalidOptionError: weights or counts of one's own that are of other sizes.
        InvalidProblemError: a GEMM that is too large.
    """
    routed = [route(layer) for layer in layers]
    problems: list[GemmProblem] = []
    num_runs = [len(draws.rows) for draws in routed]
    gemm_rows = np.full((sum(num_runs), 2), -1, np.int64)
    shared_rows = np.full((len(layers), 2), -1, np.int64)
    run = 0
    for place, (layer, draws, of) in enumerate(zip(layers, routed, types, strict=True)):
        inter, columns = layer.local_inter, 1 + layer.gated
        for groups in draws.groups:
            if groups[0]:
                gemm_rows[run] = len(problems), len(problems) + 1
                problems += (_gemm(of, groups, layer.hidden, columns * inter), _gemm(of, groups, inter, layer.hidden))
            run += 1
        if width := layer.shared_width:
            shared_rows[place] = len(problems), len(problems) + 1
            rows = (layer.shared_tokens,)
            problems += (_gemm(of, rows, layer.hidden, columns * width), _gemm(of, rows, width, layer.hidden))
    return Runs(layers, types, routed, problems, np.repeat(np.arange(len(layers)), num_runs), gemm_rows, shared_rows)


def _gemm(types: GemmTypes, groups: RowGroups, K: int, N: int) -> GemmProblem:
    """The grouped GEMM of groups whose largest comes first, its sizes being checked already but for their product."""
    if len(groups) * groups[0] * K * N > MAX_MACS:
        return GemmProblem.grouped(groups, K, N, **types.words)  # says that it is too large
    return problem_of(types, len(groups), groups[0], K, N, None if groups[0] == groups[-1] else groups)


def draw_columns(arch: ArchSpec, runs: Runs, gemms: GEMMTable) -> DrawColumns:
    """Bring runs together to draws: a draw is one run, or with ``rank="mean"`` the mean of one for each rank."""
    rows, layer_of = runs.column("rows"), runs.layer_of
    sizes = {name: values[layer_of] for name, values in _sizes(runs.layers).items()}
    latency_us, dram_bytes = (np.append(gemms[name].astype(float), 0.0) for name in ("latency_us", "dram_bytes"))
    shared_rows = runs.shared_rows[layer_of]  # of place -1, where nothing runs, the time is 0

    terms = _other_terms(arch, runs, sizes, gemms["library"] if "library" in gemms.columns else None)
    terms[:, [_GEMM1, _GEMM2]] = latency_us[runs.gemm_rows]
    terms[:, _SHARED] += latency_us[shared_rows].sum(axis=1)
    of_expert = rows * sizes["inter"].astype(float)
    of_shared = sizes["shared_tokens"] * sizes["shared_width"].astype(float)
    values = {
        "rows": rows.astype(float),
        "num_active": runs.column("num_active").astype(float),
        "max_rows": np.array([groups[0] for draws in runs.routed for groups in draws.groups], float),
        # gate, up and down, or up and down
        "flop": FLOP_PER_MAC * sizes["hidden"] * (2.0 + sizes["gated"]) * (of_expert + of_shared),
        "dram_bytes": dram_bytes[runs.gemm_rows].sum(axis=1) + dram_bytes[shared_rows].sum(axis=1),
    }
    num_draws = [len(draws.imbalance) for draws in runs.routed]
    starts = np.concatenate(([0], np.cumsum(num_draws))).astype(np.int64)
    num = np.repeat([len(draws.rows) // len(draws.imbalance) for draws in runs.routed], num_draws)  # runs of a draw
    first = np.cumsum(num) - num
    means = {name: _means(column, first, num) for name, column in values.items()}
    means["imbalance"] = np.concatenate([draws.imbalance for draws in runs.routed])
    gemm_rows = runs.gemm_rows[_nearest_to_mean(terms.sum(axis=1), first, num)]
    return DrawColumns(starts, _means(terms, first, num[:, None]), means, gemm_rows)


def _sizes(layers: list[MoeLayer]) -> dict[str, Rows]:
    """Columns [num_layers] of what terms depend on; `inter` is that of one rank."""
    sizes = {
        name: np.array([getattr(layer, name) for layer in layers], np.int64)
        for name in (*_WORK_SIZES, *_SHARED_SIZES, "gated", "tp")
    }
    sizes["inter"] //= sizes["tp"]
    return sizes


def _other_terms(arch: ArchSpec, runs: Runs, sizes: dict[str, Rows], libraries: npt.NDArray[Any] | None) -> Floats:
    """Times [num_runs, len(BREAKDOWN)] besides those of GEMMs."""
    rows, num_active = runs.column("rows"), runs.column("num_active")
    terms = np.zeros((len(rows), len(BREAKDOWN)))
    for (types, gated, library), chosen in _alike(runs, libraries).items():
        work = MoeWork(
            **{name: sizes[name][chosen] for name in _WORK_SIZES}, local_rows=rows[chosen],
            num_active=num_active[chosen], gated=gated, types=types,
        )  # fmt: skip
        for name, times in layer_terms(arch, library, work).items():
            terms[chosen, BREAKDOWN.index(name)] = times
        tokens, width = (sizes[name][chosen] for name in ("shared_tokens", "shared_width"))
        if width.any():
            one = np.ones_like(tokens)
            as_expert = work._replace(  # one that every token takes, whose rows are quantized as those of the others
                num_tokens=tokens, inter=width, num_experts=one, num_local_experts=one, topk=one,
                local_rows=np.where(width > 0, tokens, 0), num_active=one,
            )  # fmt: skip
            times_of = layer_terms(arch, library, as_expert)
            terms[chosen, _SHARED] = times_of["activation_us"] + times_of["quantize_us"]
    return terms


def _alike(runs: Runs, libraries: npt.NDArray[Any] | None) -> dict[tuple[GemmTypes, bool, str | None], Rows]:
    """Return the runs of each kind: data types, whether gated, and whose kernels run GEMM 1.

    A rank without a token runs no GEMM: it is taken as other runs of its types.
    """
    found: dict[tuple[GemmTypes, bool, str | None], list[int]] = {}
    library_of: dict[GemmTypes, str] = {}
    for run, (layer, row) in enumerate(zip(runs.layer_of.tolist(), runs.gemm_rows[:, 0].tolist(), strict=True)):
        types = runs.types[layer]
        if row >= 0 and libraries is not None:
            library_of[types] = libraries[row]
        found.setdefault((types, runs.layers[layer].gated, library_of.get(types)), []).append(run)
    return {kind: np.array(chosen, np.int64) for kind, chosen in found.items()}


def _means(column: Floats, first: Rows, num: Rows) -> Floats:
    """Means over the runs of each draw, which start at `first` and are `num`."""
    means: Floats = np.add.reduceat(column, first) / num
    return means


def _nearest_to_mean(latency_us: Floats, first: Rows, num: Rows) -> Rows:
    """The run that stands for each draw: of several ranks the one whose time is nearest to their mean."""
    found = first.copy()
    for draw in np.flatnonzero(num > 1):
        of_ranks = latency_us[first[draw] : first[draw] + num[draw]]
        found[draw] += int(np.argmin(np.abs(of_ranks - of_ranks.mean())))
    return found
