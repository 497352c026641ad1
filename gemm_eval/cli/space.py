"""The commands of design-space exploration, `sweep` and `pareto`, and `report`, one HTML page on an answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli import options as opt
from gemm_eval.cli.words import refuse, refuse_others
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.sweep import SweepResult

_LIMIT = 20
_LATENCY, _WITHIN = "latency_us", " within"
_NUM_SIZES = 4  # G, M, K, N
_OF_MODELS = {
    "phase", "batch_size", "prompt_len", "output_len", "tensor_parallel", "expert_parallel", "dense_dtype",
    "memory_frac", "ignore_memory",
}  # fmt: skip

LimitOption = Annotated[
    int | None, opt.option("Points of the front to print. Default: 20; all with --json and --out.", min=1)
]


def sweep(
    *,
    space: Annotated[Path, opt.argument("Chips, workloads, objectives; see below.", "SPACE.yaml")],
    out: Annotated[Path, opt.option(
        "Folder for the points, as parquet. If it has some of them, the sweep continues there.", "--out",
        metavar="FOLDER"
    )],
    limit: LimitOption = None,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Evaluate a design space of chips against workloads, and print the Pareto front.

    SPACE.yaml defines the space: base (an arch), fields (lists, ranges, or "= expression" in other fields), workloads
    (models or GEMMs), objectives, constraints (area_mm2 <= 200) and sampling; gemm_eval.sweep.read_sweep_file
    documents it, and examples/chip_space.yaml is one. Models run with fused attention unless they say fused: false. The
    points stay in FOLDER, for `pareto` and `report`. A sweep that leaves no point is an error.

    Examples:

    gemm-eval sweep examples/chip_space.yaml --out points
    """  # fmt: skip
    from gemm_eval.sweep import read_sweep_file
    from gemm_eval.sweep import sweep as run

    asked = read_sweep_file(space)
    result = run(asked.space, asked.workloads, path=out, **asked.options)
    _give_front(result, None, limit, opt.Output(json=json))
    if len(result) and not result.is_feasible.any():
        reason = result.excluded().iloc[0]
        raise UnsupportedError(
            f"no point is left: all {len(result):,} are excluded, most as {reason['reason']} (point "
            f"{reason['first_point']}: {reason['example']})"
        )


def pareto(
    ctx: typer.Context,
    *,
    folder: Annotated[Path, opt.argument("Folder of points of `gemm-eval sweep`.", "FOLDER")],
    objective: Annotated[
        list[str] | None,
        opt.option("Column to optimize; repeat for several. Default: those of the sweep.", "--objective", "-o"),
    ] = None,
    limit: LimitOption = None,
    explain: Annotated[int | None, opt.option("Explain a point instead, GEMM by GEMM.", metavar="POINT")] = None,
    output: opt.Output,
) -> None:
    """Print the Pareto front of a sweep: the points that no other beats in every objective.

    Examples:

    gemm-eval pareto points -o energy_pj -o area_mm2

    gemm-eval pareto points --explain 3

    gemm-eval pareto points --out front.csv
    """
    from gemm_eval.cli.output import print_line
    from gemm_eval.sweep import load_sweep

    if explain is not None:
        refuse_others(ctx, "--explain", {"explain", "folder", "objective", "json"})
    result = load_sweep(folder)
    if explain is None:
        _give_front(result, objective, limit, output)
        return
    text = result.explain(explain, objective)
    opt.give(output.json, lambda: {"point": explain, "explanation": text}, lambda: print_line(text))


def _give_front(result: SweepResult, objectives: list[str] | None, limit: int | None, output: opt.Output) -> None:
    names = [*result.field_names, *(objectives or result.objectives)]
    columns = list(dict.fromkeys(["point", *(["arch"] if len(result.bases) > 1 else []), *names]))
    front, reasons = result.pareto(objectives), result.excluded()

    def rows(most: int | None = limit) -> list[dict[str, Any]]:
        plain = front[columns].astype(object).where(front[columns].notna(), None)
        listed: list[dict[str, Any]] = plain.head(len(front) if most is None else most).to_dict("records")
        basis = result.basis(row["point"] for row in listed).to_dict("records")
        return [row | more for row, more in zip(listed, basis, strict=True)]

    def document() -> dict[str, Any]:
        return {
            "num_points": len(result),
            "num_points_asked": result.description["num_points"],
            "num_excluded": int(reasons["num_points"].sum()),
            "excluded": reasons.to_dict("records"),
            "front": rows(),
        }

    def show() -> None:
        from gemm_eval.cli.output import make_console, print_wide, rows_table
        from gemm_eval.units import interval_text

        console = make_console()
        num, asked, most = len(result), result.description["num_points"], limit or _LIMIT
        listed = rows(most)
        formats: list[Any] = [(name.replace("_", "_\n"), name, _format) for name in columns]
        for name in [name for name in columns if name.endswith(_LATENCY)] or [_LATENCY]:
            ends = [f"{name.removesuffix(_LATENCY)}{end}" for end in ("low_us", "high_us")]
            formats.append((f"80% of\n{name.removesuffix('_us')}\nwithin", name + _WITHIN, ""))
            for row in listed:
                row[name + _WITHIN] = interval_text(*(row[end] for end in ends))
        formats += [("library", "library", ""), ("source", "source", "")]
        print_wide(rows_table(listed, formats, title=f"Pareto front: {len(front)} of {num:,} points"))
        if len(front) > most:
            console.print(f"{len(front) - most} more points: raise --limit")
        if num < asked:
            console.print(f"unfinished: {num:,} of {asked:,} points are done")
        for row in reasons.itertuples(index=False):
            console.print(
                f"{row.num_points:,} points excluded as {row.reason}; first: point {row.first_point}, {row.example}"
            )

    output.give(rows, document, show)


def _format(value: Any) -> str:
    if isinstance(value, float) and value == value:  # noqa: PLR0124  nan
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:,.4g}"
    if value is None or isinstance(value, float):
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def report(
    ctx: typer.Context,
    *,
    folder: Annotated[
        Path | None, opt.argument("Folder of points of `gemm-eval sweep`.", "FOLDER")
    ] = None,
    out: Annotated[
        Path, opt.option("File of the page; an existing file is replaced.", "--out", metavar="FILE")
    ] = Path("report.html"),
    model: Annotated[str | None, opt.option(
        "Instead of a sweep: a preset name or a Hugging Face config.json.",
        metavar="NAME", complete=opt.complete_models
    )] = None,
    gemm: Annotated[list[str] | None, opt.option(
        "Instead of a model: a GEMM to compare several --arch on; repeat it for more.",
        metavar="G,M,K,N"
    )] = None,
    arch: opt.OtherArchesOption = None,
    phase: Annotated[opt.Phase, opt.option("With --model: which forward pass.")] = opt.Phase.BOTH,
    batch_size: Annotated[int, opt.option("With --model: number of sequences.", "--batch")] = 1,
    prompt_len: Annotated[
        int, opt.option("With --model: tokens of a prompt; with several --arch, of the context.", "--prompt")
    ] = 1024,
    output_len: Annotated[int, opt.option("With --model and one --arch: tokens of an answer.", "--output")] = 256,
    tensor_parallel: Annotated[int, opt.option("With --model: tensor parallel degree.", "--tp")] = 1,
    expert_parallel: Annotated[int, opt.option("With --model: expert parallel degree.", "--ep")] = 1,
    dtype: Annotated[str | None, opt.option(
        "With --model: types of weight GEMMs; with --gemm: of all GEMMs. Default: that of the arch.",
        complete=opt.complete_schemes
    )] = None,
    dense_dtype: opt.DenseDtypeOption = None,
    memory_frac: opt.MemoryFracOption = None,
    ignore_memory: opt.IgnoreMemoryOption = False,
    run: opt.ModelRun,
    idle_cores: opt.IdleCoresOption = True,
) -> None:  # fmt: skip
    """Write a self-contained HTML page: the best choice, its reasons, plots, sortable tables.

    The page is about a sweep (FOLDER), about a transformer on an arch (--model llama-3-70b --arch h200-sxm: the
    estimate of `gemm-eval model`), or with several --arch about the fastest at the GEMMs of a model or at --gemm.

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
        from gemm_eval.sweep import load_sweep

        result = load_sweep(folder)
        from gemm_eval.report import sweep_report  # only now: it needs another extra

        print_line(f"wrote {sweep_report(result).write(out)}")
        return
    from gemm_eval.report import compare_report, model_report

    evaluators = [run.evaluator(name, allow_idle_cores=idle_cores) for name in archs]
    options: dict[str, Any] = {
        "phases": phase.names, "tensor_parallel": tensor_parallel, "expert_parallel": expert_parallel,
        "dtype": dtype, "dense_dtype": dense_dtype, "ignore_memory": ignore_memory,
    }  # fmt: skip
    if gemms:
        refuse(ctx, "--gemm", _OF_MODELS)
        page = compare_report([_sizes(text) for text in gemms], evaluators, dtype=dtype)
    elif len(evaluators) == 1:
        page = model_report(
            str(model), evaluators[0], batch=batch_size, prompt_len=prompt_len, output_len=output_len,
            memory_frac=memory_frac, **options,
        )  # fmt: skip
    else:
        refuse(ctx, "several --arch", {"output_len", "memory_frac"})
        page = compare_report(str(model), evaluators, batch_size=batch_size, seq_len=prompt_len, **options)
    print_line(f"wrote {page.write(out)}")


def _sizes(text: str) -> list[int]:
    """Return the sizes that ``1,16,4096,12288`` names."""
    words = text.replace(" ", "").split(",")
    if len(words) != _NUM_SIZES or not all(word.isascii() and word.isdigit() for word in words):
        raise InvalidOptionError(f"--gemm is G,M,K,N, four integers such as 1,16,4096,12288; got {shown(text)}")
    return [int(word) for word in words]
