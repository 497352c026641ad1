"""`python -m benchmarks.compare`: our W4A16 kernels beside other engines on this machine's GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.command import run
from benchmarks.compare.operands import Grid
from benchmarks.compare.side_by_side import (
    Case,
    SideBySide,
    Standing,
    by_regime,
    by_rows,
    choose_engines,
    compare_engines,
    list_cases,
    losses,
    make_device,
    stand,
)
from gemm_eval.cli.output import format_number, make_console, make_table, print_json, print_line, write_rows
from gemm_eval.cli.values import SEVERAL, Command, parse_values
from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import check_extra, shown

if TYPE_CHECKING:
    from rich.table import Table

_LIMIT = 0.97  # an engine that takes less of our time than this is ahead
_SUFFIXES = (".parquet", ".csv")
_WITH_PLACE = ("humming", "one-launch-a-group", "cublas", "scaled-mm")
_TITLES = {
    "humming": "humming", "one-launch-a-group": "one launch a group", "cublas": "cuBLAS", "better": "better of both",
    "tinygemm": "tinygemm", "scaled-mm": "fp8 x fp8", "w4a16": "our W4A16",
}  # fmt: skip
"""Engines that tables show, in this order, "better" being the faster one of two; and their titles."""

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command(cls=Command)
def compare(
    activation: Annotated[str, typer.Option(help="Type of A and C: fp16 or bf16.")] = "fp16",
    mode: Annotated[
        str, typer.Option(help="Mode of the weights: column, group, group_zero, mxfp4 or nvfp4.")
    ] = "group",
    group_size: Annotated[
        int | None,
        typer.Option(help="Weights along K that share a scale: 32, 64 or 128. Default: 128, or what the mode has."),
    ] = None,
    grouped: Annotated[
        bool,
        typer.Option(
            "--grouped",
            help="Compare grouped GEMMs: experts of three mixtures with tokens routed at random, beside those of "
            "humming-kernels and a launch for each expert.",
        ),
    ] = False,
    fp8: Annotated[
        bool,
        typer.Option(
            "--fp8",
            help="Compare W4A8: tokens rounded to e4m3 before anything is timed, beside humming-kernels' W4A8, "
            "PyTorch's fp8 GEMM and our own W4A16.",
        ),
    ] = False,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            help="With --grouped: a layer, such as qwen3-30b-a3b-up; may be repeated. Default: both GEMMs of Mixtral "
            "8x7B, Qwen3-30B-A3B and DeepSeek-V3 (on 8 GPUs).",
            metavar="NAME",
        ),
    ] = None,
    routing: Annotated[
        str,
        typer.Option(
            help="With --grouped: how tokens go to experts: uniform, power-law (loads of a density x**-1.2) or busy "
            "(all tokens to one expert, and at random to others).",
            metavar="NAME",
        ),
    ] = "uniform",
    pair: Annotated[
        list[str] | None,
        typer.Option(help="K,N of weights, such as 4096,12288; may be repeated. Default: 12 pairs.", metavar="K,N"),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            help="Rows of A and C. Default: 14 numbers from 1 to 3,500. With --grouped: tokens, by default 7 numbers "
            f"from 1 to 4,096. {SEVERAL}",
            metavar="M,...",
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Engine to compare with: humming, cublas or tinygemm; with --grouped humming or one-launch-a-group; "
            "with --fp8 humming, scaled-mm or w4a16. "
            "May be repeated. Default: all that are installed: pip install 'gemm_eval[gpu,compare]'.",
            metavar="NAME",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write all timings to this .parquet or .csv file, anew after each pair.", metavar="FILE"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON with every timing.")] = False,
) -> None:
    """Time our kernels, by the model's choice, beside humming-kernels, cuBLAS and PyTorch's int4 GEMM."""
    if grouped and pair:
        raise InvalidOptionError("--grouped does not go with --pair")
    if fp8 and (grouped or mode not in ("group", "column")):
        raise InvalidOptionError("--fp8 goes with neither --grouped nor another --mode than group and column")
    if (layer or routing != "uniform") and not grouped:
        raise InvalidOptionError("--layer and --routing go with --grouped")
    options: dict[str, Any] = {"group_size": group_size, "dtype": activation, "mode": mode}
    if rows is not None:
        options["rows"] = parse_values("--rows", rows)
    if pair:
        options["pairs"] = _parse_pairs(pair)
    grid = Grid.experts(layer or (), routing=routing, **options) if grouped else Grid.dense(**options)
    if out is not None:
        if out.suffix not in _SUFFIXES:
            raise InvalidOptionError(f"--out must end with {' or '.join(_SUFFIXES)}, got {shown(str(out))}")
        check_extra("a table of timings", "gpu", "pandas", "pyarrow")
    engines, missing = choose_engines(engine or (), is_grouped=grouped, is_fp8=fp8)
    for name, reason in missing.items() if not json else ():  # a document says it itself
        print_line(f"{name} is left out: {reason}", err=True)
    on_layer = None if out is None else partial(_write, path=out)
    result = compare_engines(make_device(engines), engines, grid, on_layer=on_layer)
    if json:
        print_json(_document(result, missing))
    else:
        _print(result)


def _parse_pairs(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Read (N, K) from words such as ``4096,12288``: K,N, as sizes stand in all commands."""
    pairs = []
    for text in texts:
        try:
            k, n = map(int, text.replace("x", ",").split(","))
        except ValueError:
            raise InvalidOptionError(f"--pair must be K,N such as 4096,12288, got {shown(text)}") from None
        pairs.append((n, k))
    return pairs


def _rows(result: SideBySide) -> list[dict[str, Any]]:
    """Return timings as rows of a table; of grouped GEMMs tokens stand for M, and the layer in front."""
    if not result.grid.is_grouped:
        return [timing._asdict() for timing in result.timings]
    layers = {(layer.N, layer.K): layer for layer in result.grid.layers}
    rows = []
    for timing in result.timings:
        layer, row = layers[timing.N, timing.K], timing._asdict()
        tokens = row.pop("M")
        of_layer = {"layer": layer.name, "num_groups": layer.num_groups, "tokens": tokens}
        of_layer |= {"routing": result.grid.routing}
        rows.append(of_layer | {"expected_rows": layer.expected_rows(tokens)} | row)
    return rows


def _write(result: SideBySide, path: Path) -> None:
    same = {"gpu": result.gpu, **_types(result)}
    write_rows(path, [row | {"library": result.engines[row["engine"]]} | same for row in _rows(result)])


def _types(result: SideBySide) -> dict[str, Any]:
    (gemm, *_) = result.grid.gemms(result.grid.layers[0])
    return {"dtype": result.grid.dtype, "mode": result.grid.mode, "group_size": gemm.group_size}


def _document(result: SideBySide, missing: Mapping[str, str]) -> dict[str, Any]:
    cases, others = list_cases(result.timings), _others(result)
    return {
        "gpu": result.gpu,
        **_types(result),
        "engines": result.engines,
        "missing": dict(missing),
        "by_rows": {str(m): _standings(some, others) for m, some in by_rows(cases).items()},
        "by_regime": {name: _standings(some, others) for name, some in by_regime(cases).items()},
        "behind": [
            {"engine": engine, "ratio": ratio, "N": case.N, "K": case.K, "M": case.M}
            for ratio, engine, case in losses(cases, _timed(others), _LIMIT)
        ],
        "timings": _rows(result),
        "failures": [failure._asdict() for failure in result.failures],
    }


def _standings(cases: Sequence[Case], engines: Sequence[str]) -> dict[str, Any]:
    return {engine: _plain(stand(cases, engine)) for engine in engines}


def _plain(standing: Standing | None) -> dict[str, Any] | None:
    if standing is None:
        return None
    mean, worst, case, num_cases = standing
    return {
        "geometric_mean": mean, "worst": worst, "worst_N": case.N, "worst_K": case.K, "worst_M": case.M,
        "num_cases": num_cases,
    }  # fmt: skip


def _others(result: SideBySide) -> list[str]:
    """Return the names of the other engines, and "better" where there are two to choose from."""
    has_both = {"humming", "cublas"} <= result.engines.keys()
    return [name for name in _TITLES if name in result.engines or (name == "better" and has_both)]


def _timed(others: Iterable[str]) -> list[str]:
    return [name for name in others if name != "better"]


def _print(result: SideBySide) -> None:
    """Print tables of at most 80 columns: by M, by regime, and where another engine is ahead."""
    cases, others, console = list_cases(result.timings), _others(result), make_console()
    grid = result.grid
    types = ", ".join(map(str, _types(result).values())).removesuffix(", 0")
    console.print(f"{result.gpu}, {types}, cold weights, bursts at boost clock")
    for name, library in result.engines.items():
        console.print(f"  {name}: {library}")
    if cases and others:
        console.print()
        rows = "tokens" if grid.is_grouped else "M"
        console.print(f"Its time over ours, by {rows}: geometric mean over N x K, the worst and where")
        console.print(_by_rows_table(rows, by_rows(cases), others))
        console.print()
        console.print(_regimes_table({"all": cases} if grid.is_grouped else by_regime(cases), others))
        console.print()
        _print_losses(rows, cases, others)
    for failure in result.failures:
        m = "every M" if failure.M is None else f"M {failure.M}"
        console.print(f"not timed: {failure.engine}, {failure.N} x {failure.K}, {m}: {failure.error}")


def _by_rows_table(rows: str, groups: Mapping[int, Sequence[Case]], others: Sequence[str]) -> Table:
    with_place = [name for name in others if name in _WITH_PLACE]
    without = [name for name in _timed(others) if name not in with_place]
    headers = [rows]
    for name in with_place:
        headers += [_TITLES[name], "worst", "at"]
    headers += [_TITLES[name] for name in without]
    table = make_table(headers, right=headers)
    for m, cases in groups.items():
        cells = [str(m)]
        for name in with_place:
            standing = stand(cases, name)
            cells += ["-", "-", "-"] if standing is None else [
                f"{standing.mean:.2f}", f"{standing.worst:.2f}", f"{standing.worst_case.N} x {standing.worst_case.K}"
            ]  # fmt: skip
        for name in without:
            standing = stand(cases, name)
            cells.append("-" if standing is None else f"{standing.mean:.2f}")
        table.add_row(*cells)
    return table


def _regimes_table(regimes: Mapping[str, Sequence[Case]], others: Sequence[str]) -> Table:
    headers = ["regime", "GEMMs", *(_TITLES[name] for name in others)]
    table = make_table(headers, title="Geometric mean, and the worst case in parentheses", right=headers[1:])
    for name, cases in regimes.items():
        standings = [stand(cases, other) for other in others]
        table.add_row(
            name, str(len(cases)), *("-" if s is None else f"{s.mean:.2f} ({s.worst:.2f})" for s in standings)
        )
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


if __name__ == "__main__":
    run(app)
