"""The tables of `gemm-eval moe`: one row for each number of tokens, with its load and the terms of its time."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gemm_eval.arch import ArchSpec
from gemm_eval.cli.output import format_term, make_console, make_table, print_blocks, widest
from gemm_eval.moe import BREAKDOWN, MoeLayerResult, MoeLayerTable
from gemm_eval.units import time_text

__all__ = ["print_layers"]

_TOKENS = "tokens"
_LOAD = ("rows", "experts", "busiest", "ranks")
_BOUND = "bound"
_TIMES = ("time", "least", "most", "TFLOP/s", _BOUND)
_NOT_COUNTED = "Communication between ranks and the router's GEMM are not counted."


def print_layers(table: MoeLayerTable, arch: ArchSpec, model: str | None) -> None:
    """Print the layers of one command, which differ in tokens alone.

    A table of loads, one of times and one of their terms where the terminal is too narrow for all at once.
    """
    results = list(table)
    terms = [term for term in BREAKDOWN if any(result.breakdown[term] > 0 for result in results)]
    times = [format_term(term) for term in terms]
    cells = [_cells(result, terms) for result in results]
    console = make_console()
    layer = results[0].layer
    whose = {"most_loaded": "the most loaded rank", "mean": "the mean rank"}.get(str(layer.rank), f"rank {layer.rank}")
    words = str(layer).partition(", ")[2]
    title = f"{'Layer' if model is None else model} on {arch.name}, {whose}: {words}"
    whole = _table((_TOKENS, *_LOAD, *_TIMES, *times), cells, title)
    if widest(console, whole) <= console.width:
        console.print(whole)
    else:
        console.print(_table((_TOKENS, *_LOAD), cells, title))
        for headers in (_TIMES, times):
            console.print()
            print_blocks(headers, lambda some: _table((_TOKENS, *some), cells, None))
    draws = len(results[0].draws)
    spread = f"Times are means of {draws} draws, with the least and the most. " if draws > 1 else ""
    console.print(
        f"\n{spread}experts: those with tokens, of {layer.num_local_experts}; busiest: tokens of the "
        f"busiest over the mean; ranks: tokens of the most loaded rank over the mean. {_NOT_COUNTED}"
    )


def _cells(result: MoeLayerResult, terms: Sequence[str]) -> dict[str, str]:
    return {
        _TOKENS: f"{result.layer.num_tokens:,}",
        "rows": f"{result.rows:,.0f}",
        "experts": f"{result.num_active:,.1f}",
        "busiest": f"{result.expert_imbalance:.2f}x",
        "ranks": f"{result.imbalance:.2f}x",
        "TFLOP/s": f"{result.tflop_per_s:,.1f}",
        _BOUND: result.bound,
        "time": time_text(result.latency_us),
        "least": time_text(result.min_us),
        "most": time_text(result.max_us),
        **{format_term(term): time_text(result.breakdown[term]) for term in terms},
    }


def _table(headers: Sequence[str], rows: Sequence[dict[str, str]], title: str | None) -> Table:
    table = make_table(headers, title=title, right=[header for header in headers if header != _BOUND])
    for row in rows:
        table.add_row(*(row[header] for header in headers))
    return table
