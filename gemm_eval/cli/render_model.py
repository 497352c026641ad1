"""Tables of operations of models on stdout: attention, collectives, experts, GEMMs, steps, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gemm_eval.arch import ArchSpec
from gemm_eval.cli.output import (
    format_number,
    format_share,
    format_term,
    make_console,
    print_blocks,
    print_rows,
    print_whole_or,
    rows_table,
    widest,
)
from gemm_eval.estimate import ModelEstimate, StepEstimate
from gemm_eval.evaluate import AttentionResult, CollectiveResult, GEMMResult
from gemm_eval.moe import BREAKDOWN, MoeLayerResult, MoeLayerTable
from gemm_eval.transformer import WHAT_COUNTS, LayerGemm, ModelConfig, ModelMemory, say_memory
from gemm_eval.units import time_text

# Attention and collectives.


def print_attentions(results: Sequence[AttentionResult], *, num_archs: int) -> None:
    """Print results that differ in arch, batch and lengths alone: in words where there is one for each arch."""
    if len(results) == num_archs:
        console = make_console()
        for index, result in enumerate(results):
            console.print(("\n" if index else "") + result.explain(), highlight=False)
        return
    rows = [_attention_cells(result) for result in results]
    problem = results[0].problem
    common = {name: rows[0][name] for name in ("types", "arch") if len({row[name] for row in rows}) == 1}
    title = f"{problem.num_heads:,} heads of {problem.head_dim:,}, {problem.num_kv_heads:,} KV heads"
    title += "".join(f" on {word}" if name == "arch" else f", {word}" for name, word in common.items())
    keys = [name for name in ("arch", "types", "batch", "queries", "keys") if name not in common]
    print_rows(rows, keys, ("time", "TFLOP/s", "GB/s", "bound", "kernel", "source"), title=title)


def _attention_cells(result: AttentionResult) -> dict[str, str]:
    problem = result.problem
    return {
        "arch": result.arch_name,
        "types": str(problem.dtype) + f", cache {problem.kv_dtype}" * (problem.kv_dtype != problem.dtype),
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


def print_collectives(results: Sequence[CollectiveResult]) -> None:
    """Print results that differ in size and ranks alone; one result with the words of its terms."""
    console = make_console()
    first = results[0]
    if len(results) == 1:
        console.print(first.explain(), highlight=False)
        return
    title = f"{first.problem.what} on {first.arch_name}, {first.link_gb_per_s:,.0f} GB/s a direction; {first.library}"
    rows = [
        {
            "ranks": f"{result.problem.num_ranks}",
            "bytes": f"{result.problem.message_bytes:,}",
            "time": time_text(result.latency_us),
            "bus GB/s": format_number(result.bus_gb_per_s),
            "bound": result.bound,
            "algorithm": result.algorithm,
        }
        for result in results
    ]
    print_rows(rows, list(rows[0])[:2], list(rows[0])[2:], title=title)
    console.print(f"Joined by {first.interconnect}. Coefficients {first.origin}.", highlight=False)


# Layers of experts.

_LOAD = ("rows", "experts", "busiest", "ranks")
_LAYER_TIMES = ("time", "least", "most", "TFLOP/s", "bound")


def print_layers(table: MoeLayerTable, arch: ArchSpec, model: str | None) -> None:
    """Print the layers of one command, which differ in tokens alone.

    A table of loads, one of times and one of their terms where the terminal is too narrow for all at once.
    """
    results = list(table)
    terms = [term for term in BREAKDOWN if any(result.breakdown[term] > 0 for result in results)]
    times = [format_term(term) for term in terms]
    cells = [_layer_cells(result, terms) for result in results]
    console = make_console()
    layer = results[0].layer
    whose = {"most_loaded": "the most loaded rank", "mean": "the mean rank"}.get(str(layer.rank), f"rank {layer.rank}")
    title = f"{'Layer' if model is None else model} on {arch.name}, {whose}: {str(layer).partition(', ')[2]}"
    whole = rows_table(cells, ("tokens", *_LOAD, *_LAYER_TIMES, *times), title=title)
    if widest(console, whole) <= console.width:
        console.print(whole)
    else:
        console.print(rows_table(cells, ("tokens", *_LOAD), title=title))
        for headers in (_LAYER_TIMES, times):
            console.print()
            print_blocks(headers, lambda some: rows_table(cells, ("tokens", *some)))
    draws = len(results[0].draws)
    spread = f"Times are means of {draws} draws, with the least and the most. " if draws > 1 else ""
    console.print(
        f"\n{spread}experts: those with tokens, of {layer.num_local_experts}; busiest: tokens of the "
        "busiest over the mean; ranks: tokens of the most loaded rank over the mean. Communication between ranks and "
        "the router's GEMM are not counted."
    )


def _layer_cells(result: MoeLayerResult, terms: Sequence[str]) -> dict[str, str]:
    return {
        "tokens": f"{result.layer.num_tokens:,}",
        "rows": f"{result.rows:,.0f}",
        "experts": f"{result.num_active:,.1f}",
        "busiest": f"{result.expert_imbalance:.2f}x",
        "ranks": f"{result.imbalance:.2f}x",
        "TFLOP/s": f"{result.tflop_per_s:,.1f}",
        "bound": result.bound,
        "time": time_text(result.latency_us),
        "least": time_text(result.min_us),
        "most": time_text(result.max_us),
        **{format_term(term): time_text(result.breakdown[term]) for term in terms},
    }


# GEMMs of a model, and its memory.

_SHAPES = ("GEMM", "types", "G·M·K·N", "layers")
_GEMM_TIMES = ("bound", "time", "in all", "share", "of peak")


def print_phase(title: str, config: ModelConfig, rows: Sequence[tuple[LayerGemm, GEMMResult]], tokens: int) -> None:
    """Print one forward pass over `tokens` tokens: each kind of GEMM alone, and in all layers that have it.

    A table of shapes and one of times where the terminal is too narrow for both at once.
    """
    total_us = sum(gemm.total_count * result.latency_us for gemm, result in rows)
    cells = [_gemm_cells(gemm, result, total_us) for gemm, result in rows]
    console = make_console()
    parts = rows_table(cells, _SHAPES, title=title), rows_table(cells, (_SHAPES[0], *_GEMM_TIMES))
    print_whole_or(rows_table(cells, (*_SHAPES, *_GEMM_TIMES), title=title), *parts)
    in_layers_us = sum(gemm.total_count * result.latency_us for gemm, result in rows if gemm.name != "lm_head")
    console.print(
        f"GEMMs of a layer: {time_text(in_layers_us / config.num_layers)} in the mean; of the model: "
        f"{time_text(total_us)}, {time_text(total_us / tokens)} a token\n"
    )


def _gemm_cells(gemm: LayerGemm, result: GEMMResult, total_us: float) -> dict[str, str]:
    all_us = gemm.total_count * result.latency_us
    return {
        "GEMM": gemm.name,
        "types": result.problem.types.inputs,
        "G·M·K·N": "·".join(result.problem.size_words),
        "layers": f"{gemm.num_layers}",
        "bound": result.bound,
        "time": time_text(result.latency_us),
        "in all": time_text(all_us),
        "share": format_share(all_us, total_us),
        "of peak": format_share(result.utilization_frac, 1.0),
    }


def print_notes(memory: ModelMemory, arch: ArchSpec, memory_frac: float) -> None:
    """Print what the model takes of a device, and what the sums say of a whole pass."""
    console = make_console()
    console.print(f"Memory: {say_memory(memory, arch, memory_frac)}.")
    console.print(WHAT_COUNTS)


def print_memory(document: Mapping[str, Any]) -> None:
    """Print what takes the memory of a device, part by part, from what `memory_document` says."""
    rows = [
        (part["name"], part["types"], f"{part['num_elems']:,}", part["num_bytes"]) for part in document["weights"]
    ] + [(name.replace("_", " "), "", "", document[f"{name}_bytes"]) for name in ("kv_cache", "activation", "total")]
    cells = [
        {"part": part, "type": types, "elements": elems, "GB": f"{num_bytes / 1e9:,.3f}"}
        for part, types, elems, num_bytes in rows
    ]
    console = make_console()
    console.print(rows_table(cells, title=f"Memory of a device (stage {document['stage']})"))
    if "largest_batch" in document:
        console.print(
            f"In {document['limit_bytes'] / 1e9:,.1f} GB, {document['memory_frac']:g} of the DRAM: at most "
            f"{document['largest_batch']:,} such sequences, or positions of {document['largest_seq_len']:,} each."
        )
    console.print()


# Estimates of whole steps.


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
        rows = list(map(_estimate_cells, estimates))
        print_rows(rows, list(rows[0])[:3], list(rows[0])[3:], title="")
    for estimate in estimates if operations else ():
        for step in (estimate.prefill, estimate.decode):
            console.print()
            _print_step(estimate, step)
    for estimate in estimates if memory else ():
        console.print()
        print_memory(asdict(estimate.memory) | {"total_bytes": estimate.memory.total_bytes})


def _estimate_cells(estimate: ModelEstimate) -> dict[str, str]:
    return {
        "arch": estimate.arch_name,
        "batch": f"{estimate.batch:,}",
        "prompt": f"{estimate.prompt_len:,}",
        "first token": time_text(estimate.ttft_us),
        "a token": time_text(estimate.tpot_us),
        "request": time_text(estimate.request_us),
        "tok/s": f"{estimate.decode_tokens_per_s_per_device:,.0f}",
        "with prompts": f"{estimate.tokens_per_s_per_device:,.0f}",
        "GB": f"{estimate.memory.total_bytes / 1e9:,.1f}",
        "fits": {True: "yes", False: "no", None: "-"}[estimate.fits],
    }


def _print_step(estimate: ModelEstimate, step: StepEstimate) -> None:
    sequences = f"{step.batch:,} sequence{'s' * (step.batch > 1)}"
    title = (
        f"{estimate.model_name} on {estimate.arch_name}, {step.phase}: {sequences}, {step.new_tokens:,} new of "
        f"{step.seq_len:,} tokens, {time_text(step.latency_us)}"
    )
    rows = [
        {
            "operation": cost.operation.name,
            "layers": str(cost.operation.num_layers),
            "time": time_text(cost.latency_us),
            "in all": time_text(cost.total_us),
            "share": format_share(cost.total_us, step.latency_us),
            "bound": cost.bound,
            "what": cost.detail,
        }
        for cost in step.costs
    ]
    print_whole_or(rows_table(rows, title=title), rows_table(rows, list(rows[0])[:-1], title=title))
