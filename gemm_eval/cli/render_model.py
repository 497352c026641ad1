"""Tables of operations of models on stdout: attention, collectives, experts, GEMMs, steps, memory."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gemm_eval.arch import ArchSpec
from gemm_eval.cli.output import (
    Column,
    format_number,
    format_share,
    format_term,
    make_console,
    print_table,
)
from gemm_eval.estimate import ModelEstimate, StepEstimate
from gemm_eval.evaluate import AttentionResult, CollectiveResult, GEMMResult
from gemm_eval.moe import BREAKDOWN, MoeLayerTable
from gemm_eval.transformer import WHAT_COUNTS, LayerGemm, MemoryShare, ModelConfig, ModelMemory, say_memory
from gemm_eval.units import interval_text, time_text


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
    names = [name for name in rows[0] if name not in common]
    print_table(rows, names, title=title, num_keys=5 - len(common))


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
        "80% within": interval_text(result.low_us, result.high_us),
        "bound": result.bound,
        "kernel": result.kernel,
        "library": result.library,
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
    rows = [result.to_dict()["problem"] | result.to_dict() | {"result": result} for result in results]
    columns: list[Column] = [
        ("ranks", "num_ranks", ""), *([("nodes", "num_nodes", "")] if any(r.num_nodes > 1 for r in results) else []),
        ("bytes", "message_bytes", ","), ("time", "latency_us", time_text),
        ("80% within", "result", lambda result: interval_text(result.low_us, result.high_us)),
        ("bus GB/s", "bus_gb_per_s", format_number), ("bound", "bound", ""), ("algorithm", "algorithm", ""),
        ("source", "source", ""),
    ]  # fmt: skip
    print_table(rows, columns, title=title, num_keys=2)
    console.print(f"Joined by {first.interconnect}. Coefficients {first.origin}.", highlight=False)
    if between := next((result.between_nodes for result in results if result.num_nodes > 1), None):
        console.print(between, highlight=False)


def print_layers(table: MoeLayerTable, arch: ArchSpec, model: str | None) -> None:
    """Print the layers of one command, which differ in tokens alone."""
    results = list(table)
    rows = [
        {
            "tokens": f"{result.layer.num_tokens:,}",
            "rows": f"{result.rows:,.0f}",
            "experts": f"{result.num_active:,.1f}",
            "busiest": f"{result.expert_imbalance:.2f}x",
            "ranks": f"{result.imbalance:.2f}x",
            "time": time_text(result.latency_us),
            "80% within": interval_text(result.low_us, result.high_us),
            "least": time_text(result.min_us),
            "most": time_text(result.max_us),
            "TFLOP/s": f"{result.tflop_per_s:,.1f}",
            "bound": result.bound,
            "library": result.library or "-",
            "source": result.source,
            **{
                format_term(term): time_text(result.breakdown[term])
                for term in BREAKDOWN
                if any(other.breakdown[term] > 0 for other in results)
            },
        }
        for result in results
    ]
    layer = results[0].layer
    whose = {"most_loaded": "the most loaded rank", "mean": "the mean rank"}.get(str(layer.rank), f"rank {layer.rank}")
    title = f"{'Layer' if model is None else model} on {arch.name}, {whose}: {str(layer).partition(', ')[2]}"
    print_table(rows, title=title)
    draws = len(results[0].draws)
    spread = f"Times are means of {draws} draws, with the least and the most. " if draws > 1 else ""
    make_console().print(
        f"\n{spread}experts: those with tokens, of {layer.num_local_experts}; busiest: tokens of the "
        "busiest over the mean; ranks: tokens of the most loaded rank over the mean. Communication between ranks and "
        "the router's GEMM are not counted."
    )


def print_phase(title: str, config: ModelConfig, rows: Sequence[tuple[LayerGemm, GEMMResult]], tokens: int) -> None:
    """Print one forward pass over `tokens` tokens: each kind of GEMM alone, and in all layers that have it."""
    all_us = [gemm.total_count * result.latency_us for gemm, result in rows]
    total_us = sum(all_us)
    cells = [
        {
            "GEMM": gemm.name,
            "types": result.problem.types.inputs,
            "G·M·K·N": "·".join(result.problem.size_words),
            "layers": f"{gemm.num_layers}",
            "bound": result.bound,
            "time": time_text(result.latency_us),
            "80% within": interval_text(result.low_us, result.high_us),
            "total": time_text(us),
            "share": format_share(us, total_us),
            "library": result.options.get("library", "-"),
            "source": result.source,
            "of peak": format_share(result.utilization_frac, 1.0),
        }
        for (gemm, result), us in zip(rows, all_us, strict=True)
    ]
    print_table(cells, title=title)
    in_layers_us = sum(us for (gemm, _), us in zip(rows, all_us, strict=True) if gemm.name != "lm_head")
    make_console().print(
        f"GEMMs of a layer: {time_text(in_layers_us / config.num_layers)} in the mean; of the model: "
        f"{time_text(total_us)}, {time_text(total_us / tokens)} a token\n"
    )


def print_notes(memory: ModelMemory | None, arch: ArchSpec, share: MemoryShare) -> None:
    """Print what the model takes of a device, if it is of interest, and what the sums say of a whole pass."""
    console = make_console()
    if memory is not None:
        console.print(f"Memory: {say_memory(memory, arch, share)}.")
    console.print(WHAT_COUNTS)


def print_memory(document: Mapping[str, Any]) -> None:
    """Print what takes the memory of a device, part by part, from what `memory_document` says."""
    rows = [(part["name"], part["types"], f"{part['num_elems']:,}", part["num_bytes"]) for part in document["weights"]]
    rows += [
        (name.replace("_", " "), "", "", document[f"{name}_bytes"]) for name in ("kv_cache", "activation", "total")
    ]
    cells = [
        {"part": part, "type": types, "elements": elems, "GB": f"{num_bytes / 1e9:,.3f}"}
        for part, types, elems, num_bytes in rows
    ]
    print_table(cells, title=f"Memory of a device (stage {document['stage']})")
    console = make_console()
    if "largest_batch" in document:
        console.print(
            f"In {document['limit_bytes'] / 1e9:,.1f} GB, {document['memory_frac']:g} of the DRAM: at most "
            f"{document['largest_batch']:,} such sequences, or positions of {document['largest_seq_len']:,} each."
        )
    console.print()


def print_estimates(estimates: Sequence[ModelEstimate], *, operations: bool, memory: bool) -> None:
    """Print one estimate in words, several as a table; steps operation by operation and memory where asked."""
    console = make_console()
    first = estimates[0]
    if len(estimates) == 1:
        console.print(first.explain(), highlight=False)
    else:
        console.print(
            f"{first.model_name}, {first.output_len:,} tokens of output, {first.num_devices} "
            f"device{'s' * (first.num_devices > 1)} a replica, engine {first.engine}; "
            "tok/s: output tokens a second of a device in decode; TTFT: one prompt, no queueing"
        )
        rows = [
            {
                "arch": estimate.arch_name,
                "batch": f"{estimate.batch:,}",
                "prompt": f"{estimate.prompt_len:,}",
                "TTFT": time_text(estimate.ttft_us),
                "TPOT": time_text(estimate.tpot_us),
                "80% of TTFT within": interval_text(*estimate.ttft_interval_us),
                "80% of TPOT within": interval_text(*estimate.tpot_interval_us),
                "request": time_text(estimate.request_us),
                "tok/s": f"{estimate.decode_tokens_per_s_per_device:,.0f}",
                "with prompts": f"{estimate.tokens_per_s_per_device:,.0f}",
                "GB": f"{estimate.memory.total_bytes / 1e9:,.1f}",
                "fits": {True: "yes", False: "no", None: "-"}[estimate.fits],
            }
            for estimate in estimates
        ]
        print_table(rows, num_keys=3)
        console.print()
        for estimate in reversed({estimate.arch_name: estimate for estimate in reversed(estimates)}.values()):
            console.print(f"{estimate.arch_name}: {estimate.basis}", highlight=False)
    for estimate in estimates if operations else ():
        for step in (estimate.prefill, estimate.decode):
            console.print()
            _print_step(estimate, step)
    for estimate in estimates if memory else ():
        console.print()
        print_memory(asdict(estimate.memory) | {"total_bytes": estimate.memory.total_bytes})


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
            "total": time_text(cost.total_us),
            "80% within": interval_text(cost.low_us, cost.high_us),
            "share": format_share(cost.total_us, step.latency_us),
            "bound": cost.bound,
            "library": cost.library or "-",
            "source": cost.source or "-",
            "details": cost.detail,
        }
        for cost in step.costs
    ]
    print_table(rows, title=title)
