"""The command `profile`: times every kernel of ours on one GEMM with 4-bit weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli.completion import complete_gpus
from gemm_eval.cli.options import JsonOption
from gemm_eval.cli.sizes import ColumnsOption, ReductionOption, RowsOption, one_of_each, sizes_argument
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.measure import QuantShape

__all__ = ["profile"]

_COUNT = 10
_ORDER = "M K N"


def profile(
    sizes: Annotated[list[str] | None, sizes_argument(_ORDER)] = None,
    m: RowsOption = None,
    k: ReductionOption = None,
    n: ColumnsOption = None,
    arch: Annotated[
        str | None,
        typer.Option(
            help="GPU whose kernels the model chooses. Default: this machine's.",
            metavar="NAME",
            autocompletion=complete_gpus,
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Type of A and C: fp16 or bf16.")] = "fp16",
    group_size: Annotated[
        int,
        typer.Option(help="Weights along K that share a scale: 32, 64 or 128; -1: one scale a column."),
    ] = 128,
    zero_points: Annotated[
        bool, typer.Option("--zero-points/--no-zero-points", help="Whether each group has a zero point.")
    ] = False,
    l2: Annotated[str, typer.Option("--l2", help="cold: weights come from memory; warm: from L2.")] = "cold",
    count: Annotated[
        int | None,
        typer.Option(min=1, help="How many kernels to list. Default: 10; all with --json.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Time every kernel of ours for C[M,N] = A[M,K] x B[K,N] with 4-bit weights, on this machine's NVIDIA GPU.

    Lists the fastest ones, and says how far the cost model's choice is from the best, and what it predicted. Bandwidth
    counts packed weights and scales, A and C once each.

    Examples:

    gemm-eval profile 64 4096 4096 --arch h200-sxm
    """
    from gemm_eval.arch import GpuSpec, gpu_slug, load_arch
    from gemm_eval.cli.output import print_line
    from gemm_eval.cli.render_profile import Chosen, document_of, print_profile
    from gemm_eval.dtypes import DType
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.kernels import Sizes, problem_of
    from gemm_eval.mapping import KernelConfig
    from gemm_eval.measure import Choice, W4A16Runner, list_items, profile_kernels

    of_one = one_of_each(_ORDER, sizes, {"M": m, "K": k, "N": n})
    gemm = _gemm(of_one, group_size, has_zeros=zero_points)
    given = None if arch is None else load_arch(arch, GpuSpec)  # a wrong name is said before anything is timed
    runner = W4A16Runner(dtype)
    items = list_items([gemm], dtype, runner.spec, Choice())
    gpu = gpu_slug(runner.gpu_name)
    if arch not in (None, gpu):
        print_line(f"--arch {arch} is not this GPU, {gpu}: the model's choice is for another", err=True)
    problem = problem_of(Sizes(gemm.M, gemm.K, gemm.N), DType(dtype), gemm.mode, gemm.group_size)
    result = GEMMEvaluator(given or runner.spec, l2=l2).evaluate_problem(problem)
    assert isinstance(result.mapping, KernelConfig)
    choices = [Chosen("cost model", result.mapping, result.latency_us)]
    found = profile_kernels(runner, items, [chosen.config for chosen in choices], l2=l2)
    if json:
        from gemm_eval.cli.output import print_json

        print_json(document_of(found, choices, gpu, dtype, count))
    else:
        print_profile(found, choices, gpu, dtype, count or _COUNT)


def _gemm(sizes: Sequence[Any], group_size: int, *, has_zeros: bool) -> QuantShape:
    """Check the GEMM; our kernels take multiples of 8 for K and N."""
    from gemm_eval.errors import InvalidOptionError, InvalidProblemError
    from gemm_eval.kernels import WeightMode
    from gemm_eval.measure import QuantShape

    m, k, n = sizes
    for name, size, multiple in (("M", m, 1), ("K", k, 8), ("N", n, 8)):
        if not isinstance(size, int) or size < 1 or size % multiple:
            what = "an integer >= 1" if multiple == 1 else f"a multiple of {multiple}, at least {multiple}"
            raise InvalidProblemError(f"{name} must be {what}, got {shown(size)}")
    if group_size not in (32, 64, 128, -1) or (group_size == -1 and has_zeros):
        without = " with --zero-points" if has_zeros else " or -1"
        raise InvalidOptionError(f"--group-size must be 32, 64, 128{without}, got {group_size}")
    if group_size == -1:
        return QuantShape(1, m, k, n, WeightMode.COLUMN, 0)
    return QuantShape(1, m, k, n, WeightMode.GROUP_ZERO if has_zeros else WeightMode.GROUP, group_size)
