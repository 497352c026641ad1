"""The commands on kernels: `kernels`, `asm`, `profile` and `crossover`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli import options as opt
from gemm_eval.cli.values import integer
from gemm_eval.cli.words import refuse, refuse_others
from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.kernels import Sizes
    from gemm_eval.measure import QuantShape

_PROFILE_COUNT = 10

_GroupSize = Annotated[int, opt.option("Weights along K that share a scale: 32, 64 or 128; -1: one scale a column.")]


def kernels(
    ctx: typer.Context,
    *,
    sizes: opt.KernelSizes,
    arch: opt.GpuOption,
    activation: Annotated[str, opt.option("Type of A and C: fp16 or bf16; fp8: of A alone, W4A8.")] = "fp16",
    mode: Annotated[
        str, opt.option("Quantization mode of the weights: column, group, group_zero, mxfp4, nvfp4.")
    ] = "group",
    group_size: Annotated[int | None, opt.option(
        "Weights along K that share a scale, 32, 64 or 128. Default: 128; all in mode column; 32 or 16 of fp4."
    )] = None,
    family: Annotated[str | None, opt.option("Only the kernels of this family.")] = None,
    compile_: Annotated[
        bool, opt.option("Compile each kernel: registers, spills, CTAs of an SM. Needs no GPU.", "--compile")
    ] = False,
    measured: Annotated[bool, opt.option(
        "Print instead their measured times on this GPU beside cuBLAS, from the package's timings.",
        "--measured"
    )] = False,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """List the W4A16 kernels, or with --activation fp8 those of W4A8, that a GPU can run, and their properties.

    The table has tile, cluster, schedule, stages and resources of each kernel.

    Tile: tokens x columns x K of a stage, in elements. KiB: shared memory of a CTA (JSON: bytes). With --compile:
    registers of a thread, spilled bytes, and CTAs that an SM holds at once.

    Examples:

    gemm-eval kernels --arch h200-sxm 64 4096 4096

    gemm-eval kernels --arch h200-sxm --measured
    """
    from gemm_eval.cli import render_w4a16

    if measured:
        refuse_others(ctx, "--measured", {"measured", "arch", "activation", "json"})  # it prints all timings
        render_w4a16.give_measured(arch, activation, as_json=json)
        return
    runs = _kernel_sizes(sizes.words())
    render_w4a16.give_kernels(arch, activation, mode, group_size, runs, family, is_compiling=compile_, as_json=json)


def _kernel_sizes(words: dict[str, str]) -> Sizes | None:
    from gemm_eval.errors import InvalidProblemError
    from gemm_eval.kernels import Sizes, check_sizes

    if not words:
        return None
    for name, word in words.items():
        if not isinstance(size := integer(word), int) or size < 1:
            raise InvalidProblemError(f"{name} must be an integer >= 1, got {shown(size)}")
    sizes = Sizes(**{name: int(word) for name, word in words.items()})
    check_sizes(sizes.K, sizes.N)
    return sizes


def asm(
    *,
    file: Annotated[Path, opt.argument("PTX, a cubin, or SASS as nvdisasm, cuobjdump or Triton writes it.", "FILE")],
    arch: opt.GpuOption = "h200-sxm",
    kernel: Annotated[str | None, opt.option("Name of the kernel in a file with several.")] = None,
    smem_bytes: Annotated[
        int, opt.option("Dynamic shared memory of a CTA in bytes, which the file does not contain.", min=0)
    ] = 0,
    json: opt.JsonOption = False,
) -> None:
    """Print the score card of a compiled kernel: its share of an SM, and the instructions of its main loop.

    Counts are instructions of one warp, of one iteration of the main loop: the innermost loop with the most tensor-core
    instructions. A cubin has most. PTX has threads but no registers; SASS has no threads, and registers only as
    nvdisasm writes it for some GPUs. Occupancy needs both. Reading a cubin
    needs nvdisasm: pip install 'gemm_eval[asm]', or triton.

    Examples:

    gemm-eval asm kernel.cubin --arch h200-sxm
    """
    from gemm_eval.autotune.asm import cycles_of_loop, occupancy_of_card, score_file
    from gemm_eval.cli.render_profile import card_document, print_card

    spec = opt.gpu_of(arch)
    card = score_file(file, kernel=kernel)
    occupancy = occupancy_of_card(card, spec, smem_bytes=smem_bytes + (card.static_smem_bytes or 0))
    cycles = cycles_of_loop(card.loop, spec)
    known = card, spec, occupancy, cycles
    opt.give(json, lambda: card_document(*known), lambda: print_card(*known))


def profile(
    *,
    sizes: opt.PlainSizes,
    arch: opt.ThisGpuOption = None,
    dtype: Annotated[str, opt.option("Type of A and C: fp16 or bf16.")] = "fp16",
    group_size: _GroupSize = 128,
    zero_points: Annotated[
        bool, opt.option("Store a zero point for each group.", "--zero-points/--no-zero-points")
    ] = False,
    l2: Annotated[str, opt.option("cold: weights come from memory; warm: from L2.", "--l2")] = "cold",
    count: Annotated[int | None, opt.option("Number of kernels to list. Default: 10; all with --json.", min=1)] = None,
    json: opt.JsonOption = False,
) -> None:
    """Time every kernel of ours for C[M,N] = A[M,K] x B[K,N] with 4-bit weights, on this machine's NVIDIA GPU.

    Lists the fastest kernels, the distance of the cost model's choice from the best, and its prediction. Bandwidth
    counts packed weights and scales, A and C once each.

    Examples:

    gemm-eval profile 64 4096 4096 --arch h200-sxm
    """
    from gemm_eval.arch import gpu_slug
    from gemm_eval.cli.output import print_line
    from gemm_eval.cli.render_profile import Chosen, print_profile, profile_document
    from gemm_eval.dtypes import DType
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.kernels import Sizes, problem_of
    from gemm_eval.mapping import KernelConfig
    from gemm_eval.measure import Choice, W4A16Runner, list_items, profile_kernels

    gemm = _profiled_gemm(sizes.one(), group_size, has_zeros=zero_points)
    given = None if arch is None else opt.gpu_of(arch)  # a wrong name is refused before anything is timed
    runner = W4A16Runner(dtype)
    items = list_items([gemm], dtype, runner.spec, Choice())
    gpu = gpu_slug(runner.gpu_name)
    if given is not None and given.name != gpu:
        print_line(f"--arch {given.name} is not this GPU, {gpu}: the model's choice is for another", err=True)
    problem = problem_of(Sizes(gemm.M, gemm.K, gemm.N), DType(dtype), gemm.mode, gemm.group_size)
    result = GEMMEvaluator(given or runner.spec, l2=l2).evaluate_problem(problem)
    assert isinstance(result.mapping, KernelConfig)
    choices = [Chosen("cost model", result.mapping, result.latency_us)]
    timed = profile_kernels(runner, items, [chosen.config for chosen in choices], l2=l2)
    opt.give(
        json,
        lambda: profile_document(timed, choices, gpu, dtype, count),
        lambda: print_profile(timed, choices, gpu, dtype, count or _PROFILE_COUNT),
    )


def _profiled_gemm(sizes: Sequence[Any], group_size: int, *, has_zeros: bool) -> QuantShape:
    """Check the GEMM; our kernels take multiples of 8 for K and N."""
    from gemm_eval.errors import InvalidProblemError
    from gemm_eval.kernels import WeightMode
    from gemm_eval.measure import QuantShape

    m, k, n = sizes
    for name, size, multiple in (("M", m, 1), ("K", k, 8), ("N", n, 8)):
        if not isinstance(size, int) or size < 1 or size % multiple:
            form = "an integer >= 1" if multiple == 1 else f"a multiple of {multiple}, at least {multiple}"
            raise InvalidProblemError(f"{name} must be {form}, got {shown(size)}")
    if group_size not in (32, 64, 128, -1) or (group_size == -1 and has_zeros):
        without = " with --zero-points" if has_zeros else " or -1"
        raise InvalidOptionError(f"--group-size must be 32, 64, 128{without}, got {group_size}")
    if group_size == -1:
        return QuantShape(1, m, k, n, WeightMode.COLUMN, 0)
    return QuantShape(1, m, k, n, WeightMode.GROUP_ZERO if has_zeros else WeightMode.GROUP, group_size)


def crossover(
    ctx: typer.Context,
    *,
    sizes: opt.WeightSizes,
    arch: opt.GpuOption = "h200-sxm",
    group_size: _GroupSize = 128,
    dense_dtype: Annotated[str, opt.option("Type of the dense weights and of all activations: fp16, bf16.")] = "fp16",
    l2: opt.L2Option = None,
    clock: opt.ClockOption = None,
    max_m: Annotated[int, opt.option("Largest M of the search.")] = 16384,
    min_speedup: Annotated[
        float, opt.option("Smallest speedup that counts as a win: 1.05 is 5%. Predictions of one K and N only.")
    ] = 1.0,
    measured: Annotated[
        bool, opt.option("Show measured times beside the predicted ones, from the package's timings.", "--measured")
    ] = False,
    all_: Annotated[bool, opt.option("All measured K and N; needs --measured, and no K and N.", "--all")] = False,
    plot: Annotated[Path | None, opt.option("Write a plot of one K and N (PNG).", metavar="FILE")] = None,
    json: opt.JsonOption = False,
) -> None:
    """Predict up to which M our W4A16 kernels beat cuBLAS with dense weights, for C[M,N] = A[M,K] x B[K,N].

    There is rarely a single M, because both sides climb in steps. The answer has the ranges, the first loss, the
    last win, and the bound of each side. A speedup is the time of the dense GEMM over that of W4A16.

    Examples:

    gemm-eval crossover 4096 12288 --arch h200-sxm --measured

    gemm-eval crossover 4096 12288 --plot crossover.png
    """
    from gemm_eval.cli import render_w4a16
    from gemm_eval.evaluate import GEMMEvaluator, w4a16_crossover

    if all_:
        refuse_others(ctx, "--all", {"all_", "measured", "arch", "group_size", "dense_dtype", "l2", "clock", "json"})
        if not measured:
            raise InvalidOptionError("--all goes with --measured: add it, or give one K and N")
    l2, clock = l2 or "cold", clock or "burst"
    if measured:
        refuse(ctx, "--measured", {"changes"})
    if measured and (l2, clock) != ("cold", "burst"):
        raise InvalidOptionError(f"--measured goes with --l2 cold and --clock burst, got {l2}, {clock}")
    weights = [] if all_ else sizes.one(", or --all --measured")
    evaluator = GEMMEvaluator(arch)
    if all_:
        render_w4a16.give_all(evaluator, group_size, dense_dtype, as_json=json)
        return
    result = w4a16_crossover(
        evaluator, *weights, group_size=group_size, dense_dtype=dense_dtype, l2=l2, clock=clock, max_M=max_m,
        min_speedup=min_speedup,
    )  # fmt: skip
    points = render_w4a16.measured_points(evaluator, result) if measured else None
    if plot is not None:
        from gemm_eval.figures import save_figure
        from gemm_eval.validation import plot_crossover

        save_figure(plot_crossover(result, points), plot)
    opt.give(
        json,
        lambda: result.to_dict() | ({} if points is None else {"measured": points.to_dict("records")}),
        lambda: render_w4a16.print_crossover(result, points),
    )
