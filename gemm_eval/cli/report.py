"""The command `report`: one HTML page on a sweep, on a model on an arch, or on several archs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gemm_eval.cli.completion import complete_archs, complete_models, complete_schemes
from gemm_eval.cli.model import MEMORY_FRAC, DenseDtypeOption, IgnoreMemoryOption, MemoryFracOption, Phase
from gemm_eval.cli.options import ClockOption, CorrectionOption, IdleCoresOption, L2Option, ModelLibraryOption
from gemm_eval.cli.words import refuse, refuse_others
from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import shown

__all__ = ["report"]

_NUM_SIZES = 4  # G, M, K, N
_OF_MODELS = {
    "phase", "batch_size", "prompt_len", "output_len", "tensor_parallel", "expert_parallel", "dense_dtype",
    "memory_frac", "ignore_memory",
}  # fmt: skip


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
            autocompletion=complete_models,
        ),
    ] = None,
    gemm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="G,M,K,N",
            help="Instead of a model: a GEMM to compare several --arch on; repeat it for more.",
            show_default=False,
        ),
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --model or --gemm: preset name or YAML file; repeat it to compare several.",
            show_default=False,
            autocompletion=complete_archs,
        ),
    ] = None,
    phase: Annotated[Phase, typer.Option(help="With --model: which forward pass.")] = Phase.BOTH,
    batch_size: Annotated[int, typer.Option("--batch", help="With --model: number of sequences.")] = 1,
    prompt_len: Annotated[
        int, typer.Option("--prompt", help="With --model: tokens of a prompt; of several --arch, of the context.")
    ] = 1024,
    output_len: Annotated[
        int, typer.Option("--output", help="With --model and one --arch: tokens of an answer.")
    ] = 256,
    tensor_parallel: Annotated[int, typer.Option("--tp", help="With --model: tensor parallel degree.")] = 1,
    expert_parallel: Annotated[int, typer.Option("--ep", help="With --model: expert parallel degree.")] = 1,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="With --model: types of weight GEMMs; with --gemm: of all GEMMs. Default: that of the arch.",
            autocompletion=complete_schemes,
        ),
    ] = None,
    dense_dtype: DenseDtypeOption = None,
    memory_frac: MemoryFracOption = MEMORY_FRAC,
    ignore_memory: IgnoreMemoryOption = False,
    library: ModelLibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    correction: CorrectionOption = None,
    idle_cores: IdleCoresOption = True,
) -> None:
    """Write one HTML page that needs nothing else: what is best and why, plots, tables that sort and filter.

    Of a sweep (FOLDER), of a transformer on an arch (--model llama-3-70b --arch h200-sxm: the estimate of `gemm-eval
    model`), or, with several --arch, of who is fastest at the GEMMs of a model or at others, and why.

    Examples:

    gemm-eval report points --out report.html

    gemm-eval report --model llama-3-70b --arch h200-sxm --tp 4

    gemm-eval report --model llama-3-70b --arch h200-sxm --arch b200 --tp 4

    gemm-eval report --gemm 1,16,4096,12288 --gemm 1,4096,4096,12288 --arch h200-sxm --arch tpu-v5e
    """  # fmt: skip
    from gemm_eval.cli.output import print_line

    archs, gemms = arch or [], gemm or []
    if [folder is not None, model is not None, bool(gemms)].count(True) != 1 or (folder is None) != bool(archs):
        raise InvalidOptionError(
            "report takes the folder of a sweep, or --model with one or several --arch, or --gemm with several --arch"
        )
    if folder is not None:
        refuse_others(ctx, "FOLDER", {"folder", "out"})
        from gemm_eval.report import sweep_report
        from gemm_eval.sweep import load_sweep

        print_line(f"wrote {sweep_report(load_sweep(folder)).write(out)}")
        return
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.report import compare_report, model_report

    evaluators = [
        GEMMEvaluator(name, allow_idle_cores=idle_cores, library=library, l2=l2, clock=clock, correction=correction)
        for name in archs
    ]
    if gemms:
        refuse(ctx, "--gemm", _OF_MODELS)
        page = compare_report([_sizes(text) for text in gemms], evaluators, dtype=dtype)
    else:
        options: dict[str, Any] = {
            "phases": phase.names,
            "tensor_parallel": tensor_parallel,
            "expert_parallel": expert_parallel,
            "dtype": dtype,
            "dense_dtype": dense_dtype,
            "ignore_memory": ignore_memory,
        }
        if len(evaluators) == 1:
            page = model_report(
                str(model), evaluators[0], batch=batch_size, prompt_len=prompt_len, output_len=output_len,
                memory_frac=memory_frac, **options,
            )  # fmt: skip
        else:
            refuse(ctx, "several --arch", {"output_len", "memory_frac"})
            page = compare_report(str(model), evaluators, batch_size=batch_size, seq_len=prompt_len, **options)
    print_line(f"wrote {page.write(out)}")


def _sizes(text: str) -> list[int]:
    """The sizes that ``1,16,4096,12288`` names."""
    words = text.replace(" ", "").split(",")
    if len(words) != _NUM_SIZES or not all(word.isascii() and word.isdigit() for word in words):
        raise InvalidOptionError(f"--gemm is G,M,K,N, four integers such as 1,16,4096,12288; got {shown(text)}")
    return [int(word) for word in words]
