"""The commands on GEMMs: `evaluate` and `top`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gemm_eval.cli.options import (
    ArchesOption,
    ArchOption,
    BatchSize,
    ClockOption,
    Columns,
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
    ReductionLength,
    Rows,
    ScaleDtypeOption,
    WeightDtypeOption,
    ZeroDtypeOption,
    parse_mapping,
)
from gemm_eval.cli.words import refuse

if TYPE_CHECKING:
    from gemm_eval.arch import ArchSpec
    from gemm_eval.evaluate import GEMMResult
    from gemm_eval.workload import GemmProblem

__all__ = ["evaluate", "print_ranking", "print_results", "top", "types_of"]


def evaluate(
    ctx: typer.Context,
    g: BatchSize,
    m: Rows,
    k: ReductionLength,
    n: Columns,
    arch: ArchesOption,
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
    json: JsonOption = False,
) -> None:
    """Find the best mapping of C = A x B and say what it costs.

    DRAM traffic in bytes, energy in uJ; with --json times in us. With several --arch, one column for each.

    Examples:

    gemm-eval evaluate --arch h200-sxm 1 4096 4096 14336 --dtype fp8

    gemm-eval evaluate --arch demo-8core --arch l40s 1 16 4096 12288
    """
    from gemm_eval.evaluate import GEMMEvaluator

    if mapping is not None:
        refuse(ctx, "--mapping", {"idle_cores"})  # it says itself which cores work
    options: dict[str, Any] = {
        "library": library, "l2": l2, "clock": clock, "quantize_from": quantize_from, "correction": correction,
    }  # fmt: skip
    types = types_of(dtype, input_dtype, weight_dtype, output_dtype, group_size, zero_dtype, scale_dtype, group_n)
    pairs = []
    for name in arch:
        evaluator = GEMMEvaluator(name, allow_idle_cores=idle_cores, policy=policy)
        problem = _make_problem(evaluator.arch, (g, m, k, n), types)
        if mapping is None:
            result = evaluator.evaluate_problem(problem, **options)
        else:
            is_gpu = evaluator.arch.type == "gpu"
            given = parse_mapping(mapping, is_gpu=is_gpu)
            result = evaluator.evaluate_mapping(problem, given, **options)
        pairs.append((evaluator.arch, result))
    print_results(pairs, explain=explain, json=json)


def print_results(pairs: Sequence[tuple[ArchSpec, GEMMResult]], *, explain: bool | None, json: bool) -> None:
    """Print results side by side, or as one JSON document; `explain`: also in words, None: in text only."""
    if json:
        from gemm_eval.cli.output import print_json

        extras = [{"explanation": result.explain()} if explain else {} for _, result in pairs]
        print_json({"results": [result.to_dict() | extra for (_, result), extra in zip(pairs, extras, strict=True)]})
    else:
        from gemm_eval.cli.render_evaluate import print_evaluation

        print_evaluation(pairs, has_explanation=explain is not False)


def top(
    g: BatchSize,
    m: Rows,
    k: ReductionLength,
    n: Columns,
    arch: ArchOption,
    count: Annotated[int, typer.Option("--count", "-k", help="How many mappings to list, 1 to 10000.")] = 10,
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
    json: JsonOption = False,
) -> None:
    """List the best mappings of C = A x B and what tells them apart.

    DRAM traffic of the chip and SRAM used in a core or SM in bytes, differences to the best in percent.

    Examples:

    gemm-eval top --arch h200-sxm 1 256 4096 12288 --count 5

    gemm-eval top --arch demo-8core 1 2048 4096 14336 --distinct partition
    """
    from gemm_eval.evaluate import GEMMEvaluator

    options: dict[str, Any] = {
        "library": library, "l2": l2, "clock": clock, "quantize_from": quantize_from, "correction": correction,
    }  # fmt: skip
    types = types_of(dtype, input_dtype, weight_dtype, output_dtype, group_size, zero_dtype, scale_dtype, group_n)
    evaluator = GEMMEvaluator(arch, allow_idle_cores=idle_cores, policy=policy)
    problem = _make_problem(evaluator.arch, (g, m, k, n), types)
    apart: Literal["mapping", "partition"] = "partition" if distinct is Distinct.PARTITION else "mapping"
    results = evaluator.top(problem, count, distinct=apart, **options)
    print_ranking(evaluator.arch, results, json=json)


def print_ranking(arch: ArchSpec, results: Sequence[GEMMResult], *, json: bool) -> None:
    """Print a ranking of mappings, best first, or as one JSON document."""
    if json:
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


def _make_problem(arch: ArchSpec, sizes: tuple[int, int, int, int], types: dict[str, Any]) -> GemmProblem:
    from gemm_eval.workload import make_problem

    return make_problem(*sizes, default_dtype=arch.default_dtype, **types)
