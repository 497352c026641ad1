"""The command `grouped`: one launch over groups whose rows differ, as the experts of a mixture are run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gemm_eval.cli.gemm import print_ranking, print_results, types_of
from gemm_eval.cli.options import (
    ArchesOption,
    ClockOption,
    CorrectionOption,
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
    parse_rows,
)
from gemm_eval.cli.sizes import ColumnsOption, ReductionOption, one_of_each, sizes_argument
from gemm_eval.cli.tables import OutOption, check_out
from gemm_eval.cli.words import refuse
from gemm_eval.errors import InvalidOptionError

__all__ = ["grouped"]

_ORDER = "K N"


def grouped(
    ctx: typer.Context,
    arch: ArchesOption,
    rows: Annotated[
        str,
        typer.Option(
            help="Rows of each group, such as 120,3,0,17; 120x64,0x8 are 64 groups of 120 rows and 8 without a row. "
            "Their order does not matter.",
            metavar="LIST",
        ),
    ],
    sizes: Annotated[list[str] | None, sizes_argument(_ORDER)] = None,
    k: ReductionOption = None,
    n: ColumnsOption = None,
    top: Annotated[
        int | None, typer.Option(help="List so many of the best mappings, 1 to 10000, instead of explaining one.")
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
    """Find the best mapping of a grouped GEMM: for each group, C = A x B with rows of its own.

    So run the experts of a mixture: each has weights of its own, and as many rows as tokens were routed to it.

    Examples:

    gemm-eval grouped --arch h200-sxm 7168 4096 --rows 120,3,0,17 --dtype bf16

    gemm-eval grouped --arch b200 -k 4096 -n 1536 --rows 16x120,0x8 --dtype fp8_block --json

    gemm-eval grouped --arch demo-8core -k 2048 -n 512 --rows 64x4,9 --top 5
    """
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.workload import check_row_groups, make_problem

    check_out(out)
    K, N = one_of_each(_ORDER, sizes, {"K": k, "N": n})
    if out is not None:
        refuse(ctx, "--out", {"explain"})
    if mapping is not None:
        refuse(ctx, "--mapping", {"idle_cores", "top"})  # it says itself which cores work
    if top is not None:
        refuse(ctx, "--top", {"explain"})
        if len(arch) > 1:
            raise InvalidOptionError(f"--top ranks the mappings of one --arch, got {len(arch)}: give one")
    options: dict[str, Any] = {
        "library": library, "l2": l2, "clock": clock, "quantize_from": quantize_from, "correction": correction,
    }  # fmt: skip
    types = types_of(dtype, input_dtype, weight_dtype, output_dtype, group_size, zero_dtype, scale_dtype, group_n)
    groups = check_row_groups(parse_rows(rows))
    pairs = []
    for name in arch:
        evaluator = GEMMEvaluator(name, allow_idle_cores=idle_cores, policy=policy)
        problem = make_problem(
            len(groups), max(groups), K, N, default_dtype=evaluator.arch.default_dtype, row_groups=groups, **types
        )
        if top is not None:
            print_ranking(evaluator.arch, evaluator.top(problem, top, **options), out=out, json=json)
            return
        if mapping is None:
            result = evaluator.evaluate_problem(problem, **options)
        else:
            given = parse_mapping(mapping, is_gpu=evaluator.arch.type == "gpu")
            result = evaluator.evaluate_mapping(problem, given, **options)
        pairs.append((evaluator.arch, result))
    print_results(pairs, explain=explain, out=out, json=json)
