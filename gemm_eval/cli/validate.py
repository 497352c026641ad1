"""The commands of `validate`: errors against timings of GEMMs, layers of experts, attention and collectives."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from gemm_eval.cli.completion import complete_measured_chips, complete_measured_gpus
from gemm_eval.cli.options import (
    EXIT_CODES,
    ChipDataOption,
    FileDtypeOption,
    GpuOption,
    JsonOption,
    SeedOption,
    TritonDataOption,
    dense_data,
    w4a16_data,
)
from gemm_eval.cli.words import Command, Group

__all__ = ["GPU_OPTION", "app"]

GPU_OPTION = "--gpu"
"""Another word for the command `gpu`."""


class _Validate(Group):
    """Takes ``--gpu NAME`` for the command of that name too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words."""
        return super().parse_args(ctx, ["gpu", *args[1:]] if args[:1] == [GPU_OPTION] else args)


app = typer.Typer(
    cls=_Validate,
    no_args_is_help=True,
    help="Compare predicted with measured latencies: of the dense kernels of vendors, of ours, or of Triton's.\n\n"
    "A model is judged on rows that were held out of its fit, by (N, K) pair.",
    epilog=EXIT_CODES,
)


class RowGroup(enum.StrEnum):
    """Regimes of M that can be chosen."""

    DECODE = "decode"
    MID = "mid"
    PREFILL = "prefill"
    ALL = "all"


FoldsOption = Annotated[
    int, typer.Option(min=2, help="Folds of the cross-validation, by (N, K) pair: at most as many as pairs.")
]
RefitOption = Annotated[
    bool | None,
    typer.Option(
        "--refit/--no-fit",
        help="Fit the model on the held-in rows, or score the committed calibration as it is. Default: fit on a GPU "
        "that has a calibration of its own; elsewhere score the coefficients that carry over to it.",
        show_default=False,
    ),
]
JointOption = Annotated[
    bool,
    typer.Option(
        "--joint", help="Fit the model on all cold burst sets of a library together, as calibrate dense does."
    ),
]
RegimeOption = Annotated[
    list[RowGroup] | None,
    typer.Option(
        metavar="NAME",
        help="Regimes to print: decode, mid, prefill, all. Repeatable. Default: each.",
        show_default=False,
    ),
]
AblationOption = Annotated[
    bool,
    typer.Option("--ablation", help="Also what the error is without each term of the model; takes minutes."),
]
PlotsOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write plots (PNG) to this folder.", show_default=False)
]
CsvOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the errors as CSV.", show_default=False)]


@app.command(cls=Command, epilog=EXIT_CODES)
def dense(
    arch: GpuOption = "h200-sxm",
    data: Annotated[list[str] | None, dense_data("all that is committed for the arch")] = None,
    folds: FoldsOption = 5,
    seed: SeedOption = 0,
    refit: RefitOption = None,
    joint: JointOption = False,
    regime: RegimeOption = None,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst (N, K) pairs to print.")] = 5,
    library: Annotated[
        str | None, typer.Option(help="Kernel library of a file that does not say it: cublas, trtllm.")
    ] = None,
    dtype: FileDtypeOption = None,
    plots: PlotsOption = None,
    csv: CsvOption = None,
    json: JsonOption = False,
) -> None:
    """Score the model of cuBLAS kernels, and of TensorRT-LLM's for narrow weights: one time a GEMM.

    Beside the model stand baselines on the same rows: the roofline of the data sheet, a roofline with fitted constants,
    and nvMatmulHeuristics where it is installed. Regimes: decode M <= 16, mid M <= 256, prefill above. On a GPU without
    a calibration of its own nothing is fitted on its timings: the model and the fitted roofline carry over to it.

    Examples:

    gemm-eval validate dense --arch h200-sxm

    gemm-eval validate dense --arch h200-sxm --regime decode --worst 10
    """
    from gemm_eval.cli.validate_dense import validate_dense

    groups = [str(group) for group in regime or []]
    validate_dense(
        arch, data or [], folds, seed, refit=refit, is_joint=joint, groups=groups, worst=worst, library=library,
        dtype=dtype, plots=plots, csv=csv, as_json=json,
    )  # fmt: skip


@app.command(cls=Command, epilog=EXIT_CODES, no_args_is_help=True)
def gpu(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="GPU presets with timings, or all.", autocompletion=complete_measured_gpus
        ),
    ],
    folds: FoldsOption = 5,
    seed: SeedOption = 0,
    regime: RegimeOption = None,
    json: JsonOption = False,
) -> None:
    """Score GPUs, types and regimes in one table, all held out by (N, K); takes minutes.

    A fitted roofline and a table of the same rows, interpolated, stand beside the model and its learned correction.
    Sets of few rows are left out. GPUs whose coefficients carry over from another one stand apart.

    Examples:

    gemm-eval validate gpu h200-sxm l40s
    """
    from gemm_eval.cli.validate_gpus import validate_gpus

    validate_gpus(names, folds, seed, groups=[str(group) for group in regime or []], as_json=json)


@app.command(cls=Command, epilog=EXIT_CODES, no_args_is_help=True)
def moe(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="GPU presets with measured layers, or all.", autocompletion=complete_measured_gpus
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Tables, such as triton-bf16 or grouped/bf16. Repeatable. Default: each.",
            show_default=False,
        ),
    ] = None,
    models: Annotated[bool, typer.Option("--models", help="Also a line for each model that was held out.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="What draws loads of experts, and the rows of fits.")] = 0,
    json: JsonOption = False,
) -> None:
    """Score layers of experts and grouped GEMMs, each model by a fit on the others; takes minutes.

    A roofline with fitted constants stands beside the model. Regimes: tokens of the layer, decode <= 16, mid <= 256,
    prefill above.

    Examples:

    gemm-eval validate moe h200-sxm
    """  # fmt: skip
    from gemm_eval.cli.validate_moe import validate_moe

    validate_moe(names, data or [], seed, models=models, as_json=json)


@app.command(cls=Command, epilog=EXIT_CODES, no_args_is_help=True)
def attention(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="GPU presets with measured attention, or all.",
            autocompletion=complete_measured_gpus,
        ),
    ],
    phase: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="context, generation, mla_context or mla_generation. Repeatable. Default: each.",
            show_default=False,
        ),
    ] = None,
    groups: Annotated[bool, typer.Option("--groups", help="Also by size, by types, and with windows.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="What deals heads to folds.")] = 0,
    json: JsonOption = False,
) -> None:
    """Score attention, each row by a fit on other heads: of (query heads, KV heads, head_dim), of MLA the number.

    A roofline from the data sheet and one with fitted constants stand beside the model. Takes two minutes for all.

    Examples:

    gemm-eval validate attention all --groups
    """
    from gemm_eval.cli.validate_attention import validate_attention

    validate_attention(names, phase or [], seed, groups=groups, as_json=json)


@app.command(cls=Command, epilog=EXIT_CODES)
def collective(
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="GPU presets with measured collectives. Repeatable. Default: all.", show_default=False
        ),
    ] = None,
    hold_out: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="blocks: as many ranks and sizes of one decade; ranks: all rows of as many ranks.",
        ),
    ] = "blocks",
    groups: Annotated[bool, typer.Option("--groups", help="Also by size of the message, and by ranks.")] = False,
    json: JsonOption = False,
) -> None:
    """Score messages between the GPUs of a node, each block of sizes and ranks by a fit on the others.

    The rate of the link, latency and rate fitted (alpha-beta), and a table interpolated stand beside the model. Takes a
    minute for all.

    Examples:

    gemm-eval validate collective --arch h200-sxm
    """
    from gemm_eval.cli.validate_collective import validate_collective

    validate_collective(arch or [], hold_out, groups=groups, as_json=json)


@app.command("memory-bound", cls=Command, epilog=EXIT_CODES)
def memory_bound(
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="GPU presets with measured kernels. Repeatable. Default: all.", show_default=False
        ),
    ] = None,
    groups: Annotated[bool, typer.Option("--groups", help="Also by number of rows.")] = False,
    json: JsonOption = False,
) -> None:
    """Score kernels whose time is that of their bytes, such as norms, each width of rows by a fit on the others.

    The rate of the data sheet, overhead and rate fitted for each kernel, and a table interpolated stand beside the
    model. Takes seconds.

    Examples:

    gemm-eval validate memory-bound --arch h200-sxm --groups
    """
    from gemm_eval.cli.validate_memory_bound import validate_memory_bound

    validate_memory_bound(arch or [], groups=groups, as_json=json)


@app.command(cls=Command, epilog=EXIT_CODES)
def stacks(
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="GPU presets with measured stacks. Repeatable. Default: all.", show_default=False
        ),
    ] = None,
    operations: Annotated[bool, typer.Option("--operations", help="Also each operation of each step.")] = False,
    json: JsonOption = False,
) -> None:
    """Set whole steps of stacks of layers, prompts and decode, beside what was timed, and their memory.

    Llama-3-8B- and Qwen3-30B-A3B-shaped layers in torch, in bf16 and W4A16. Takes seconds.

    Examples:

    gemm-eval validate stacks --operations
    """
    from gemm_eval.cli.validate_stacks import validate_stacks

    validate_stacks(arch or [], operations=operations, as_json=json)


@app.command(cls=Command, epilog=EXIT_CODES, no_args_is_help=True)
def multicore(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="Multi-core chips with timings, or all.", autocompletion=complete_measured_chips
        ),
    ],
    data: ChipDataOption = None,
    folds: FoldsOption = 5,
    seed: SeedOption = 0,
    refit: Annotated[
        bool,
        typer.Option("--refit/--no-fit", help="Fit on the held-in rows, or score the committed calibration as it is."),
    ] = True,
    json: JsonOption = False,
) -> None:
    """Score multi-core chips, held out by (N, K), beside the roofline of the data sheet and a fitted one.

    Examples:

    gemm-eval validate multicore all

    gemm-eval validate multicore tpu-v4 --data timings.csv
    """
    from gemm_eval.cli.multicore_chips import validate_multicore

    validate_multicore(names, data, folds, seed, refit=refit, as_json=json)


@app.command(cls=Command, epilog=EXIT_CODES)
def w4a16(
    arch: GpuOption = "h200-sxm",
    data: Annotated[list[Path] | None, w4a16_data("those that come with the library")] = None,
    folds: FoldsOption = 5,
    seed: SeedOption = 0,
    refit: RefitOption = None,
    ablation: AblationOption = False,
    worst: Annotated[int, typer.Option(min=0, help="How many of the largest errors near the best to print.")] = 5,
    plots: PlotsOption = None,
    csv: CsvOption = None,
    json: JsonOption = False,
) -> None:
    """Score the model of our W4A16 kernels, config by config, and the choice among the configs of a GEMM.

    The choice is judged by its regret: how much longer the chosen config takes than the best that was timed, for the
    model, for other rules, and for timing a few of the model's first. TensorRT-LLM's public W4A16 timings stand below.

    Examples:

    gemm-eval validate w4a16 --worst 10

    gemm-eval validate w4a16 --ablation
    """
    from gemm_eval.cli.validate_kernels import validate_w4a16

    validate_w4a16(
        arch, data or [], folds, seed, refit=refit, is_ablated=ablation, worst=worst, plots=plots, csv=csv,
        as_json=json,
    )  # fmt: skip


@app.command(cls=Command, epilog=EXIT_CODES)
def triton(
    arch: GpuOption = "h200-sxm",
    data: TritonDataOption = None,
    folds: FoldsOption = 5,
    seed: SeedOption = 0,
    refit: RefitOption = None,
    ablation: AblationOption = False,
    worst: Annotated[int, typer.Option(min=0, help="How many of the slowest first choices to print.")] = 5,
    csv: CsvOption = None,
    json: JsonOption = False,
) -> None:
    """Score the model of Triton kernels, config by config, and the choice among the configs of a GEMM.

    Examples:

    gemm-eval validate triton --arch h200-sxm --worst 10
    """
    from gemm_eval.cli.validate_kernels import validate_triton

    validate_triton(arch, data, folds, seed, refit=refit, is_ablated=ablation, worst=worst, csv=csv, as_json=json)
