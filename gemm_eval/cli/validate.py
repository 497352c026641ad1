"""The commands of `validate`: errors against timings of GEMMs, layers of experts, attention and collectives."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

from gemm_eval.cli import options as opt

app = opt.group(
    "Compare predicted with measured latencies: of the dense kernels of vendors, of ours, or of Triton's.\n\n"
    "A model is judged on rows that were held out of its fit, by (N, K) pair.",
)


class RowGroup(enum.StrEnum):
    """Regimes of M that can be chosen."""

    DECODE = "decode"
    MID = "mid"
    PREFILL = "prefill"
    ALL = "all"


FoldsOption = Annotated[
    int, opt.option("Folds of the cross-validation, by (N, K) pair: at most as many as pairs.", min=2)
]
RefitOption = Annotated[bool | None, opt.option(
    "Fit the model on the held-in rows, or score the committed calibration as it is. Default: fit on a GPU "
    "that has a calibration of its own; elsewhere score the coefficients that carry over to it.", "--refit/--no-fit",
    show_default=False
)]  # fmt: skip
JointOption = Annotated[
    bool,
    opt.option("Fit the model on all cold burst sets of a library together, as calibrate dense does.", "--joint"),
]
RegimeOption = Annotated[list[RowGroup] | None, opt.option(
    "Regimes to print: decode, mid, prefill, all. Repeatable. Default: each.", metavar="NAME", show_default=False
)]  # fmt: skip
AblationOption = Annotated[
    bool,
    opt.option("Also what the error is without each term of the model; takes minutes.", "--ablation"),
]
PlotsOption = Annotated[Path | None, opt.option("Write plots (PNG) to this folder.", metavar="DIR", show_default=False)]
CsvOption = Annotated[Path | None, opt.option("Write the errors as CSV.", metavar="FILE", show_default=False)]


@opt.command(app, needs_words=False)
def dense(
    arch: opt.GpuOption = "h200-sxm",
    data: Annotated[list[str] | None, opt.dense_data("all that is committed for the arch")] = None,
    folds: FoldsOption = 5,
    seed: opt.SeedOption = 0,
    refit: RefitOption = None,
    joint: JointOption = False,
    regime: RegimeOption = None,
    worst: Annotated[int, opt.option("How many of the worst (N, K) pairs to print.", min=0)] = 5,
    library: Annotated[str | None, opt.option("Kernel library of a file that does not say it: cublas, trtllm.")] = None,
    dtype: opt.FileDtypeOption = None,
    plots: PlotsOption = None,
    csv: CsvOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Score the model of cuBLAS kernels, and of TensorRT-LLM's for narrow weights: one time a GEMM.

    Beside the model stand baselines on the same rows: the roofline of the data sheet, a roofline with fitted constants,
    and nvMatmulHeuristics where it is installed. Regimes: decode M <= 16, mid M <= 256, prefill above. On a GPU without
    a calibration of its own nothing is fitted on its timings: the model and the fitted roofline carry over to it.

    Examples:

    gemm-eval validate dense --arch h200-sxm

    gemm-eval validate dense --arch h200-sxm --regime decode --worst 10
    """
    from gemm_eval.cli.score import validate_dense

    groups = [str(name) for name in regime or []]
    validate_dense(
        arch, data or [], folds, seed, refit=refit, is_joint=joint, groups=groups, worst=worst, library=library,
        dtype=dtype, plots=plots, csv=csv, as_json=json,
    )  # fmt: skip


@opt.command(app)
def gpu(
    names: Annotated[
        list[str], opt.argument("GPU presets with timings, or all.", "NAME...", complete=opt.complete_measured_gpus)
    ],
    folds: FoldsOption = 5,
    seed: opt.SeedOption = 0,
    regime: RegimeOption = None,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Score GPUs, types and regimes in one table, all held out by (N, K); takes minutes.

    A fitted roofline and a table of the same rows, interpolated, stand beside the model and its learned correction.
    Sets of few rows are left out. GPUs whose coefficients carry over from another one stand apart.

    Examples:

    gemm-eval validate gpu h200-sxm l40s
    """
    from gemm_eval.cli.score import validate_gpus

    validate_gpus(names, folds, seed, groups=[str(name) for name in regime or []], as_json=json)


@opt.command(app)
def moe(
    names: Annotated[
        list[str],
        opt.argument("GPU presets with measured layers, or all.", "NAME...", complete=opt.complete_measured_gpus),
    ],
    data: Annotated[list[str] | None, opt.option(
        "Tables, such as triton-bf16 or grouped/bf16. Repeatable. Default: each.", metavar="NAME", show_default=False
    )] = None,
    models: Annotated[bool, opt.option("Also a line for each model that was held out.", "--models")] = False,
    seed: Annotated[int, opt.option("What draws loads of experts, and the rows of fits.", min=0)] = 0,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Score layers of experts and grouped GEMMs, each model by a fit on the others; takes minutes.

    A roofline with fitted constants stands beside the model. Regimes: tokens of the layer, decode <= 16, mid <= 256,
    prefill above.

    Examples:

    gemm-eval validate moe h200-sxm
    """  # fmt: skip
    from gemm_eval.cli.score_subjects import validate_subject
    from gemm_eval.validation.subjects.experts import exam

    validate_subject(exam(data or [], seed), names, groups=models, as_json=json, options={"seed": seed})


@opt.command(app)
def attention(
    names: Annotated[
        list[str],
        opt.argument("GPU presets with measured attention, or all.", "NAME...", complete=opt.complete_measured_gpus),
    ],
    phase: Annotated[list[str] | None, opt.option(
        "context, generation, mla_context or mla_generation. Repeatable. Default: each.", metavar="WORD",
        show_default=False
    )] = None,
    groups: Annotated[bool, opt.option("Also by size, by types, and with windows.", "--groups")] = False,
    seed: Annotated[int, opt.option("What deals heads to folds.", min=0)] = 0,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Score attention, each row by a fit on other heads: of (query heads, KV heads, head_dim), of MLA the number.

    A roofline from the data sheet and one with fitted constants stand beside the model. Takes two minutes for all.

    Examples:

    gemm-eval validate attention all --groups
    """
    from gemm_eval.cli.score_subjects import validate_subject
    from gemm_eval.validation.subjects.attention import exam

    validate_subject(exam(phase or [], seed), names, groups=groups, as_json=json, options={"seed": seed})


@opt.command(app, needs_words=False)
def collective(
    arch: Annotated[
        list[str] | None,
        opt.option(
            "GPU presets with measured collectives. Repeatable. Default: all.", metavar="NAME", show_default=False
        ),
    ] = None,
    hold_out: Annotated[
        str,
        opt.option("blocks: as many ranks and sizes of one decade; ranks: all rows of as many ranks.", metavar="WORD"),
    ] = "blocks",
    groups: Annotated[bool, opt.option("Also by size of the message, and by ranks.", "--groups")] = False,
    json: opt.JsonOption = False,
) -> None:
    """Score messages between the GPUs of a node, each block of sizes and ranks by a fit on the others.

    The rate of the link, latency and rate fitted (alpha-beta), and a table interpolated stand beside the model. Takes a
    minute for all.

    Examples:

    gemm-eval validate collective --arch h200-sxm
    """
    from gemm_eval.cli.score_subjects import validate_subject
    from gemm_eval.validation.subjects.collective import exam

    validate_subject(exam(hold_out), arch or [], groups=groups, as_json=json, options={"hold_out": hold_out})


@opt.command(app, "memory-bound", needs_words=False)
def memory_bound(
    arch: Annotated[
        list[str] | None,
        opt.option("GPU presets with measured kernels. Repeatable. Default: all.", metavar="NAME", show_default=False),
    ] = None,
    groups: Annotated[bool, opt.option("Also by number of rows.", "--groups")] = False,
    json: opt.JsonOption = False,
) -> None:
    """Score kernels whose time is that of their bytes, such as norms, each width of rows by a fit on the others.

    The rate of the data sheet, overhead and rate fitted for each kernel, and a table interpolated stand beside the
    model. Takes seconds.

    Examples:

    gemm-eval validate memory-bound --arch h200-sxm --groups
    """
    from gemm_eval.cli.score_subjects import validate_subject
    from gemm_eval.validation.subjects.memory_bound import EXAM

    validate_subject(EXAM, arch or [], groups=groups, as_json=json)


@opt.command(app, needs_words=False)
def stacks(
    arch: Annotated[
        list[str] | None,
        opt.option("GPU presets with measured stacks. Repeatable. Default: all.", metavar="NAME", show_default=False),
    ] = None,
    operations: Annotated[bool, opt.option("Also each operation of each step.", "--operations")] = False,
    json: opt.JsonOption = False,
) -> None:
    """Set whole steps of stacks of layers, prompts and decode, beside what was timed, and their memory.

    Llama-3-8B- and Qwen3-30B-A3B-shaped layers in torch, in bf16 and W4A16. Takes seconds.

    Examples:

    gemm-eval validate stacks --operations
    """
    from gemm_eval.cli.score_subjects import validate_stacks

    validate_stacks(arch or [], operations=operations, as_json=json)


@opt.command(app)
def multicore(
    names: Annotated[
        list[str],
        opt.argument("Multi-core chips with timings, or all.", "NAME...", complete=opt.complete_measured_chips),
    ],
    data: opt.ChipDataOption = None,
    folds: FoldsOption = 5,
    seed: opt.SeedOption = 0,
    refit: Annotated[
        bool,
        opt.option("Fit on the held-in rows, or score the committed calibration as it is.", "--refit/--no-fit"),
    ] = True,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Score multi-core chips, held out by (N, K), beside the roofline of the data sheet and a fitted one.

    Examples:

    gemm-eval validate multicore all

    gemm-eval validate multicore tpu-v4 --data timings.csv
    """
    from gemm_eval.cli.score_subjects import validate_multicore

    validate_multicore(names, data, folds, seed, refit=refit, as_json=json)


@opt.command(app, needs_words=False)
def w4a16(
    arch: opt.GpuOption = "h200-sxm",
    data: Annotated[list[Path] | None, opt.w4a16_data("those that come with the library")] = None,
    folds: FoldsOption = 5,
    seed: opt.SeedOption = 0,
    refit: RefitOption = None,
    ablation: AblationOption = False,
    worst: Annotated[int, opt.option("How many of the largest errors near the best to print.", min=0)] = 5,
    plots: PlotsOption = None,
    csv: CsvOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Score the model of our W4A16 kernels, config by config, and the choice among the configs of a GEMM.

    The choice is judged by its regret: how much longer the chosen config takes than the best that was timed, for the
    model, for other rules, and for timing a few of the model's first. TensorRT-LLM's public W4A16 timings stand below.

    Examples:

    gemm-eval validate w4a16 --worst 10

    gemm-eval validate w4a16 --ablation
    """
    from gemm_eval.cli.score import validate_w4a16

    validate_w4a16(
        arch, data or [], folds, seed, refit=refit, is_ablated=ablation, worst=worst, plots=plots, csv=csv,
        as_json=json,
    )  # fmt: skip


@opt.command(app, needs_words=False)
def triton(
    arch: opt.GpuOption = "h200-sxm",
    data: opt.TritonDataOption = None,
    folds: FoldsOption = 5,
    seed: opt.SeedOption = 0,
    refit: RefitOption = None,
    ablation: AblationOption = False,
    worst: Annotated[int, opt.option("How many of the slowest first choices to print.", min=0)] = 5,
    csv: CsvOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Score the model of Triton kernels, config by config, and the choice among the configs of a GEMM.

    Examples:

    gemm-eval validate triton --arch h200-sxm --worst 10
    """
    from gemm_eval.cli.score import validate_triton

    validate_triton(arch, data, folds, seed, refit=refit, is_ablated=ablation, worst=worst, csv=csv, as_json=json)
