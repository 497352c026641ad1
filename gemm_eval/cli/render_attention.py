"""The table of `gemm-eval attention` for several batches or lengths: a row for each, on each arch."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_eval.cli.output import format_number, print_rows
from gemm_eval.evaluate import AttentionResult
from gemm_eval.units import time_text

__all__ = ["print_attentions"]

_ARCH, _TYPES = "arch", "types"
_SIZES = ("batch", "queries", "keys")
_COSTS = ("time", "TFLOP/s", "GB/s", "bound", "kernel", "source")
_LEFT = (_ARCH, _TYPES, "bound", "kernel", "source")


def print_attentions(results: Sequence[AttentionResult]) -> None:
    """Print results that differ in arch, batch and lengths alone; in further tables where the terminal is narrow."""
    cells = [_cells(result) for result in results]
    of = results[0].problem
    words = {name: cells[0][name] for name in (_TYPES, _ARCH) if len({row[name] for row in cells}) == 1}
    title = f"{of.num_heads:,} heads of {of.head_dim:,}, {of.num_kv_heads:,} KV heads"
    title += "".join(f" on {word}" if name == _ARCH else f", {word}" for name, word in words.items())
    keys = [name for name in (_ARCH, _TYPES, *_SIZES) if name not in words]
    print_rows(cells, keys, _COSTS, title=title, left=_LEFT)


def _cells(result: AttentionResult) -> dict[str, str]:
    problem = result.problem
    return {
        _ARCH: result.arch_name,
        _TYPES: str(problem.dtype) + f", cache {problem.kv_dtype}" * (problem.kv_dtype != problem.dtype),
        "batch": f"{problem.batch:,}",
        "queries": f"{problem.q_len:,}",
        "keys": f"{problem.kv_len:,}",
        "time": time_text(result.latency_us),
        "TFLOP/s": format_number(result.tflop_per_s),
        "GB/s": format_number(result.gb_per_s),
        "bound": result.bound,
        "kernel": result.kernel,
        "source": result.source,
    }
