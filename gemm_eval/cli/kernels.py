"""The commands on our W4A16 kernels: `kernels`, `asm`, `profile`, `crossover`, `configs` and `checkpoint`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli import options as opt
from gemm_eval.cli.options import JsonOption, argument, command, complete_gpus, give, group, option
from gemm_eval.cli.values import integer, refuse, refuse_others
from gemm_eval.errors import ArchError, GemmEvalError, InvalidInputError, InvalidOptionError, InvalidProblemError
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.kernels import Sizes
    from gemm_eval.kernels.config_cache import ConfigCache
    from gemm_eval.kernels.config_records import ConfigRecord
    from gemm_eval.measure import QuantShape


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
    facts = card, spec, occupancy, cycles
    opt.give(json, lambda: card_document(*facts), lambda: print_card(*facts))


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
        lambda: print_profile(timed, choices, gpu, dtype, count or 10),
    )


def _profiled_gemm(sizes: Sequence[Any], group_size: int, *, has_zeros: bool) -> QuantShape:
    """Check the GEMM; our kernels take multiples of 8 for K and N."""
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


configs = group("Build, list and merge files of the best config of our W4A16 kernels for each GEMM.")

_Out = Annotated[Path, option("File to write; an existing file is replaced.", "--out", "-o")]


@command(configs)
def build(
    out: _Out,
    timings: Annotated[list[Path] | None, argument(
        "Data sets of `gemm-eval measure --kernel w4a16`. Default: the package's.", "[TIMINGS...]"
    )] = None,
    arch: Annotated[
        str, option("Preset of the GPU that was measured.", metavar="NAME", complete=complete_gpus)
    ] = "h200-sxm",
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Write the fastest config of each GEMM that was timed.

    Examples:

    gemm-eval configs build timings --arch h200-sxm --out best.json
    """
    from gemm_eval.arch import read_yaml
    from gemm_eval.kernels.config_cache import ConfigCache, build_from_timings
    from gemm_eval.measure import meta_path, read_timings

    cache = ConfigCache()
    for path in timings or _shipped_timings(arch):
        try:
            meta = read_yaml(meta_path(path))
        except ArchError as error:
            raise InvalidInputError(f"timings need their meta file: {error}") from None
        cache = cache.merge(build_from_timings(read_timings(path), meta, arch))
    _write(cache, out, as_json=json)


@command(configs, "list", needs_words=False)
def list_(
    file: Annotated[Path | None, argument("Default: your file, and those of the library.", "[FILE]")] = None,
    json: JsonOption = False,
) -> None:
    """List the records of a file, one a line: GEMM, config, time, how and when found, and whether it still holds.

    Weights: mode and group size. Found by: whether all legal configs were timed or some, and how many.

    Examples:

    gemm-eval configs list
    """
    files = [(path, _load(path)) for path in (_own_files() if file is None else [file])]
    documents = [
        {"path": str(path), "records": [record.to_json() | {"void": _void(record)} for record in cache.records]}
        for path, cache in files
    ]
    give(json, lambda: {"files": documents}, lambda: _print_tables(files))


@command(configs)
def merge(
    files: Annotated[list[Path], argument("Files to merge.", "FILE...")], out: _Out, json: JsonOption = False
) -> None:
    """Write the records of several files into one: of the same GEMM, GPU and kernel the fastest that was measured.

    Examples:

    gemm-eval configs merge mine.json yours.json --out both.json
    """
    from gemm_eval.kernels.config_cache import ConfigCache

    cache = ConfigCache()
    for file in files:
        cache = cache.merge(_load(file))
    _write(cache, out, as_json=json)


def _shipped_timings(arch: str) -> list[Path]:
    from gemm_eval.arch import data_root

    folder = data_root() / "measured" / arch / "w4a16"
    tables = [path for path in sorted(folder.glob("*.parquet")) if not path.stem.endswith("-cublas")]
    if not tables:
        raise InvalidInputError(f"the package has no timings of our kernels on {arch}: give a file")
    return tables


def _load(file: Path) -> ConfigCache:
    from gemm_eval.kernels.config_cache import ConfigCache

    if not file.is_file():
        raise InvalidInputError(f"there is no file {file}")
    return ConfigCache.load(file, is_read_only=True)


def _own_files() -> list[Path]:
    from gemm_eval.arch import data_root
    from gemm_eval.kernels.config_cache import shipped_path, user_path

    gpus = sorted(path.name for path in (data_root() / "measured").iterdir() if path.is_dir())
    return [path for path in (user_path(), *map(shipped_path, gpus)) if path is not None and path.is_file()]


def _void(record: ConfigRecord) -> str | None:
    """Return why a record no longer holds; None: it does."""
    from gemm_eval.kernels.config_cache import limits_of_preset
    from gemm_eval.kernels.config_records import why_void

    try:
        return why_void(record, limits_of_preset(record.key.gpu))
    except GemmEvalError as error:
        return str(error)


def _write(cache: ConfigCache, out: Path, *, as_json: bool) -> None:
    from gemm_eval.cli.output import print_line

    cache.save(out)
    counts = Counter(record.found_by for record in cache.records)
    ways = ", ".join(f"{count} by {way}" for way, count in sorted(counts.items()))
    give(
        as_json,
        lambda: {"path": str(out), "num_records": len(cache), "num_bytes": out.stat().st_size, "found_by": counts},
        lambda: print_line(f"{out}: {len(cache)} records" + (f" ({ways})" if ways else "")),
    )


def _print_tables(files: Sequence[tuple[Path, ConfigCache]]) -> None:
    from gemm_eval.cli.output import make_console, print_wide, rows_table

    console = make_console()
    if not files:
        console.print("no files of configs: you have none, and the package has none")
    for path, cache in files:
        console.print(f"{path}: {len(cache)} records", soft_wrap=True)
        headers = ("GPU", "M", "K", "N", "A", "weights", "L2", "us", "found by", "date", "config")
        print_wide(rows_table(list(map(_cells, cache.records)), headers))


def _cells(record: ConfigRecord) -> dict[str, str]:
    from gemm_eval.cli.output import format_number
    from gemm_eval.cli.values import format_mapping

    key, void, mode = record.key, _void(record), record.key.mode.name.lower()
    way = f"{record.found_by.removesuffix('_k')} {record.num_timed}"  # of the k of "top_k"
    return {
        "GPU": key.gpu, "M": str(key.M), "K": str(key.K), "N": str(key.N), "A": str(key.activation),
        "weights": f"{mode} {key.group_size}" if key.group_size else mode, "L2": key.l2,
        "us": format_number(record.latency_us), "found by": way, "date": record.date,
        "config": format_mapping(record.config) if void is None else f"void: {void}",
    }  # fmt: skip


checkpoint = group(
    "Checkpoints with 4-bit weights (AWQ, GPTQ, gpt-oss's MXFP4, NVFP4): pack them for our W4A16 kernels, and show "
    "packed files."
)


@command(checkpoint)
def convert(
    folder: Annotated[
        Path, argument("Checkpoint in Hugging Face's format: *.safetensors, config.json.", "FOLDER")
    ],
    out: Annotated[Path, option("New or empty folder.", "--out", "-o")],
    activation: Annotated[str | None, option(
        "Type of activations, fp16 or bf16. Default: the type of their scales, or of four-bit "
        "floats that of their bias or of the model."
    )] = None,
    gptq_version: Annotated[
        int | None, option("How zero points are stored, 1 (z - 1) or 2 (z), where the checkpoint's own setting is "
        "wrong.")
    ] = None,
    replace: Annotated[
        bool, option("Replace an earlier conversion in the folder, complete or not.", "--replace")
    ] = False,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Pack all quantized layers of a checkpoint, layer by layer, without torch; other tensors and files are copied.

    The result loads by `gemm_eval.kernels.load_packed`, and its tensors by W4Linear.load_state_dict.

    Examples:

    gemm-eval checkpoint convert llama-3-8b-awq --out packed
    """
    from gemm_eval.cli.output import print_line
    from gemm_eval.kernels import convert_checkpoint

    made = convert_checkpoint(folder, out, activation=activation, version=gptq_version, replace=replace)
    order = f", {made.num_permuted} of them with act-order" if made.num_permuted else ""
    line = (
        f"{made.folder}: {made.num_layers} layers{order}, {made.num_other} other tensors, {made.num_files} files, "
        f"{_mb(made.num_bytes)} MB"
    )
    give(json, lambda: made._asdict() | {"folder": str(made.folder)}, lambda: print_line(line))


@command(checkpoint)
def show(
    path: Annotated[Path, argument("Folder made by `convert`, or a file of packed layers.", "PATH")],
    json: JsonOption = False,
) -> None:
    """List the packed layers of a folder or file: sizes, quantization mode, act-order, bias.

    Each layer is loaded, so damage is detected.

    Examples:

    gemm-eval checkpoint show packed
    """
    from gemm_eval.kernels import load_packed

    rows = [
        {
            "name": name, "K": packed.K, "N": packed.N, "mode": packed.mode.name.lower(),
            "group_size": packed.group_size, "activation": str(packed.activation),
            "act_order": packed.permutation is not None, "bias": bias is not None,
            "num_bytes": packed.nbytes + (0 if bias is None else int(bias.nbytes)),
        }
        for name, (packed, bias) in load_packed(path)
    ]  # fmt: skip
    give(json, lambda: {"path": str(path), "layers": rows}, lambda: _print_table(rows))


def _print_table(rows: list[dict[str, Any]]) -> None:
    from gemm_eval.cli.output import make_console, rows_table

    yes: Callable[[bool], str] = lambda value: "yes" if value else "-"  # noqa: E731
    columns = (
        ("layer", "name", ""), "K", "N", ("weights", "mode", ""), ("A", "activation", ""),
        ("act-order", "act_order", yes), ("bias", "bias", yes), ("MB", "num_bytes", _mb),
    )  # fmt: skip
    cells = [row | {"mode": f"{row['mode']} {row['group_size'] or ''}".rstrip()} for row in rows]
    console = make_console()
    console.print(rows_table(cells, columns))
    console.print(f"{len(rows)} layers, {_mb(sum(row['num_bytes'] for row in rows))} MB")


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f}"
