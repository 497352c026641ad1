"""The command `report`: one HTML page on a sweep, or on a model on an arch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemm_eval.cli.model import DenseDtypeOption, IgnoreMemoryOption, Phase
from gemm_eval.cli.options import ClockOption, CorrectionOption, IdleCoresOption, L2Option, ModelLibraryOption
from gemm_eval.cli.words import refuse_others

__all__ = ["report"]


def report(
    ctx: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", help="A sweep: where `gemm-eval sweep` has put its points.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The page; a file that is there is replaced.")
    ] = Path("report.html"),
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of a sweep: a preset name or a Hugging Face config.json.",
            show_default=False,
        ),
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --model: preset name or YAML file.", show_default=False),
    ] = None,
    phase: Annotated[Phase, typer.Option(help="With --model: which forward pass.")] = Phase.BOTH,
    batch_size: Annotated[int, typer.Option("--batch", help="With --model: number of sequences.")] = 1,
    seq_len: Annotated[int, typer.Option("--seq-len", help="With --model: tokens of a sequence.")] = 2048,
    tensor_parallel: Annotated[int, typer.Option("--tp", help="With --model: tensor parallel degree.")] = 1,
    expert_parallel: Annotated[int, typer.Option("--ep", help="With --model: expert parallel degree.")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help="With --model: types of weight GEMMs. Default: the default type of the arch.")
    ] = None,
    dense_dtype: DenseDtypeOption = None,
    ignore_memory: IgnoreMemoryOption = False,
    library: ModelLibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    correction: CorrectionOption = None,
    idle_cores: IdleCoresOption = True,
) -> None:
    """Write one HTML page that needs nothing else: tables that sort, plots, the best designs and why.

    Of a sweep (FOLDER), or of a transformer on an arch (--model llama-3-70b --arch h200-sxm).

    Examples:

    gemm-eval report points --out report.html

    gemm-eval report --model llama-3-70b --arch h200-sxm --tp 4
    """  # fmt: skip
    from gemm_eval.cli.output import print_line
    from gemm_eval.errors import InvalidOptionError

    if (folder is None) == (model is None) or (model is None) != (arch is None):
        raise InvalidOptionError("report takes the folder of a sweep, or --model together with --arch")
    if folder is not None:
        refuse_others(ctx, "FOLDER", {"folder", "out"})
        from gemm_eval.report import sweep_report
        from gemm_eval.sweep import load_sweep

        page = sweep_report(load_sweep(folder))
    else:
        from gemm_eval.evaluate import GEMMEvaluator
        from gemm_eval.report import model_report

        page = model_report(
            str(model),
            GEMMEvaluator(
                str(arch), allow_idle_cores=idle_cores, library=library, l2=l2, clock=clock, correction=correction
            ),
            phases=phase.names,  # type: ignore[arg-type]
            batch_size=batch_size,
            seq_len=seq_len,
            tensor_parallel=tensor_parallel,
            expert_parallel=expert_parallel,
            dtype=dtype,
            dense_dtype=dense_dtype,
            ignore_memory=ignore_memory,
        )
    print_line(f"wrote {page.write(out)}")
