"""The work of `kernels --compare`: our kernels beside other engines on this machine's GPU, as tables or a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_eval.cli.output import format_number, make_console, make_table, print_json, print_line, write_rows
from gemm_eval.errors import InvalidOptionError
from gemm_eval.extras import check_extra
from gemm_eval.measure.engines import (
    Case,
    ExpertGrid,
    Grid,
    SideBySide,
    by_regime,
    by_rows,
    choose_engines,
    choose_grouped_engines,
    list_cases,
    losses,
    stand,
    standing_document,
)
from gemm_eval.words import shown

if TYPE_CHECKING:
    from rich.table import Table

_LIMIT = 0.97  # an engine that takes less of our time than this is ahead
_SUFFIXES = (".parquet", ".csv")
_WITH_PLACE = ("humming", "one-launch-a-group", "cublas")
_SHOWN = ("humming", "one-launch-a-group", "cublas", "better", "tinygemm")
_TITLES = {
    "humming": "humming", "one-launch-a-group": "one launch a group", "cublas": "cuBLAS", "better": "better of both",
    "tinygemm": "tinygemm",
}  # fmt: skip


def parse_pairs(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Read (N, K) from words such as ``4096,12288``: K,N, as sizes stand in all commands."""
    pairs = []
    for text in texts:
        try:
            k, n = map(int, text.replace("x", ",").split(","))
        except ValueError:
            raise InvalidOptionError(f"--pair must be K,N such as 4096,12288, got {shown(text)}") from None
        pairs.append((n, k))
    return pairs


def compare(
    weights: Sequence[str] | None, rows: Sequence[int] | None, engines: Sequence[str], out: Path | None, *,
    is_grouped: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Time our kernels and other engines, and print where we stand.

    Args:
        weights: pairs K,N, or of grouped GEMMs names of layers of experts; none: the default ones.
        rows: rows of A and C, or tokens; none: the default ones.
        engines: names of the others; none: all.
        out: table of all timings, written anew after each pair (N, K).
        is_grouped: grouped GEMMs.
        as_json: print a document with all timings.
        given: dtype and group_size of the grid.
    """
    grid: Grid | ExpertGrid
    if is_grouped:
        grid = ExpertGrid.of_names(weights or (), **given, **({} if rows is None else {"tokens": rows}))
    else:
        chosen: dict[str, Any] = {} if rows is None else {"rows": rows}
        if weights:
            chosen["pairs"] = parse_pairs(weights)
        grid = Grid(**given, **chosen)
    from gemm_eval.measure.engines import compare_engines, compare_grouped_engines, make_device

    if out is not None:
        if out.suffix not in _SUFFIXES:
            raise InvalidOptionError(f"--out must end with {' or '.join(_SUFFIXES)}, got {shown(str(out))}")
        check_extra("a table of timings", "gpu", "pandas", "pyarrow")
    on_pair = None if out is None else partial(_write, path=out)
    if isinstance(grid, ExpertGrid):
        groups, missing = choose_grouped_engines(engines)
        _tell(missing, as_json)
        comparison = compare_grouped_engines(make_device(groups), groups, grid, on_pair=on_pair)
    else:
        others, missing = choose_engines(engines)
        _tell(missing, as_json)
        comparison = compare_engines(make_device(others), others, grid, on_pair=on_pair)
    if as_json:
        print_json(document_of(comparison, missing))
    else:
        print_side_by_side(comparison)


def _tell(missing: Mapping[str, str], as_json: bool) -> None:
    for name, reason in missing.items() if not as_json else ():  # a document says it itself
        print_line(f"{name} is left out: {reason}", err=True)


def _rows(comparison: SideBySide) -> list[dict[str, Any]]:
    """Timings as rows of a table; of grouped GEMMs tokens stand for M, and the layer in front."""
    if not isinstance(comparison.grid, ExpertGrid):
        return [timing._asdict() for timing in comparison.timings]
    layers = {(layer.N, layer.K): layer for layer in comparison.grid.layers}
    rows = []
    for timing in comparison.timings:
        layer, row = layers[timing.N, timing.K], timing._asdict()
        tokens = row.pop("M")
        of_layer = {"layer": layer.name, "num_groups": layer.num_groups, "tokens": tokens}
        rows.append(of_layer | {"expected_rows": layer.expected_rows(tokens)} | row)
    return rows


def _write(comparison: SideBySide, path: Path) -> None:
    grid = comparison.grid
    same = {"gpu": comparison.gpu, "dtype": grid.dtype, "group_size": grid.group_size}
    write_rows(path, [row | {"library": comparison.engines[row["engine"]]} | same for row in _rows(comparison)])


def document_of(comparison: SideBySide, missing: Mapping[str, str]) -> dict[str, Any]:
    """Return everything as plain values.

    Args:
        comparison: what was measured.
        missing: why engines were left out, by name.
    """
    cases, others = list_cases(comparison.timings), _others(comparison)
    return {
        "gpu": comparison.gpu,
        "dtype": comparison.grid.dtype,
        "group_size": comparison.grid.group_size,
        "engines": comparison.engines,
        "missing": dict(missing),
        "by_rows": {str(m): _standings(some, others) for m, some in by_rows(cases).items()},
        "by_regime": {name: _standings(some, others) for name, some in by_regime(cases).items()},
        "behind": [
            {"engine": engine, "ratio": ratio, "N": case.N, "K": case.K, "M": case.M}
            for ratio, engine, case in losses(cases, _timed(others), _LIMIT)
        ],
        "timings": _rows(comparison),
        "failures": [failure._asdict() for failure in comparison.failures],
    }


def _standings(cases: Iterable[Case], engines: Sequence[str]) -> dict[str, Any]:
    some = list(cases)
    return {engine: standing_document(stand(some, engine)) for engine in engines}


def _others(comparison: SideBySide) -> list[str]:
    """Return the names of what is compared with: the other engines, and the better of two of them."""
    names = [name for name in _SHOWN if name in comparison.engines]
    both = {"humming", "cublas"} <= set(names)
    return [name for name in _SHOWN if name in names or (name == "better" and both)]


def _timed(others: Iterable[str]) -> list[str]:
    return [name for name in others if name != "better"]


def print_side_by_side(comparison: SideBySide) -> None:
    """Print tables of at most 80 columns: by M, by regime, and where another engine is ahead."""
    cases, others, console = list_cases(comparison.timings), _others(comparison), make_console()
    grid = comparison.grid
    console.print(f"{comparison.gpu}, {grid.dtype}, groups of {grid.group_size}, cold weights, bursts at boost clock")
    for name, library in comparison.engines.items():
        console.print(f"  {name}: {library}")
    if cases and others:
        console.print()
        is_grouped = isinstance(grid, ExpertGrid)
        rows = "tokens" if is_grouped else "M"
        console.print(f"Its time over ours, by {rows}: geometric mean over N x K, the worst and where")
        groups = [(str(m), some) for m, some in by_rows(cases).items()]
        with_place = [name for name in others if name in _WITH_PLACE]
        without = [name for name in _timed(others) if name not in with_place]
        console.print(_by_rows_table(rows, groups, with_place, without))
        console.print()
        console.print(_regimes_table({"all": cases} if is_grouped else by_regime(cases), others))
        console.print()
        _print_losses(rows, cases, others)
    for failure in comparison.failures:
        m = "every M" if failure.M is None else f"M {failure.M}"
        console.print(f"not timed: {failure.engine}, {failure.N} x {failure.K}, {m}: {failure.error}")


def _by_rows_table(
    rows: str, groups: Sequence[tuple[str, Sequence[Case]]], with_place: Sequence[str], others: Sequence[str]
) -> Table:
    headers = [rows]
    for name in with_place:
        headers += [_TITLES[name], "worst", "at"]
    headers += [_TITLES[name] for name in others]
    table = make_table(headers, right=headers)
    for title, cases in groups:
        cells = [title]
        for name in with_place:
            one = stand(cases, name)
            worst = ["-", "-", "-"]
            if one is not None:
                worst = [f"{one.mean:.2f}", f"{one.worst:.2f}", f"{one.worst_case.N} x {one.worst_case.K}"]
            cells += worst
        cells += [_mean(cases, name) for name in others]
        table.add_row(*cells)
    return table


def _mean(cases: Iterable[Case], name: str) -> str:
    one = stand(cases, name)
    return "-" if one is None else f"{one.mean:.2f}"


def _regimes_table(regimes: Mapping[str, Sequence[Case]], others: Sequence[str]) -> Table:
    headers = ["regime", "GEMMs", *(_TITLES[name] for name in others)]
    table = make_table(headers, title="Geometric mean, and the worst case in parentheses", right=headers[1:])
    for name, cases in regimes.items():
        cells = [name, str(len(cases))]
        for other in others:
            one = stand(cases, other)
            cells.append("-" if one is None else f"{one.mean:.2f} ({one.worst:.2f})")
        table.add_row(*cells)
    return table


def _print_losses(rows: str, cases: Sequence[Case], others: Sequence[str]) -> None:
    console = make_console()
    behind = losses(cases, _timed(others), _LIMIT)
    counted = []
    for name in _timed(others):
        num_cases = sum(case.ratio(name) is not None for case in cases)
        counted.append(f"{_TITLES[name]} {sum(engine == name for _, engine, _ in behind)} of {num_cases}")
    console.print(f"Below {_LIMIT}: {', '.join(counted)}")
    if not behind:
        return
    headers = ["ratio", "engine", "N", "K", rows, "ours us", "its us", "our kernel"]
    table = make_table(headers, right=[headers[0], *headers[2:7]])
    for ratio, engine, case in behind:
        table.add_row(
            f"{ratio:.3f}", _TITLES[engine], f"{case.N:,}", f"{case.K:,}", f"{case.M:,}",
            format_number(case.ours.latency_us), format_number(case.others[engine].latency_us),
            " ".join(case.ours.config.split()[:2]),
        )  # fmt: skip
    console.print(table)
