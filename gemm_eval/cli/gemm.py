"""The commands on GEMMs: `evaluate`, `top`, and `grouped`, one launch over groups whose rows differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemm_eval.cli import options as opt
from gemm_eval.cli.values import parse_mapping, parse_rows
from gemm_eval.cli.words import refuse
from gemm_eval.errors import InvalidOptionError

if TYPE_CHECKING:
    from gemm_eval.arch import ArchSpec
    from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
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
    _check_library(gemm)
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
    from gemm_eval.cli.output import print_line

    refuse(ctx, "several GEMMs" if shapes is None else _SHAPES, {"mapping", "explain"})
    listed = [many.Shape(row) for row in several] if shapes is None else many.read_shapes(shapes)
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
    distinct: Annotated[
        opt.Distinct, opt.option("mapping: the best mappings; partition: the best of each partition (not on a GPU).")
    ] = opt.Distinct.MAPPING,
    gemm: opt.GemmOptions,
    output: opt.Output,
) -> None:
    """List the best mappings of C = A x B and their differences.

    DRAM traffic of the chip and SRAM used in a core or SM in bytes, differences to the best in percent.

    Examples:

    gemm-eval top --arch h200-sxm 1 256 4096 12288 --count 5

    gemm-eval top --arch demo-8core -m 2048 -k 4096 -n 14336 --distinct partition
    """
    _check_library(gemm)
    wanted = sizes.one()
    evaluator = gemm.evaluator(arch)
    problem = gemm.problem(evaluator.arch, wanted)
    results = evaluator.top(problem, count, distinct=distinct.value, **gemm.run)
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


def _check_library(gemm: opt.GemmOptions) -> None:
    from gemm_eval.models.gpu import check_plain_library

    if gemm.library is not None:
        check_plain_library(gemm.library)


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
