"""The commands `measure gpu` and `measure host`: time a library's GEMMs on this machine's GPU, or on its CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gemm_eval.cli.options import JsonOption, command, group, option
from gemm_eval.cli.words import Group, refuse

_HELP = {"--help", "-h"}
_DEFAULT = "gpu"


class _Measure(Group):
    """Options without the name of a command are those of `measure gpu`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words."""
        is_default = bool(args) and args[0].startswith("-") and args[0] not in _HELP
        return super().parse_args(ctx, [_DEFAULT, *args] if is_default else args)


app = group(
    "Time GEMMs on this machine: on its NVIDIA GPU, or on its CPU through numpy.\n\n"
    "gemm-eval measure --out DIR is measure gpu --out DIR.",
    cls=_Measure,
)


@command(app, _DEFAULT)
def measure_gpu(
    ctx: typer.Context,
    out: Annotated[Path, option("Folder for the data set, its meta file and the work file.")],
    kernel: Annotated[str, option(
        "Whose kernels: cublas (fp16, bf16), cublaslt (fp8, int8), cublaslt-candidates (fp16, bf16), grouped "
        "(bf16; PyTorch's grouped GEMM) or w4a16, our own for 4-bit weights (fp16, bf16)."
    )] = "cublas",
    dtype: Annotated[str, option("fp16, bf16, fp8 or int8.")] = "fp16",
    shape_sets: Annotated[list[str] | None, option(
        "model-zoo (default), model-zoo-few, batched, candidates, unaligned, experts, smoke; for grouped: "
        "grouped (default), grouped-repeat, grouped-smoke; for w4a16: w4a16 (default), w4a16-spread, w4a16-wide, "
        "w4a16-blind, w4a16-blind-modes, w4a16-blind-2, w4a16-full, w4a16-check, w4a16-modes, w4a16-fp4, "
        "w4a16-smoke; repeat for several.", "--set"
    )] = None,
    candidates: Annotated[
        int | None,
        option("Of cublaslt-candidates: most algorithms of each GEMM. Default: 8."),
    ] = None,
    top: Annotated[
        int | None,
        option("Of w4a16: so many configs of each GEMM that promise most. Default: every legal config."),
    ] = None,
    num_random: Annotated[int, option("Of w4a16, with --top: so many others, drawn at random.", "--random")] = 0,
    cublas: Annotated[
        bool, option("Of w4a16: whether to time cuBLAS on the same GEMMs as well.", "--dense/--no-dense")
    ] = True,
    quick: Annotated[
        bool, option("Three replays of a millisecond each, for campaigns over many kernels.", "--quick")
    ] = False,
    l2: Annotated[str, option("cold: weights come from memory; warm: from L2 where they fit.")] = "cold",
    clock: Annotated[str, option("burst: at boost clock; sustained: under constant load.")] = "burst",
    budget_seconds: Annotated[
        float | None, option("Stop before so many seconds and write what there is; a rerun goes on.")
    ] = None,
    gpu_name: Annotated[str | None, option("Name for the files. Default: from the driver's name.")] = None,
    pool_gib: Annotated[float, option("Size of the pool of random weights, in GiB.")] = 4.0,
    trace: Annotated[
        bool, option("Whether to find out kernel names; those of w4a16 are known.", "--trace/--no-trace")
    ] = True,
    show: Annotated[bool, option("Print what would be measured, and about how long.", "--list")] = False,
) -> None:  # fmt: skip
    """Time GEMMs on this machine's NVIDIA GPU and write a data set: latency in us of one GEMM.

    A rerun measures what the work file in the folder does not hold yet.

    With --kernel cublaslt-candidates not only what the library picks for a GEMM is timed but each of the algorithms
    that it proposes, with its rank; 0 is the pick. Best with --set candidates.

    With --kernel grouped these are grouped GEMMs, the experts of mixtures: groups with rows of their own in one call.

    With --kernel w4a16 each GEMM is timed with every legal config of our kernels, or with --top and --random some; a
    second data set has cuBLAS on the same GEMMs, and a table compares them.

    Examples:

    gemm-eval measure gpu --kernel cublas --dtype fp16 --quick --out timings

    gemm-eval measure gpu --kernel w4a16 --top 8 --out timings
    """
    from gemm_eval.arch import gpu_slug
    from gemm_eval.cli.output import print_line
    from gemm_eval.errors import InvalidOptionError
    from gemm_eval.measure import (
        Campaign,
        CandidateRunner,
        Choice,
        GemmItem,
        GemmShape,
        GroupedShape,
        Runner,
        TimingProtocol,
        W4A16Runner,
        estimate_seconds,
        file_stem,
        list_grouped_shapes,
        list_shapes,
        make_runner,
        shuffle_shapes,
    )

    begin = time.monotonic()
    protocol = (TimingProtocol.quick if quick else TimingProtocol)(l2=l2, clock=clock)

    def gpu_of(runner: Runner) -> str:
        return gpu_name or gpu_slug(getattr(runner, "gpu_name", "gpu"))

    def make_campaign(runner: Runner, what: str, plan: str = "") -> Campaign:
        return Campaign(
            runner=runner,
            protocol=protocol,
            out=out,
            stem=file_stem(gpu_of(runner), what, dtype, protocol),
            say=partial(print_line, err=True),
            stop_at=None if budget_seconds is None else begin + budget_seconds,
            pool_bytes=int(pool_gib * (1 << 30)),
            with_trace=trace and kernel != W4A16Runner.kernel,
            plan=plan,
        )

    for name, number in (("--pool-gib", pool_gib), ("--budget-seconds", budget_seconds)):
        if number is not None and not 0.0 < number < math.inf:
            raise InvalidOptionError(f"{name} must be a positive number, got {number}")
    if candidates is not None and kernel != CandidateRunner.kernel:
        raise InvalidOptionError(f"--candidates needs --kernel {CandidateRunner.kernel}, got --kernel {kernel}")
    if kernel == W4A16Runner.kernel:
        from gemm_eval.cli.measure_run import list_kernel_work, measure_kernels

        if (top is not None and top < 1) or num_random < 0:
            raise InvalidOptionError(f"--top must be >= 1 and --random >= 0, got {top} and {num_random}")
        if top is None:
            refuse(ctx, "every legal config, without --top,", {"num_random"})
        refuse(ctx, f"--kernel {kernel}", {"trace"})
        names, choice = shape_sets or ["w4a16"], Choice(top, num_random)
        if show:
            list_kernel_work(names, dtype, choice, protocol, gpu_name or "h200-sxm", with_cublas=cublas)
        else:
            measure_kernels(names, dtype, choice, gpu_of, make_campaign, with_cublas=cublas)
        return
    if top is not None or num_random:
        raise InvalidOptionError(f"--top and --random need --kernel {W4A16Runner.kernel}, got --kernel {kernel}")
    refuse(ctx, f"--kernel {kernel}", {"num_random", "cublas"})
    shapes: list[GemmItem]
    if kernel == "grouped":
        shapes = shuffle_shapes([shape for name in shape_sets or [kernel] for shape in list_grouped_shapes(name)])
    else:
        shapes = shuffle_shapes([shape for name in shape_sets or ["model-zoo"] for shape in list_shapes(name, dtype)])
    if not shapes:
        raise InvalidOptionError(f"--set {', '.join(shape_sets or [])} has no GEMMs of --dtype {dtype}")
    num_candidates = 8 if candidates is None else candidates
    if not 1 <= num_candidates <= 64:
        raise InvalidOptionError(f"--candidates must be 1 to 64, got {candidates}")
    if show:
        for shape in shapes:
            words = (*shape[:4], *shape[5:]) if isinstance(shape, GroupedShape) else shape  # not hundreds of rows
            print_line(" ".join(map(str, words)))
        each = f", up to {num_candidates} algorithms of each" if kernel == CandidateRunner.kernel else ""
        seconds = (num_candidates if each else 1) * estimate_seconds(shapes, protocol)
        print_line(f"{len(shapes)} GEMMs (G M K N){each}, about {seconds:.0f} s", err=True)
        return
    runner = make_runner(kernel, dtype)
    items: Sequence[GemmItem] = shapes
    if isinstance(runner, CandidateRunner):
        items = runner.candidates([shape for shape in shapes if isinstance(shape, GemmShape)], num_candidates)
        if none := len(shapes) - len({item[:4] for item in items}):
            print_line(f"{none} GEMMs have no algorithm at all", err=True)
    print_line(str(make_campaign(runner, kernel).run(items)))


@command(app, "host", needs_words=False)
def measure_host(
    out: Annotated[Path | None, option(
        "Folder for the spec and the tables. Default: host in this user's data folder.", metavar="DIR",
        show_default=False
    )] = None,
    threads: Annotated[
        int | None, option("Threads, each on a core of its own. Default: all cores.", show_default=False)
    ] = None,
    budget_s: Annotated[float, option("Seconds for all of it, about.")] = 90.0,
    dtype: Annotated[str, option("fp32, or fp64, whose timings are written without a spec.")] = "fp32",
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Make this machine's CPU an arch: its cores, caches, vector units and bandwidths, and numpy's GEMMs on it, timed.

    Writes a spec for --arch FILE, whose few rates that only timings tell are fitted, and how far it is from the timings
    on weights (N, K) that a fit has not seen; beside it the timings, for validate multicore, and the bandwidths of the
    memories. Keep the machine quiet meanwhile. Needs the extra host.

    Examples:

    gemm-eval measure host

    gemm-eval measure host --dtype fp32 --budget-s 30 --out host
    """
    from gemm_eval.cli.measure_run import measure_this_host

    measure_this_host(out, threads, budget_s, dtype, as_json=json)
