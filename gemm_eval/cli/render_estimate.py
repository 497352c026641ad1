"""The tables of `gemm-eval model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from gemm_eval.cli.output import format_share, make_console, make_table, print_rows, widest
from gemm_eval.cli.render_model import print_memory
from gemm_eval.estimate import ModelEstimate, StepEstimate
from gemm_eval.units import time_text

__all__ = ["print_estimates"]

_ARCH, _FITS = "arch", "fits"
_LEFT = (_ARCH, _FITS)
_KEYS = (_ARCH, "batch", "prompt")
_FIGURES = ("first token", "a token", "request", "tok/s", "with prompts", "GB", _FITS)
_STEP = ("operation", "layers", "time", "in all", "share", "bound")


def print_estimates(estimates: Sequence[ModelEstimate], *, operations: bool, memory: bool) -> None:
    """Print one estimate in words, several as a table; steps operation by operation and memory where asked."""
    console = make_console()
    if len(estimates) == 1:
        console.print(estimates[0].explain(), highlight=False)
    else:
        first = estimates[0]
        console.print(
            f"{first.model_name}, {first.output_len:,} tokens of output, {first.num_devices} "
            f"device{'s' * (first.num_devices > 1)} a replica; tok/s are output tokens a second of a device in decode"
        )
        print_rows(list(map(_cells, estimates)), _KEYS, _FIGURES, title="", left=_LEFT)
    for estimate in estimates if operations else ():
        for step in (estimate.prefill, estimate.decode):
            console.print()
            _print_step(estimate, step)
    for estimate in estimates if memory else ():
        console.print()
        held = asdict(estimate.memory) | {"total_bytes": estimate.memory.total_bytes}
        print_memory(held)


def _cells(estimate: ModelEstimate) -> dict[str, str]:
    return {
        _ARCH: estimate.arch_name,
        "batch": f"{estimate.batch:,}",
        "prompt": f"{estimate.prompt_len:,}",
        "first token": time_text(estimate.ttft_us),
        "a token": time_text(estimate.tpot_us),
        "request": time_text(estimate.request_us),
        "tok/s": f"{estimate.decode_tokens_per_s_per_device:,.0f}",
        "with prompts": f"{estimate.tokens_per_s_per_device:,.0f}",
        "GB": f"{estimate.memory.total_bytes / 1e9:,.1f}",
        _FITS: {True: "yes", False: "no", None: "-"}[estimate.fits],
    }


def _print_step(estimate: ModelEstimate, step: StepEstimate) -> None:
    sequences = f"{step.batch:,} sequence{'s' * (step.batch > 1)}"
    title = (
        f"{estimate.model_name} on {estimate.arch_name}, {step.phase}: {sequences}, {step.new_tokens:,} new of "
        f"{step.seq_len:,} tokens, {time_text(step.latency_us)}"
    )
    table = make_table(_STEP, title=title, right=_STEP[1:-1])
    total = step.latency_us
    detailed = make_table((*_STEP, "what"), title=title, right=_STEP[1:-1])
    for cost in step.costs:
        of = cost.operation
        cells = (
            of.name, str(of.num_layers), time_text(cost.latency_us), time_text(cost.total_us),
            format_share(cost.total_us, total), cost.bound,
        )  # fmt: skip
        table.add_row(*cells)
        detailed.add_row(*cells, cost.detail)
    console = make_console()
    console.print(detailed if widest(console, detailed) <= console.width else table)
