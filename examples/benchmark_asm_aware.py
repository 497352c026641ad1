"""How well the model prunes `@triton.autotune`: full tuning against pruned, on the two Triton kernels of this folder.

    python examples/benchmark_asm_aware.py --kernel gemm    # a GPU, PyTorch and Triton
    python examples/benchmark_asm_aware.py --kernel w4a16   # adds to the same results
    python examples/benchmark_asm_aware.py --show           # the tables of the results that are there, without a GPU
    python examples/benchmark_asm_aware.py --show --json    # their summaries as JSON

Methods: `baseline_opt` benchmarks all configs, as `@triton.autotune` does. `asm_aware` benchmarks the 15% of them
that rules, model and machine code leave, `asm_aware_3` three; `model` benchmarks none. Each starts with nothing
compiled, and its time is that of the first call of each size, compiling included. `baseline_smart` (what rules leave)
and `roofline` (the best fifth by a roofline, as a plain `perf_model` has it) choose by the timings that `baseline_opt`
took.

All configs that methods chose for a size are then checked against float64 and timed in turns: `steady_ms` is the median
of the turns, and what they differ by is the noise. A method that beats `baseline_opt` does so because the shorter
benchmark of that one took the wrong config; such gains are counted as 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import triton
import triton_gemm
import triton_w4a16_gemm
from rich.console import Console
from rich.table import Table
from triton.runtime.autotuner import Heuristics
from triton_gemm import grid

from gemm_eval import GemmProblem, GpuSpec, load_arch
from gemm_eval.autotune.triton import KernelArguments, autotune, reject_configs

DEFAULT_RESULTS = Path(__file__).parent / "results" / "asm_aware-h200-sxm.json"
GROUP_SIZE = 128
SQUARES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
LAYERS = ((6144, 4096), (28672, 4096), (4096, 14336), (10240, 8192))  # N, K of Llama 3 8B and 70B
TOKENS = (1, 16, 64, 256, 1024, 4096)
OTHERS = ((8192, 512, 4096), (512, 8192, 512), (2048, 1024, 16384), (192, 12288, 1536), (3000, 3072, 1024))
SIZES = (
    *((size, size, size) for size in SQUARES),
    *((tokens, *layer) for layer in LAYERS for tokens in TOKENS),
    *OTHERS,
)
"""M, N, K."""
ARGUMENTS = {"gemm": KernelArguments(), "w4a16": triton_w4a16_gemm.ARGUMENTS}
METHODS = ("baseline_opt", "baseline_smart", "roofline", "model", "asm_aware_3", "asm_aware")
_TUNED = ("baseline_opt", "asm_aware", "asm_aware_3", "model")
_SHARE = 0.15
_ROOFLINE_SHARE = 0.2
_FLUSH_BYTES = 256 << 20
_AHEAD_CYCLES = 200_000  # 0.1 ms: longer than Python needs for a launch
_MAX_LAUNCHES = 80
_TURNS = 5
_IDLE_S = 0.015  # before a burst of launches: else the clock depends on what ran before
_REQUIRED = {"asm_aware": (0.99, 0.95), "asm_aware_3": (0.97, 0.0), "model": (0.95, 0.0)}


class Bench:
    """Times launches in the way of `triton.testing.do_bench`: L2 is flushed before each, between CUDA events.

    The GPU is held back until all are queued: Triton's own starts the clock before Python has launched a small kernel.

    Args:
        warmup_ms, rep_ms: GPU time of untimed and timed launches, flushes included.
    """

    def __init__(self, warmup_ms: float, rep_ms: float) -> None:
        import torch

        self._torch = torch
        self._flush = torch.empty(_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.warmup_ms, self.rep_ms = warmup_ms, rep_ms
        self.times: list[tuple[float, float]] = []  # of each call: median in ms, wall time in s

    def __call__(self, call: Callable[[], Any], quantiles: Any = None, **_: Any) -> Any:
        """Return the median in ms; for Triton, as often as it wants quantiles."""
        start = time.perf_counter()
        call()
        self._torch.cuda.synchronize()
        time.sleep(_IDLE_S)
        once = statistics.median(self.launches(call, 3)) + 0.065
        self.launches(call, self.count(self.warmup_ms, once))
        median = statistics.median(self.launches(call, self.count(self.rep_ms, once)))
        self.times.append((median, time.perf_counter() - start))
        return median if quantiles is None else [median] * len(quantiles)

    def launches(self, call: Callable[[], Any], count: int) -> list[float]:
        """Return times in ms."""
        cuda = self._torch.cuda
        events = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(count)]
        cuda._sleep(count * _AHEAD_CYCLES)
        for place, (start, end) in enumerate(events):
            if place == count // 2:
                self._flush[:1].zero_()  # one launch more: every second launch of a GPU takes 0.5 us longer
            self._flush.zero_()
            start.record()
            call()
            end.record()
        cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    @staticmethod
    def count(budget_ms: float, once_ms: float) -> int:
        """Return an even number: see `launches`."""
        return max(4, min(_MAX_LAUNCHES, 2 * int(budget_ms / once_ms / 2)))


def roofline_us(arch: GpuSpec, problem: GemmProblem, config: Any) -> float:
    """Return a plain `perf_model`: FLOP of whole tiles on the SMs that have one, or bytes at their rate."""
    m, n = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
    tiles_m, tiles_n = math.ceil(problem.M / m), math.ceil(problem.N / n)
    programs = tiles_m * tiles_n * config.kwargs["SPLIT_K"]
    assert problem.weight_dtype is not None
    flop = 2.0 * tiles_m * m * tiles_n * n * problem.K
    busy = min(1.0, programs / arch.num_sms)
    compute_us = flop / (arch.peak_tflop_per_s(problem.input_dtype) * 1e6 * busy)
    a, b = problem.M * problem.K * problem.input_dtype.bits / 8, problem.N * problem.K * problem.weight_dtype.bits / 8
    dram_us = (a + b) / (arch.dram_achievable_gb_per_s * 1e3)
    l2_us = (a * tiles_n + b * tiles_m) / (arch.l2_gb_per_s * 1e3)
    return float(max(compute_us, dram_us, l2_us))


def fresh(kernel: Any) -> Any:
    """Return a copy of a kernel that has compiled nothing."""
    if isinstance(kernel, Heuristics):
        return Heuristics(fresh(kernel.fn), kernel.arg_names, kernel.values)
    return triton.jit(kernel.fn, do_not_specialize=["M"])


@contextlib.contextmanager
def triton_cache(folder: Path) -> Iterator[None]:
    """Let Triton keep what it compiles in a folder."""
    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before


def tuners_of(kernel: str, bench: Bench) -> tuple[dict[str, Any], list[Any]]:
    """Each method's own copy of a kernel, tuned its way; and the configs."""
    module: Any = triton_w4a16_gemm if kernel == "w4a16" else triton_gemm
    bare = triton_w4a16_gemm.w4a16_kernel if kernel == "w4a16" else triton_gemm.gemm_kernel
    configs = list(module.CONFIGS)
    key, arguments = module.KEY, ARGUMENTS[kernel]
    tuners = {"baseline_opt": triton.autotune(configs, key, do_bench=bench)(fresh(bare))}
    for method, top_k in (("asm_aware", _SHARE), ("asm_aware_3", 3), ("model", 1)):
        tune = autotune(configs, key, arguments=arguments, top_k=top_k, compile_k=1.0, do_bench=bench)
        tuners[method] = tune(fresh(bare))
    return tuners, configs


def measure_size(
    kernel: str, size: tuple[int, int, int], dtype: str, tuners: dict[str, Any], configs: list[Any], bench: Bench,
    folder: Path,
) -> dict[str, Any]:  # fmt: skip
    """Tune one size by all methods, check what they chose, and time it in turns."""
    import torch
    from triton_operands import make_operands, relative_error

    operands = make_operands(*size, dtype, group_size=GROUP_SIZE if kernel == "w4a16" else 0, seed=sum(size))
    sizes = {"M": size[0], "N": size[1]}
    found: dict[str, dict[str, Any]] = {}
    chosen: dict[str, Any] = {}
    timed: dict[str, tuple[float, float]] = {}
    for method in _TUNED:
        tuner = tuners[method]
        bench.times.clear()
        with triton_cache(folder / method):
            start = time.perf_counter()
            tuner[grid](*operands.args, **operands.meta)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        chosen[method] = tuner.best_config
        found[method] = {
            "tuning_s": seconds,
            "num_benchmarked": len(bench.times),
            "num_compiled": len(configs) if method == "baseline_opt" else tuner.pruner.last.num_compiled,
        }
        if method == "baseline_opt":
            ran = [str(config) for config, times in tuner.configs_timings.items() if times[0] < math.inf]
            timed = dict(zip(ran, bench.times, strict=True))
        else:
            found[method]["is_small"] = tuner.pruner.last.is_small
    arch = load_arch(tuners["asm_aware"].pruner.last.gpu, GpuSpec)
    arguments = ARGUMENTS[kernel]
    values = [{**operands.named, **operands.meta, **config.all_kwargs()} for config in configs]
    problem = arguments.problem(values[0])
    rejected = reject_configs(arch, problem, [arguments.config(one) for one in values])
    by_roofline = sorted(configs, key=lambda config: roofline_us(arch, problem, config))
    subsets = {
        "baseline_smart": [config for config, no in zip(configs, rejected, strict=True) if no is None],
        "roofline": by_roofline[: max(1, int(_ROOFLINE_SHARE * len(configs)))],
    }
    for method, subset in subsets.items():
        runs = [config for config in subset if str(config) in timed]
        chosen[method] = min(runs, key=lambda config: timed[str(config)][0])
        seconds = sum(timed[str(config)][1] for config in runs)
        found[method] = {"tuning_s": seconds, "num_benchmarked": len(runs), "num_compiled": len(runs)}
    reference = operands.reference()
    distinct = {str(config): config for config in chosen.values()}
    turns: dict[str, list[float]] = {name: [] for name in distinct}
    errors = {}

    def launch(config: Any) -> None:
        operands.kernel[grid({**sizes, **config.kwargs})](*operands.args, **operands.meta, **config.all_kwargs())

    with triton_cache(folder / "baseline_opt"):
        for name, config in distinct.items():
            operands.c.fill_(float("nan"))
            launch(config)
            errors[name] = relative_error(operands.c, reference)
            if not errors[name] < 1e-2:
                raise AssertionError(f"{kernel} {size}: {name} is wrong, relative error {errors[name]}")
        del reference
        for _ in range(_TURNS):
            for name, config in distinct.items():
                once = timed[name][0] + 0.065 if name in timed else 1.0
                time.sleep(_IDLE_S)
                turns[name].append(statistics.median(bench.launches(partial(launch, config), bench.count(8.0, once))))
    base = statistics.median(turns[str(chosen["baseline_opt"])])
    flop = 2.0 * size[0] * size[1] * size[2]
    for method, of_method in found.items():
        name = str(chosen[method])
        steady = statistics.median(turns[name])
        of_method.update(
            config=name,
            steady_ms=steady,
            noise_frac=(max(turns[name]) - min(turns[name])) / steady,
            tflop_per_s=flop / steady / 1e9,
            speed_up=base / steady,
            improvement_percent=100.0 * (base / steady - 1.0),
            relative_error=errors[name],
        )
    return {"kernel": kernel, "dtype": dtype, "M": size[0], "N": size[1], "K": size[2], "methods": found}


def run(kernel: str, dtype: str, sizes: list[tuple[int, int, int]], bench: Bench, save: Callable[[Any], None]) -> None:
    """Measure all sizes; `save` gets each result."""
    tuners, configs = tuners_of(kernel, bench)
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            start = time.perf_counter()
            result = measure_size(kernel, size, dtype, tuners, configs, bench, Path(folder))
            save(result)
            speeds = "  ".join(f"{name} {result['methods'][name]['speed_up']:.3f}" for name in METHODS[1:])
            print(f"{kernel} {size}: {speeds}  [{time.perf_counter() - start:.1f} s]", flush=True)


def summarize(results: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what each method reaches over all sizes.

    Speeds are those of `baseline_opt` or less: geometric mean, least, and the geometric mean without that limit; shares
    are of the benchmarks and seconds of `baseline_opt`; `num_faster` counts the sizes where the method beats it by more
    than both noises: there, full tuning chose badly.
    """
    summary: dict[str, dict[str, Any]] = {}
    base = [result["methods"]["baseline_opt"] for result in results]
    for method in METHODS:
        mine = [result["methods"][method] for result in results]
        capped = [min(1.0, one["speed_up"]) for one in mine]
        seconds = sum(one["tuning_s"] for one in mine)
        summary[method] = {
            "geo_mean": statistics.geometric_mean(capped),
            "worst": min(capped),
            "geo_mean_uncapped": statistics.geometric_mean(one["speed_up"] for one in mine),
            "num_faster": sum(
                one["speed_up"] > 1.0 + one["noise_frac"] + full["noise_frac"]
                for one, full in zip(mine, base, strict=True)
            ),
            "tuning_s": seconds,
            "times_less_tuning": sum(one["tuning_s"] for one in base) / seconds,
            "benchmarked_frac": sum(one["num_benchmarked"] for one in mine)
            / sum(one["num_benchmarked"] for one in base),
            "most_benchmarked_frac": max(
                one["num_benchmarked"] / full["num_benchmarked"] for one, full in zip(mine, base, strict=True)
            ),
        }
    return summary


def summary_table(results: list[dict[str, Any]], title: str) -> Table:
    """Return the summary of one kernel, 80 columns."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    for head in ("method", "speed", "worst", "required", "benchmarks", "tuning s", "less", "faster"):
        table.add_column(head, justify="left" if head == "method" else "right")
    for method, of_method in summarize(results).items():
        mean, worst = _REQUIRED.get(method, (0.0, 0.0))
        wanted = "" if not mean else f"{mean:.0%}" + (f", {worst:.0%}" if worst else "")
        table.add_row(
            method, f"{of_method['geo_mean']:.1%}", f"{of_method['worst']:.1%}", wanted,
            f"{of_method['benchmarked_frac']:.0%}", f"{of_method['tuning_s']:.1f}",
            f"{of_method['times_less_tuning']:.1f}x", str(of_method["num_faster"]),
        )  # fmt: skip
    return table


def sizes_table(results: list[dict[str, Any]]) -> Table:
    """Every size of one kernel, 80 columns: the time of full tuning's choice, and the speed of the other methods'."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for head in ("M", "N", "K", "opt us", "TFLOP/s", "noise", "smart", "roof", "model", "top 3", "asm"):
        table.add_column(head, justify="right")
    for result in results:
        of = result["methods"]
        base = of["baseline_opt"]
        table.add_row(
            *(str(result[name]) for name in "MNK"), f"{1e3 * base['steady_ms']:.1f}",
            f"{base['tflop_per_s']:.0f}", f"{base['noise_frac']:.1%}",
            *(f"{of[name]['speed_up']:.1%}" for name in METHODS[1:]),
        )  # fmt: skip
    return table


def by_kernel(document: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Results by kernel and type of activations."""
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in document["results"]:
        kinds.setdefault((result["kernel"], result["dtype"]), []).append(result)
    return kinds


def noises_of(document: dict[str, Any]) -> list[float]:
    """Return what turns of a config differ by, of all results."""
    return [one["noise_frac"] for result in document["results"] for one in result["methods"].values()]


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """Summaries ready for JSON."""
    kernels = [
        {"kernel": kernel, "dtype": dtype, "num_sizes": len(results), "methods": summarize(results)}
        for (kernel, dtype), results in by_kernel(document).items()
    ]
    noises = noises_of(document)
    return {"kernels": kernels, "median_noise_frac": statistics.median(noises), "most_noise_frac": max(noises)}


def show(document: dict[str, Any]) -> None:
    """Print the tables of results, kernel by kernel; at the end the summaries."""
    console = Console(width=max(80, Console().width))
    kinds = by_kernel(document)
    for (kernel, dtype), results in kinds.items():
        console.print(f"{kernel} {dtype}")
        console.print(sizes_table(results))
    for (kernel, dtype), results in kinds.items():
        title = f"\n{kernel} {dtype}, {len(results)} sizes on {document['gpu']}: speed of full tuning's choice"
        console.print(summary_table(results, title))
    noises = noises_of(document)
    console.print(
        f"turns of a config differ by {statistics.median(noises):.1%} in the median, {max(noises):.1%} at most"
    )


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", choices=("gemm", "w4a16"), default="gemm")
    parser.add_argument("--dtype", choices=("fp16", "bf16", "fp8"), default="fp16", help="of the activations")
    parser.add_argument("--results", type=Path, default=DEFAULT_RESULTS, help="JSON that is added to")
    parser.add_argument("--warmup-ms", type=float, default=2.0, help="GPU time of untimed launches of a benchmark")
    parser.add_argument("--rep-ms", type=float, default=9.0, help="GPU time of timed launches of a benchmark")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="measure only so many sizes, spread over all")
    parser.add_argument("--show", action="store_true", help="print the tables of the results that are there")
    parser.add_argument("--json", action="store_true", help="with --show: summaries as JSON")
    options = parser.parse_args()
    document: dict[str, Any] = {"results": []}
    if options.results.is_file():
        document = json.loads(options.results.read_text(encoding="utf-8"))
    if options.show and options.json:
        print(json.dumps(plain(document), indent=2))
        return
    if options.show:
        show(document)
        return
    if options.kernel == "w4a16" and options.dtype == "fp8":
        sys.exit("w4a16 takes fp16 or bf16 activations")
    import torch

    document |= {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "date": time.strftime("%Y-%m-%d"), "num_cpus": os.cpu_count(),
        "protocol": {
            "warmup_ms": options.warmup_ms, "rep_ms": options.rep_ms, "l2": "cold: 256 MB written before each launch",
            "turns": _TURNS, "clock": "burst: 15 ms idle before each",
            "launches": "one more in the middle of a burst, as every second one of a GPU takes longer",
        },
    }  # fmt: skip
    options.results.parent.mkdir(parents=True, exist_ok=True)
    kind = options.kernel, options.dtype
    document["results"] = [one for one in document["results"] if (one["kernel"], one["dtype"]) != kind]

    def save(result: dict[str, Any]) -> None:
        document["results"].append(json.loads(json.dumps(result), parse_float=lambda text: float(f"{float(text):.5g}")))
        options.results.write_text(json.dumps(document, indent=1), encoding="utf-8")

    step = len(SIZES) / min(options.sizes, len(SIZES))
    sizes = [SIZES[int(place * step)] for place in range(min(options.sizes, len(SIZES)))]
    run(options.kernel, options.dtype, sizes, Bench(options.warmup_ms, options.rep_ms), save)
    show(document)


if __name__ == "__main__":
    main()
