"""The command `train`: layouts of a training step on a number of devices, the fastest first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli import options as opt
from gemm_eval.cli.values import SEVERAL, parse_values
from gemm_eval.cli.words import refuse

if TYPE_CHECKING:
    from gemm_eval.training import TrainingEstimate

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
    from gemm_eval.training import find_training_layouts
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
    estimates = find_training_layouts(
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
        lambda: map(_row, estimates),
        lambda: opt.one_or_all([estimate.to_dict() for estimate in estimates]),
        lambda: _show(estimates),
    )


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _row(estimate: TrainingEstimate) -> dict[str, Any]:
    document = estimate.to_dict()
    parts = {name: document.pop(name) for name in ("layout", "breakdown", "memory", "sources", "libraries", "options")}
    del document["stages"], document["definitions"]
    overlap = parts["options"].pop("overlap")
    row = {"model": document.pop("model_name"), "arch": document.pop("arch_name"), **parts["layout"]} | document
    row |= parts["breakdown"] | parts["memory"] | parts["options"]
    row |= {f"{source}_frac": share for source, share in parts["sources"].items()}
    row |= {f"{kind}_library": name for kind, name in parts["libraries"].items()}
    return row | {f"overlap_{name}": share for name, share in (overlap or {}).items()}


def _show(estimates: list[TrainingEstimate]) -> None:
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
