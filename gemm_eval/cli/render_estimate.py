"""The tables of `gemm-eval model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from gemm_eval.cli.output import format_number, format_share, make_console, make_table, widest
from gemm_eval.cli.render_model import print_memory
from gemm_eval.estimate import ModelEstimate, StepEstimate

__all__ = ["print_estimates"]

_HEADERS = (
    "arch",
    "batch",
    "prompt",
    "first token",
    "per token",
    "request",
    "tok/s a device",
    "with prompts",
    "GB",
    "",
)
_STEP = ("operation", "layers", "us", "us in all", "share", "bound")
_US_PER_MS, _US_PER_S = 1e3, 1e6


def print_estimates(estimates: Sequence[ModelEstimate], *, operations: bool, memory: bool) -> None:
    """Print one estimate in words, several as a table; steps operation by operation and memory where asked."""
    console = make_console()
    if len(estimates) == 1:
        console.print(estimates[0].explain(), highlight=False)
    else:
        first = estimates[0]
        title = (
            f"{first.model_name}, {first.output_len:,} tokens of output, {first.num_devices} "
            f"device{'s' * (first.num_devices > 1)} a replica"
        )
        console.print(_summary(estimates, title))
    for estimate in estimates if operations else ():
        for step in (estimate.prefill, estimate.decode):
            console.print()
            _print_step(estimate, step)
    for estimate in estimates if memory else ():
        console.print()
        held = asdict(estimate.memory) | {"total_bytes": estimate.memory.total_bytes}
        print_memory(held)


def _summary(estimates: Sequence[ModelEstimate], title: str) -> Table:
    table = make_table(_HEADERS, title=title, right=_HEADERS[1:-1])
    for estimate in estimates:
        fits = "" if estimate.fits is not False else "does not fit"
        table.add_row(
            estimate.arch_name,
            f"{estimate.batch:,}",
            f"{estimate.prompt_len:,}",
            _time(estimate.ttft_us),
            _time(estimate.tpot_us),
            _time(estimate.request_us),
            f"{estimate.decode_tokens_per_s_per_device:,.0f}",
            f"{estimate.tokens_per_s_per_device:,.0f}",
            f"{estimate.memory.total_bytes / 1e9:,.1f}",
            fits,
        )
    return table


def _print_step(estimate: ModelEstimate, step: StepEstimate) -> None:
    sequences = f"{step.batch:,} sequence{'s' * (step.batch > 1)}"
    title = (
        f"{estimate.model_name} on {estimate.arch_name}, {step.phase}: {sequences}, {step.new_tokens:,} new of "
        f"{step.seq_len:,} tokens, {_time(step.latency_us)}"
    )
    table = make_table(_STEP, title=title, right=_STEP[1:-1])
    total = step.latency_us
    detailed = make_table((*_STEP, "what"), title=title, right=_STEP[1:-1])
    for cost in step.costs:
        of = cost.operation
        cells = (
            of.name, str(of.num_layers), format_number(cost.latency_us), format_number(cost.total_us),
            format_share(cost.total_us, total), cost.bound,
        )  # fmt: skip
        table.add_row(*cells)
        detailed.add_row(*cells, cost.detail)
    console = make_console()
    console.print(detailed if widest(console, detailed) <= console.width else table)


def _time(us: float) -> str:
    if us >= _US_PER_S:
        return f"{us / _US_PER_S:,.2f} s"
    if us >= _US_PER_MS:
        return f"{us / _US_PER_MS:,.2f} ms"
    return f"{us:,.1f} us"
