"""The commands on GEMMs: `evaluate` and `top`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gemm_eval.cli.options import (
    ArchesOption,
    ArchOption,
    ClockOption,
    CorrectionOption,
    Distinct,
    DtypeOption,
    ExplainOption,
    GroupNOption,
    GroupSizeOption,
    IdleCoresOption,
    InputDtypeOption,
    JsonOption,
    L2Option,
    LibraryOption,
    MappingOption,
    OutputDtypeOption,
    PolicyOption,
    QuantizeFromOption,
    ScaleDtypeOption,
    WeightDtypeOption,
    ZeroDtypeOption,
    parse_mapping,
)
from gemm_eval.cli.ranges import SEVERAL
from gemm_eval.cli.sizes import (
    ColumnsOption,
    GroupsOption,
    ReductionOption,
    RowsOption,
    SeveralColumnsOption,
    SeveralGroupsOption,
    SeveralReductionsOption,
    SeveralRowsOption,
    all_sizes,
    no_sizes,
    one_of_each,
    sizes_argument,
)
from gemm_eval.cli.tables import OutOption, check_out, row_of, write_records
from gemm_eval.cli.words import refuse

if TYPE_CHECKING:
    from gemm_eval.arch import ArchSpec
    from gemm_eval.cli.shapes import Shape
    from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
    from gemm_eval.workload import GemmProblem

__all__ = ["evaluate", "print_ranking", "print_results", "top", "types_of"]

_ORDER = "G M K N"
_SHAPES = "--shapes"


def evaluate(
    ctx: typer.Context,
    arch: ArchesOption,
    sizes: Annotated[list[str] | None, sizes_argument(_ORDER, SEVERAL)] = None,
    g: SeveralGroupsOption = None,
    m: SeveralRowsOption = None,
    k: SeveralReductionsOption = None,
    n: SeveralColumnsOption = None,
    shapes: Annotated[
        Path | None,
        typer.Option(
            _SHAPES,
            metavar="FILE",
            help="Evaluate the GEMMs of a .csv or .parquet file instead: columns M, K, N; G, row_groups, dtype and "
            "other options of this command, such as weight_dtype or l2, if there are any; all others are kept.",
            show_default=False,
        ),
    ] = None,
    dtype: DtypeOption = None,
    input_dtype: InputDtypeOption = None,
    weight_dtype: WeightDtypeOption = None,
    output_dtype: OutputDtypeOption = None,
    group_size: GroupSizeOption = None,
    zero_dtype: ZeroDtypeOption = None,
    scale_dtype: ScaleDtypeOption = None,
    group_n: GroupNOption = None,
    library: LibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    quantize_from: QuantizeFromOption = None,
    correction: CorrectionOption = None,
    idle_cores: IdleCoresOption = True,
    policy: PolicyOption = None,
    mapping: MappingOption = None,
    explain: ExplainOption = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Find the best mapping of C = A x B and say what it costs.

    DRAM traffic in bytes, energy in uJ; with --json times in us. With several --arch, one column for each. Several
    GEMMs, of ranges or a file, have a row each.

    Examples:

    gemm-eval evaluate --arch h200-sxm 1 4096 4096 14336 --dtype fp8

    gemm-eval evaluate --arch demo-8core --arch l40s 1 16 4096 12288

    gemm-eval evaluate --arch h200-sxm -m 1..256 -k 4096 -n 12288 --dtype w4a16

    gemm-eval evaluate --arch h200-sxm --arch b200 --shapes shapes.csv --out times.csv
    """
    from gemm_eval.evaluate import GEMMEvaluator

    check_out(out)
    _check_library(library)
    if mapping is not None:
        refuse(ctx, "--mapping", {"idle_cores"})  # it says itself which cores work
    if out is not None:
        refuse(ctx, "--out", {"explain"})
    if shapes is not None:
        refuse(ctx, _SHAPES, {"sizes", "g", "m", "k", "n"})
    several = all_sizes(_ORDER, sizes, {"G": g, "M": m, "K": k, "N": n})
    if shapes is None and not several:
        raise no_sizes(_ORDER, f", or {_SHAPES} FILE")
    options: dict[str, Any] = {
        "library": library, "l2": l2, "clock": clock, "quantize_from": quantize_from, "correction": correction,
    }  # fmt: skip
    types = types_of(dtype, input_dtype, weight_dtype, output_dtype, group_size, zero_dtype, scale_dtype, group_n)
    evaluators = [GEMMEvaluator(name, allow_idle_cores=idle_cores, policy=policy) for name in arch]
    if shapes is not None or len(several) > 1:
        from gemm_eval.cli.shapes import Shape, read_shapes

        refuse(ctx, "several GEMMs" if shapes is None else _SHAPES, {"mapping", "explain"})
        found = [Shape(of_one) for of_one in several] if shapes is None else read_shapes(shapes)
        _answer_many(evaluators, found, types, options, out, json=json)
        return
    pairs = []
    for evaluator in evaluators:
        problem = _make_problem(evaluator.arch, several[0], types)
        if mapping is None:
            result = evaluator.evaluate_problem(problem, **options)
        else:
            is_gpu = evaluator.arch.type == "gpu"
            given = parse_mapping(mapping, is_gpu=is_gpu)
            result = evaluator.evaluate_mapping(problem, given, **options)
        pairs.append((evaluator.arch, result))
    print_results(pairs, explain=explain, out=out, json=json)


def _answer_many(
    evaluators: Sequence[GEMMEvaluator], shapes: Sequence[Shape], types: dict[str, Any], options: dict[str, Any],
    out: Path | None, *, json: bool,
) -> None:  # fmt: skip
    """Evaluate and print, or write, a row for each shape and arch, the archs of a shape one after the other."""
    from gemm_eval.cli.render_shapes import print_shapes, say_misfits
    from gemm_eval.cli.shapes import documents, evaluate_shapes, records

    of_arch = [evaluate_shapes(evaluator, shapes, types, options) for evaluator in evaluators]
    answers = [answer for of_shape in zip(*of_arch, strict=True) for answer in of_shape]
    if out is not None:
        from gemm_eval.cli.output import print_line

        write_records(out, records(answers), json=json)
        if said := say_misfits(answers):
            print_line(said, err=True)
    elif json:
        from gemm_eval.cli.output import print_json

        print_json({"results": list(documents(answers))})
    else:
        print_shapes(answers)


def print_results(
    pairs: Sequence[tuple[ArchSpec, GEMMResult]], *, explain: bool | None, out: Path | None, json: bool
) -> None:
    """Print results side by side, or as one JSON document, or write them to `out`.

    Args:
        pairs: archs and results.
        explain: also in words; None: in text only.
        out: where a row for each goes instead.
        json: print a document.
    """
    if out is not None:
        write_records(out, [row_of(result) for _, result in pairs], json=json)
    elif json:
        from gemm_eval.cli.output import print_json

        extras = [{"explanation": result.explain()} if explain else {} for _, result in pairs]
        print_json({"results": [result.to_dict() | extra for (_, result), extra in zip(pairs, extras, strict=True)]})
    else:
        from gemm_eval.cli.render_evaluate import print_evaluation

        print_evaluation(pairs, has_explanation=explain is not False)


def top(
    arch: ArchOption,
    sizes: Annotated[list[str] | None, sizes_argument(_ORDER)] = None,
    g: GroupsOption = None,
    m: RowsOption = None,
    k: ReductionOption = None,
    n: ColumnsOption = None,
    count: Annotated[int, typer.Option("--count", "-c", help="How many mappings to list, 1 to 10000.")] = 10,
    distinct: Annotated[
        Distinct, typer.Option(help="mapping: the best mappings; partition: the best of each partition (not on a GPU).")
    ] = Distinct.MAPPING,
    dtype: DtypeOption = None,
    input_dtype: InputDtypeOption = None,
    weight_dtype: WeightDtypeOption = None,
    output_dtype: OutputDtypeOption = None,
    group_size: GroupSizeOption = None,
    zero_dtype: ZeroDtypeOption = None,
    scale_dtype: ScaleDtypeOption = None,
    group_n: GroupNOption = None,
    library: LibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    quantize_from: QuantizeFromOption = None,
    correction: CorrectionOption = None,
    idle_cores: IdleCoresOption = True,
    policy: PolicyOption = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """List the best mappings of C = A x B and what tells them apart.

    DRAM traffic of the chip and SRAM used in a core or SM in bytes, differences to the best in percent.

    Examples:

    gemm-eval top --arch h200-sxm 1 256 4096 12288 --count 5

    gemm-eval top --arch demo-8core -m 2048 -k 4096 -n 14336 --distinct partition
    """
    from gemm_eval.evaluate import GEMMEvaluator

    check_out(out)
    _check_library(library)
    of_one = one_of_each(_ORDER, sizes, {"G": g, "M": m, "K": k, "N": n})
    options: dict[str, Any] = {
        "library": library, "l2": l2, "clock": clock, "quantize_from": quantize_from, "correction": correction,
    }  # fmt: skip
    types = types_of(dtype, input_dtype, weight_dtype, output_dtype, group_size, zero_dtype, scale_dtype, group_n)
    evaluator = GEMMEvaluator(arch, allow_idle_cores=idle_cores, policy=policy)
    problem = _make_problem(evaluator.arch, of_one, types)
    apart: Literal["mapping", "partition"] = "partition" if distinct is Distinct.PARTITION else "mapping"
    results = evaluator.top(problem, count, distinct=apart, **options)
    print_ranking(evaluator.arch, results, out=out, json=json)


def _check_library(library: str | None) -> None:
    from gemm_eval.models.gpu import check_plain_library

    if library is not None:
        check_plain_library(library)


def print_ranking(arch: ArchSpec, results: Sequence[GEMMResult], *, out: Path | None, json: bool) -> None:
    """Print a ranking of mappings, best first, or as one JSON document, or write it to `out`."""
    if out is not None:
        write_records(out, [{"rank": rank} | row_of(result) for rank, result in enumerate(results, 1)], json=json)
    elif json:
        from gemm_eval.cli.output import print_json

        print_json({"results": [result.to_dict() for result in results]})
    else:
        from gemm_eval.cli.render_top import print_top

        print_top(arch, results)


def types_of(
    dtype: str | None, input_dtype: str | None, weight_dtype: str | None, output_dtype: str | None,
    group_size: int | None, zero_dtype: str | None, scale_dtype: str | None, group_n: int | None,
) -> dict[str, Any]:  # fmt: skip
    """Return what the options on data types say, by the names of `make_problem`."""
    return {
        "dtype": dtype, "input_dtype": input_dtype, "weight_dtype": weight_dtype, "output_dtype": output_dtype,
        "group_size": group_size, "zero_dtype": zero_dtype, "scale_dtype": scale_dtype, "group_n": group_n,
    }  # fmt: skip


def _make_problem(arch: ArchSpec, sizes: Sequence[Any], types: dict[str, Any]) -> GemmProblem:
    from gemm_eval.workload import make_problem

    return make_problem(*sizes, default_dtype=arch.default_dtype, **types)
