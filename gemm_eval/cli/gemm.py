"""The commands on GEMMs: `evaluate`, `top` and `grouped`; on design spaces: `sweep` and `pareto`; and `report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gemm_eval.cli import options as opt
from gemm_eval.cli.values import parse_mapping, parse_rows, refuse, refuse_others
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.arch import ArchSpec
    from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
    from gemm_eval.sweep import SweepResult
    from gemm_eval.workload import GemmProblem


_SHAPES = "--shapes"


def evaluate(
    *,
    ctx: typer.Context,
    arch: opt.ArchesOption,
    sizes: opt.SeveralSizes,
    shapes: Annotated[Path | None, opt.option(
        "Evaluate the GEMMs of a .csv or .parquet file instead: columns M, K, N; G, row_groups, dtype and "
        "other options of this command, such as weight_dtype or l2, if there are any; all others are kept.",
        _SHAPES, metavar="FILE"
    )] = None,
    gemm: opt.GemmOptions,
    mapping: opt.MappingOption = None,
    explain: opt.ExplainOption = None,
    output: opt.Output,
) -> None:  # fmt: skip
    """Find the best mapping of C = A x B, its latency, traffic and energy.

    DRAM traffic in bytes, energy in uJ; with --json times in us. With several --arch, one column for each. Several
    GEMMs, of ranges or a file, have a row each.

    Examples:

    gemm-eval evaluate --arch h200-sxm 1 4096 4096 14336 --dtype fp8

    gemm-eval evaluate --arch demo-8core --arch l40s 1 16 4096 12288

    gemm-eval evaluate --arch h200-sxm -m 1..256 -k 4096 -n 12288 --dtype w4a16

    gemm-eval evaluate --arch h200-sxm --arch b200 --shapes shapes.csv --out times.csv
    """
    gemm.check_library()
    if mapping is not None:
        refuse(ctx, "--mapping", {"idle_cores"})  # it says itself which cores work
    if output.out is not None:
        refuse(ctx, "--out", {"explain"})
    if shapes is not None:
        refuse(ctx, _SHAPES, {"sizes", "g", "m", "k", "n"})
    several = sizes.all()
    if shapes is None and not several:
        raise sizes.missing(f", or {_SHAPES} FILE")
    evaluators = [gemm.evaluator(name) for name in arch]
    if shapes is None and len(several) == 1:
        problems = ((evaluator, gemm.problem(evaluator.arch, several[0])) for evaluator in evaluators)
        _give_results([_answer(*question, gemm, mapping) for question in problems], explain, output)
        return
    from gemm_eval.cli import shapes as many
    from gemm_eval.cli.output import print_line, read_records

    refuse(ctx, "several GEMMs" if shapes is None else _SHAPES, {"mapping", "explain"})
    listed = [many.Shape(row) for row in several]
    if shapes is not None:
        listed = [many.shape_of(where, row) for where, row in read_records(shapes)]
    of_arch = [many.evaluate_shapes(evaluator, listed, gemm.types, gemm.run) for evaluator in evaluators]
    answers = [answer for of_shape in zip(*of_arch, strict=True) for answer in of_shape]
    output.give(
        lambda: many.records(answers),
        lambda: {"results": list(many.documents(answers))},
        lambda: many.print_shapes(answers),
    )
    if output.out is not None and (misfits := many.say_misfits(answers)):
        print_line(misfits, err=True)


def top(
    *,
    arch: opt.ArchOption,
    sizes: opt.BatchedSizes,
    count: Annotated[int, opt.option("Number of mappings to list, 1 to 10000.", "--count", "-c")] = 10,
    distinct: Annotated[Literal["mapping", "partition"], opt.option(
        "mapping: the best mappings; partition: the best of each partition (not on a GPU)."
    )] = "mapping",
    gemm: opt.GemmOptions,
    output: opt.Output,
) -> None:  # fmt: skip
    """List the best mappings of C = A x B and their differences.

    DRAM traffic of the chip and SRAM used in a core or SM in bytes, differences to the best in percent.

    Examples:

    gemm-eval top --arch h200-sxm 1 256 4096 12288 --count 5

    gemm-eval top --arch demo-8core -m 2048 -k 4096 -n 14336 --distinct partition
    """
    gemm.check_library()
    wanted = sizes.one()
    evaluator = gemm.evaluator(arch)
    problem = gemm.problem(evaluator.arch, wanted)
    results = evaluator.top(problem, count, distinct=distinct, **gemm.run)
    _give_ranking(evaluator.arch, results, output)


def grouped(
    *,
    ctx: typer.Context,
    arch: opt.ArchesOption,
    rows: Annotated[str, opt.option(
        "Rows of each group, such as 120,3,0,17; 120x64,0x8 are 64 groups of 120 rows and 8 without a row. "
        "Their order does not matter.", metavar="LIST"
    )],
    sizes: opt.WeightSizes,
    top: Annotated[
        int | None, opt.option("List so many of the best mappings, 1 to 10000, instead of explaining one.")
    ] = None,
    gemm: opt.GemmOptions,
    mapping: opt.MappingOption = None,
    explain: opt.ExplainOption = None,
    output: opt.Output,
) -> None:  # fmt: skip
    """Find the best mapping of a grouped GEMM: each group has its own rows and weights.

    The experts of a mixture run so: an expert has as many rows as tokens are routed to it.

    Examples:

    gemm-eval grouped --arch h200-sxm 7168 4096 --rows 120,3,0,17 --dtype bf16

    gemm-eval grouped --arch b200 -k 4096 -n 1536 --rows 16x120,0x8 --dtype fp8_block --json

    gemm-eval grouped --arch demo-8core -k 2048 -n 512 --rows 64x4,9 --top 5
    """
    from gemm_eval.workload import check_row_groups

    of_weights = sizes.one()
    if output.out is not None:
        refuse(ctx, "--out", {"explain"})
    if mapping is not None:
        refuse(ctx, "--mapping", {"idle_cores", "top"})  # it says itself which cores work
    if top is not None:
        refuse(ctx, "--top", {"explain"})
        if len(arch) > 1:
            raise InvalidOptionError(f"--top ranks the mappings of one --arch, got {len(arch)}: give one")
    groups = check_row_groups(parse_rows(rows))
    results = []
    for name in arch:
        evaluator = gemm.evaluator(name)
        problem = gemm.problem(evaluator.arch, (len(groups), max(groups), *of_weights), groups)
        if top is not None:
            _give_ranking(evaluator.arch, evaluator.top(problem, top, **gemm.run), output)
            return
        results.append(_answer(evaluator, problem, gemm, mapping))
    _give_results(results, explain, output)


def _answer(
    evaluator: GEMMEvaluator, problem: GemmProblem, gemm: opt.GemmOptions, mapping: str | None
) -> tuple[ArchSpec, GEMMResult]:
    """Return the arch and the best mapping's result, or that of the mapping that is given."""
    if mapping is None:
        return evaluator.arch, evaluator.evaluate_problem(problem, **gemm.run)
    given = parse_mapping(mapping, is_gpu=evaluator.arch.type == "gpu")
    return evaluator.arch, evaluator.evaluate_mapping(problem, given, **gemm.run)


def _give_results(results: Sequence[tuple[ArchSpec, GEMMResult]], explain: bool | None, output: opt.Output) -> None:
    """Give results side by side, in words too unless `explain` is False; a document has words only if it is True."""
    from gemm_eval.cli.output import row_of
    from gemm_eval.cli.render import print_evaluation

    output.give(
        lambda: [row_of(result) for _, result in results],
        lambda: {"results": [r.to_dict() | ({"explanation": r.explain()} if explain else {}) for _, r in results]},
        lambda: print_evaluation(results, has_explanation=explain is not False),
    )


def _give_ranking(arch: ArchSpec, results: Sequence[GEMMResult], output: opt.Output) -> None:
    from gemm_eval.cli.output import row_of
    from gemm_eval.cli.render import print_top

    output.give(
        lambda: [{"rank": rank} | row_of(result) for rank, result in enumerate(results, 1)],
        lambda: {"results": [result.to_dict() for result in results]},
        lambda: print_top(arch, results),
    )


_LIMIT = 20
_LATENCY, _WITHIN = "latency_us", " within"
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

    if explain is None:
        _give_front(load_sweep(folder), objective, limit, output)
        return
    refuse_others(ctx, "--explain", {"explain", "folder", "objective", "json"})
    result = load_sweep(folder)
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
    phase: Annotated[opt.Phase, opt.option("With --model: which forward pass.")] = "both",
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
        "phases": opt.phases_of(phase), "tensor_parallel": tensor_parallel, "expert_parallel": expert_parallel,
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
    if len(words) != 4 or not all(word.isascii() and word.isdigit() for word in words):
        raise InvalidOptionError(f"--gemm is G,M,K,N, four integers such as 1,16,4096,12288; got {shown(text)}")
    return [int(word) for word in words]
