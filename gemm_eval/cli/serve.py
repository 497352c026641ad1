"""The commands on deployments: `serve`, which one serves requests best, and `train`, layouts of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import gemm_eval
from gemm_eval.cli import options as opt
from gemm_eval.cli.values import SEVERAL, parse_values, refuse
from gemm_eval.errors import InvalidOptionError

_REQUESTS, _DEVICES = "Requests", "Devices"
_MOST_LEFT_OUT = 6
_DEFINITIONS = (
    "TTFT: from sending a request to its first token, with queueing. TPOT: the rest of its time over the tokens after "
    "the first (AIPerf: inter token latency). ITL: between two chunks of a stream (AIPerf: inter chunk latency). "
    "tok/s/user: 1 / TPOT. tok/s/GPU: output tokens of all requests."
)


def _counts(name: str, text: str) -> Any:
    return opt.option(f"{text} Default: all that divide. {SEVERAL}", f"--{name}", metavar="N,...", panel=_DEVICES)


def serve(
    ctx: typer.Context,
    *,
    model: opt.ModelArgument,
    arch: opt.ArchesOption,
    gpus: Annotated[str | None, opt.option(
        f"GPUs of the deployment. Default: 8,16; of a given layout those of one replica. {SEVERAL}", "--gpus",
        metavar="N,...", show_default=False, panel=_DEVICES
    )] = None,
    prompt_len: Annotated[int, opt.option("Tokens of a prompt.", "--isl", "--prompt", panel=_REQUESTS)] = 1024,
    output_len: Annotated[int, opt.option("Tokens of an answer.", "--osl", "--output", panel=_REQUESTS)] = 1024,
    ttft_ms: Annotated[
        float | None, opt.option("Largest mean TTFT, with queueing. Default: any.", "--ttft-ms", panel=_REQUESTS)
    ] = None,
    tpot_ms: Annotated[float | None, opt.option("Largest TPOT. Default: any.", "--tpot-ms", panel=_REQUESTS)] = None,
    concurrency: Annotated[str | None, opt.option(
        f"Requests in flight. Default: powers of two, up to what fits. {SEVERAL}", "--concurrency", metavar="N,...",
        show_default=False, panel=_REQUESTS
    )] = None,
    prefix_hit_frac: Annotated[float, opt.option(
        "Share of a prompt whose keys and values are in the cache already.", "--prefix-hit", panel=_REQUESTS
    )] = 0.0,
    speculative_tokens: Annotated[
        int, opt.option("Tokens guessed and verified in a step.", "--speculate", panel=_REQUESTS)
    ] = 0,
    acceptance: Annotated[float, opt.option("Share of guesses that hold.", panel=_REQUESTS)] = 0.7,
    has_fixed_lengths: Annotated[bool, opt.option(
        "All outputs are equally long, as in benchmarks without a range of lengths.", "--fixed-lengths",
        panel=_REQUESTS
    )] = False,
    engine: Annotated[list[str] | None, opt.option(
        "vllm, sglang, trtllm, ideal or a YAML file; repeat it to compare. Default: the "
        "engine with most timings on the arch.", metavar="NAME", show_default=False
    )] = None,
    tensor_parallel: Annotated[str | None, _counts("tp", "Tensor parallel degrees.")] = None,
    pipeline_parallel: Annotated[str | None, _counts("pp", "Pipeline parallel degrees.")] = None,
    expert_parallel: Annotated[str | None, _counts("ep", "Expert parallel degrees.")] = None,
    disaggregated: Annotated[bool, opt.option(
        "Also search separate pools of prefill and decode workers.", "--disagg/--no-disagg", panel=_DEVICES
    )] = True,
    dtype: Annotated[list[str] | None, opt.option(
        "Types of weights: bf16, fp8, ...; repeat it to compare. Default: from the model's file.",
        complete=opt.complete_schemes, show_default=False
    )] = None,
    kv_dtype: opt.KvDtypeOption = None,
    memory_frac: opt.MemoryFracOption = None,
    page: Annotated[Path | None, opt.option(
        "Also write an HTML page with the plot of the front to this file.", "--page", metavar="FILE"
    )] = None,
    run: opt.ModelRun,
    output: opt.Output,
) -> None:  # fmt: skip
    """Find the deployments of a model that serve most tokens a GPU within limits of latency, and their commands.

    All layouts of tensor, pipeline, expert and attention data parallelism, replicas, pools of prefill and decode
    workers, types and loads are estimated; the Pareto front of tok/s/GPU over tok/s/user is shown, best first, and
    the commands that start the best. With one --tp and one --concurrency it prints the
    latencies and rates of that layout.

    Examples:

    gemm-eval serve llama-3-70b --arch h200-sxm --gpus 8 --isl 4096 --osl 1024 --ttft-ms 1000 --tpot-ms 50

    gemm-eval serve deepseek-v3 --arch b200 --gpus 8,16 --isl 4096 --no-disagg --page serve.html

    gemm-eval serve llama-3-70b --arch h200-sxm --engine vllm --tp 4 --concurrency 64 --dtype fp8
    """  # fmt: skip
    counts = {
        name: None if text is None else parse_values(f"--{name}", text)
        for name, text in (
            ("tp", tensor_parallel), ("pp", pipeline_parallel), ("ep", expert_parallel), ("concurrency", concurrency),
            ("gpus", gpus),
        )
    }  # fmt: skip
    evaluators = [run.evaluator(name) for name in arch]
    dtypes: Sequence[str | None] = dtype or [None]
    common: dict[str, Any] = {
        "prompt_len": prompt_len, "output_len": output_len, "prefix_hit_frac": prefix_hit_frac,
        "speculative_tokens": speculative_tokens, "acceptance": acceptance, "has_fixed_lengths": has_fixed_lengths,
        "kv_dtype": kv_dtype, "memory_frac": memory_frac,
    }  # fmt: skip
    several = (evaluators, engine, dtypes, *counts.values())
    if counts["tp"] and counts["concurrency"] and all(len(values or [0]) == 1 for values in several):
        refuse(ctx, "one --tp with one --concurrency", {"ttft_ms", "tpot_ms", "page", "disaggregated"})
        given = {name: None if values is None else values[0] for name, values in counts.items()}
        more = {"engine": engine and engine[0], "dtype": dtypes[0]}
        estimate = _one(model, evaluators[0], given, common | more)
        output.give(lambda: [_row(estimate)], estimate.to_dict, lambda: _show_one(model, estimate))
        return
    result = gemm_eval.find_deployments(
        model, evaluators, counts["gpus"] or (8, 16), ttft_us=ttft_ms and ttft_ms * 1e3,
        tpot_us=tpot_ms and tpot_ms * 1e3, **common, engines=engine, dtypes=dtypes,
        concurrencies=counts["concurrency"], disaggregated=disaggregated, tensor=counts["tp"], pipeline=counts["pp"],
        expert=counts["ep"],
    )  # fmt: skip
    commands = _commands(model, result.best)
    if page is not None:
        from gemm_eval.cli.output import print_line
        from gemm_eval.report import deployments_report

        print_line(f"wrote {deployments_report(result, commands).write(page)}", err=True)
    output.give(
        lambda: map(_row, result.front), lambda: result.to_dict() | {"commands": commands},
        lambda: _show(result, commands),
    )  # fmt: skip


def _one(
    model: str, evaluator: gemm_eval.GEMMEvaluator, counts: dict[str, int | None], options: dict[str, Any]
) -> gemm_eval.ServingEstimate:
    """Return the estimate of one layout, with as many replicas as fill the GPUs."""
    tensor, pipeline, expert = (counts[name] or 1 for name in ("tp", "pp", "ep"))
    size = pipeline * max(tensor, expert)
    num_replicas, rest = divmod(counts["gpus"] or size, size)
    if rest or not num_replicas:
        raise InvalidOptionError(f"--gpus must be a multiple of the {size} GPUs of a replica, got {counts['gpus']}")
    return gemm_eval.estimate_serving(
        model, evaluator, counts["concurrency"] or 1, num_replicas=num_replicas, tensor_parallel=tensor,
        pipeline_parallel=pipeline, expert_parallel=expert, **options,
    )  # fmt: skip


def _commands(model: str, estimate: gemm_eval.ServingEstimate) -> tuple[str, ...]:
    from gemm_eval.serving import checkpoint_of, engine_commands

    return engine_commands(estimate, model if Path(model).exists() else checkpoint_of(gemm_eval.load_model(model)))


def _row(estimate: gemm_eval.ServingEstimate) -> dict[str, Any]:
    """Return an estimate as a row: figures, and the degrees and types of the replicas that decode."""
    from gemm_eval.cli.output import flat
    from gemm_eval.serving import summary

    names = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "dtype", "kv_dtype")
    of_row = {name: value for name, value in summary(estimate).items() if name != "basis"}
    return flat(of_row) | {name: estimate.options[name] for name in names}


def _show_one(model: str, estimate: gemm_eval.ServingEstimate) -> None:
    from gemm_eval.cli.output import make_console, print_line

    console = make_console()
    console.print(estimate.explain(), highlight=False)
    console.print(f"\n{_DEFINITIONS}", highlight=False)
    for text in _commands(model, estimate):
        print_line(f"\n{text}")


def _show(result: gemm_eval.Deployments, commands: tuple[str, ...]) -> None:
    from gemm_eval.cli.output import Column, format_number, make_console, print_line, print_table
    from gemm_eval.units import interval_text, time_text

    console = make_console()
    columns: list[Column] = [
        ("layout", "layout", ""), ("arch", "arch", ""), ("engine", "engine", ""), ("GPUs", "num_devices", ","),
        ("types", "dtype", lambda dtype: dtype or "checkpoint"), ("in flight", "concurrency", ","),
        ("tok/s/GPU", "tokens_per_s_per_device", ",.0f"), ("tok/s/user", "tokens_per_s_per_user", ",.0f"),
        ("TTFT", "ttft_us", time_text), ("p99", "ttft_p99_us", time_text), ("TPOT", "tpot_us", time_text),
        ("ITL p99", "itl_p99_us", time_text), ("requests/s", "requests_per_s", format_number),
        ("80% of TTFT within", "estimate", lambda r: interval_text(*r.ttft_interval_us)),
        ("80% of TPOT within", "estimate", lambda r: interval_text(*r.tpot_interval_us)),
    ]  # fmt: skip
    title = (
        f"{result.model_name}, {result.prompt_len:,} + {result.output_len:,} tokens: the Pareto front of "
        f"{result.num_points:,} deployments, {result.num_within:,} within the limits"
    )
    print_table([_row(estimate) | {"estimate": estimate} for estimate in result.front], columns, title=title)
    console.print(f"\n{_DEFINITIONS}", highlight=False)
    for reason, num in list(result.reasons().items())[:_MOST_LEFT_OUT]:
        first = next(item for item in result.left_out if item.reason == reason)
        others = f" and {num - 1} more" if num > 1 else ""
        console.print(f"left out: {first.layout}{others} on {first.arch_name}: {reason}", highlight=False)
    if len(result.reasons()) > _MOST_LEFT_OUT:
        console.print(f"{len(result.reasons()) - _MOST_LEFT_OUT} more reasons: see --json")
    if len(result.best_by_arch) > 1:
        bests = (f"{r.arch_name} {r.tokens_per_s_per_device:,.0f} ({r.layout})" for r in result.best_by_arch)
        console.print(f"best tok/s/GPU within the limits: {', '.join(bests)}", highlight=False)
    best = result.best
    console.print(f"{best.layout} on {best.arch_name}: {best.basis}", highlight=False)
    for text in commands:
        print_line(f"\n{text}")


_STEP, _LAYOUT = "Step", "Layout"


def _degrees(name: str, text: str) -> Any:
    return Annotated[
        str | None,
        opt.option(f"{text} {SEVERAL} Default: all that are legal.", f"--{name}", metavar="N,...", panel=_LAYOUT,
                   show_default=False),
    ]  # fmt: skip


def _words(name: str, text: str) -> Any:
    return opt.option(text, f"--{name}", metavar="WORD,...", panel=_STEP)


def train(
    ctx: typer.Context,
    *,
    model: opt.ModelArgument,
    arch: opt.ArchOption,
    gpus: Annotated[int, opt.option("Number of devices.", "--gpus", panel=_LAYOUT)] = 8,
    global_batch: Annotated[int, opt.option("Sequences of a step.", "--batch", panel=_STEP)] = 512,
    seq_len: Annotated[int, opt.option("Tokens of a sequence.", "--seq-len", panel=_STEP)] = 4096,
    tensor_parallel: _degrees("tp", "Tensor parallel degrees.") = None,  # type: ignore[valid-type]
    pipeline_parallel: _degrees("pp", "Pipeline parallel degrees.") = None,  # type: ignore[valid-type]
    context_parallel: Annotated[str, opt.option(
        f"Context parallel degrees. {SEVERAL}", "--cp", metavar="N,...", panel=_LAYOUT
    )] = "1",
    expert_parallel: _degrees("ep", "Expert parallel degrees, of models with experts.") = None,  # type: ignore[valid-type]
    data_parallel: _degrees("dp", "Data parallel degrees.") = None,  # type: ignore[valid-type]
    micro_batch: Annotated[str, opt.option(
        f"Sequences of a microbatch. {SEVERAL}", "--micro-batch", metavar="N,...", panel=_STEP
    )] = "1,2,4",
    zero: Annotated[str, opt.option(
        "ZeRO: 0 nothing, 1 optimizer states, 2 gradients, 3 weights are divided over data-parallel devices. Several: "
        "1,3.", "--zero", metavar="N,...", panel=_STEP
    )] = "1",
    recompute: Annotated[str, _words("recompute", "Recomputation in the backward pass: none, selective (norms, "
        "activations, MLA's up-projections) or full (each layer).")] = "none,selective,full",
    schedule: Annotated[str, _words(
        "schedule", "Pipeline schedules: 1f1b, interleaved, zero-bubble, dualpipe."
    )] = "1f1b,interleaved",
    dtype: Annotated[str, opt.option(
        "Type of the GEMMs of layers: bf16, fp8, fp8_block, mxfp8, ...; the rest stays in 16 bits.",
        complete=opt.complete_schemes, panel=_STEP
    )] = "bf16",
    optimizer: Annotated[str, opt.option("adamw, adamw-bf16 (moments in bf16) or sgd.", panel=_STEP)] = "adamw",
    mtp_layers: Annotated[int, opt.option(
        "Layers that predict further tokens, with a head each (DeepSeek-V3: 1).", "--mtp", panel=_STEP
    )] = 0,
    top: Annotated[int, opt.option("Layouts to show.", "--top", min=1)] = 10,
    memory_frac: opt.MemoryFracOption = None,
    ignore_memory: opt.IgnoreMemoryOption = False,
    plot: Annotated[Path | None, opt.option(
        "Also draw the passes of each pipeline stage over the fastest step (PNG). Needs the extra plot.", metavar="FILE"
    )] = None,
    output: opt.Output,
) -> None:  # fmt: skip
    """Predict time, MFU and memory of a training step, on the fastest of all legal layouts.

    A step is what Megatron-LM runs: GEMMs with both gradients, attention, memory-bound kernels, collectives, the bubble
    of the pipeline, and the optimizer. Data loading, checkpoints and restarts are not in it.

    Examples:

    gemm-eval train llama-3-8b --arch h100-sxm --gpus 8 --batch 128 --seq-len 8192 --dtype fp8 --zero 1,3

    gemm-eval train llama-3-70b --arch h100-sxm --gpus 64 --batch 256 --tp 4 --pp 8 --micro-batch 1 --plot step.png
    """
    from gemm_eval.transformer import MEMORY_FRAC

    if output.out is not None:
        refuse(ctx, "--out", set())
    asked = {
        "tensor": ("--tp", tensor_parallel), "pipeline": ("--pp", pipeline_parallel),
        "context": ("--cp", context_parallel), "expert": ("--ep", expert_parallel), "data": ("--dp", data_parallel),
    }  # fmt: skip
    degrees: dict[str, Any] = {
        name: None if text is None else parse_values(flag, text) for name, (flag, text) in asked.items()
    }
    estimates = gemm_eval.find_training_layouts(
        model, arch, num_devices=gpus, global_batch=global_batch, seq_len=seq_len,
        max_context=max(degrees["context"] or [1]), micro_batches=parse_values("--micro-batch", micro_batch),
        zeros=[int(word) if word.strip().isdigit() else word for word in zero.split(",")],  # type: ignore[misc]
        recomputes=_split(recompute), schedules=_split(schedule), dtype=dtype, optimizer=optimizer,
        mtp_layers=mtp_layers, memory_frac=MEMORY_FRAC if memory_frac is None else memory_frac,
        ignore_memory=ignore_memory, **degrees,
    )[:top]  # fmt: skip
    if plot is not None:
        from gemm_eval.figures import save_figure
        from gemm_eval.report.plots import plot_training_step

        save_figure(plot_training_step(estimates[0]), plot)
    output.give(
        lambda: map(_layout_row, estimates),
        lambda: opt.one_or_all([estimate.to_dict() for estimate in estimates]),
        lambda: _show_layouts(estimates),
    )


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _layout_row(estimate: gemm_eval.TrainingEstimate) -> dict[str, Any]:
    document = estimate.to_dict()
    parts = {name: document.pop(name) for name in ("layout", "breakdown", "memory", "sources", "libraries", "options")}
    del document["stages"], document["definitions"]
    overlap = parts["options"].pop("overlap")
    row = {"model": document.pop("model_name"), "arch": document.pop("arch_name"), **parts["layout"]} | document
    row |= parts["breakdown"] | parts["memory"] | parts["options"]
    row |= {f"{source}_frac": share for source, share in parts["sources"].items()}
    row |= {f"{kind}_library": name for kind, name in parts["libraries"].items()}
    return row | {f"overlap_{name}": share for name, share in (overlap or {}).items()}


def _show_layouts(estimates: list[gemm_eval.TrainingEstimate]) -> None:
    from gemm_eval.cli.output import make_console, print_table
    from gemm_eval.units import interval_text, time_text

    make_console().print(estimates[0].explain(), highlight=False)
    rows = [
        {
            "layout": str(estimate.layout),
            "micro": str(estimate.micro_batch),
            "ZeRO": str(estimate.options["zero"]),
            "recompute": str(estimate.options["recompute"]),
            "schedule": f"{estimate.options['schedule']} x{estimate.options['num_chunks']}".removesuffix(" x1"),
            "step": time_text(estimate.latency_us),
            "80% within": interval_text(estimate.low_us, estimate.high_us),
            "tok/s": f"{estimate.tokens_per_s_per_device:,.0f}",
            "MFU": f"{estimate.mfu_frac:.1%}",
            "GB": f"{estimate.memory.total_bytes / 1e9:,.1f}",
            "fits": {True: "yes", False: "no", None: "-"}[estimate.fits],
        }
        for estimate in estimates
    ]
    if len(rows) > 1:
        print_table(rows, num_keys=5, title="Layouts; tok/s of one device")
