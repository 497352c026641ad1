"""Questions about GEMMs, plain and grouped, on every preset."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from gemm_eval import GEMMEvaluator, GemmProblem, MulticoreSpec, list_archs, load_arch, select_config
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import GemmEvalError
from tools.corpus.answer import Answers, ask, fields

Shape = tuple[int, int, int, int]
SHAPES: tuple[Shape, ...] = (
    (1, 1, 4096, 4096), (1, 1, 1, 1), (1, 7, 8192, 1280), (1, 8, 2048, 8192), (1, 16, 11008, 4096), (1, 33, 7, 5),
    (1, 64, 512, 768), (1, 128, 4096, 1024), (1, 256, 16384, 53248), (1, 300, 4096, 1536), (1, 333, 1000, 4095),
    (1, 1024, 5120, 5120), (1, 2048, 4096, 6144), (1, 2047, 4096, 14336), (1, 4096, 1024, 16384),
    (1, 8192, 8192, 28672), (1, 65536, 128, 256), (4, 77, 1000, 1001), (32, 1, 128, 4096), (48, 16, 2048, 1408),
    (96, 512, 128, 2048),
)  # fmt: skip
"""G, M, K, N: decode, prefill, odd and batched."""
_SMALL_SHAPES = SHAPES[5:7]

TYPES: dict[str, dict[str, Any]] = {
    name: {"dtype": name}
    for name in (
        "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "w8a8", "w4a16", "w8a16", "w4a8", "w4a8_fp8", "w4a16_mxfp4",
        "w4a16_nvfp4", "fp8_block", "mxfp8", "mxfp4", "nvfp4", "bfp8", "bfp4",
    )
} | {
    "fp16 to fp32": {"input_dtype": "fp16", "output_dtype": "fp32"},
    "fp8 to fp8": {"input_dtype": "fp8", "output_dtype": "fp8"},
    "bf16 x int4, group 64, zeros": {
        "input_dtype": "bf16", "weight_dtype": "int4", "group_size": 64, "zero_dtype": "int4",
    },
    "bf16 x int4, column": {"input_dtype": "bf16", "weight_dtype": "int4", "group_size": -1},
    "bf16 x fp8": {"input_dtype": "bf16", "weight_dtype": "fp8"},
}  # fmt: skip
_SMALL_TYPES = ("fp16", "w4a16", "w8a16")

_GPU_OPTIONS: tuple[dict[str, Any], ...] = (
    {"dtype": "bf16", "l2": "warm", "clock": "sustained"},
    {"dtype": "fp16", "l2": "cold-all"},
    {"dtype": "fp8", "l2": "warm"},
    {"dtype": "w4a16", "clock": "sustained"},
    {"dtype": "bf16", "correction": False},
    {"dtype": "fp8_block", "correction": False},
    {"dtype": "fp8", "quantize_from": "bf16"},
    {"dtype": "fp8_block", "quantize_from": "bf16"},
    {"dtype": "nvfp4", "quantize_from": "fp16"},
    {"dtype": "w8a8", "quantize_from": "fp16"},
    *({"dtype": "w4a16", "library": name} for name in ("gemm-eval", "trtllm", "hypothetical", "cublas")),
    {"dtype": "w8a16", "library": "trtllm"},
    {"dtype": "fp8", "library": "cublas"},
    {"dtype": "fp8", "library": "trtllm"},
)
_GROUPS = (
    (1, 1, 2, 0, 3, 1, 0, 1), (64,) * 8, (120, 3, 0, 17), (1000,), (5, 900, 33, 2, 1, 77, 256, 8),
    tuple(range(0, 128, 2)),
)  # fmt: skip
_GROUPED_SIZES = ((4096, 1536), (7168, 4096), (100, 333))
_GROUPED_OPTIONS: tuple[dict[str, Any], ...] = (
    {"dtype": "bf16"}, {"dtype": "fp8"}, {"dtype": "fp8_block"}, {"dtype": "w4a16"}, {"dtype": "nvfp4"},
    {"dtype": "w4a16_mxfp4"}, {"dtype": "bf16", "library": "triton"}, {"dtype": "w4a16", "library": "marlin"},
    {"dtype": "w4a16", "library": "gemm-eval"}, {"dtype": "bf16", "l2": "warm"}, {"dtype": "bf16", "correction": False},
)  # fmt: skip

cost_of = fields(
    "latency_us", "physics_us", "compute_us", "dram_us", "flop", "dram_bytes", "utilization_frac", "bound", "mapping",
    "breakdown", "traffic", "energy_pj", "sram_used_bytes", "active_cores", "options", "source",
)  # fmt: skip
"""What of a `GEMMResult` is an answer; what a search counted is none, and `_interval_of` is a kind of its own."""
_interval_of = fields("low_us", "high_us")


def archs(kind: type, is_small: bool = False) -> list[Any]:
    """Return all presets of GPUs or of multi-core chips, or one or two of them."""
    names = list_archs() if not is_small else ("h100-sxm", "l40s", "demo-8core")
    return [arch for arch in map(load_arch, names) if isinstance(arch, kind)]


def evaluators(kind: type, is_small: bool = False, **options: Any) -> list[GEMMEvaluator]:
    """Return an evaluator for each of `archs`, which reads no results from disk."""
    return [GEMMEvaluator(arch, disk_cache=False, **options) for arch in archs(kind, is_small)]


def _gemms(kind: type, is_small: bool) -> Iterator[tuple[str, GEMMEvaluator, Shape, dict[str, Any]]]:
    """Yield the words, evaluator, sizes and types of each GEMM."""
    types = {name: TYPES[name] for name in _SMALL_TYPES} if is_small else TYPES
    for evaluator in evaluators(kind, is_small):
        for (name, words), shape in itertools.product(types.items(), _SMALL_SHAPES if is_small else SHAPES):
            yield f"{evaluator.arch.name} {name} {shape}", evaluator, shape, words


def _one_by_one(kind: type, is_small: bool) -> Answers:
    for question, evaluator, shape, words in _gemms(kind, is_small):
        yield ask(question, functools.partial(evaluator.evaluate, *shape, **words), cost_of)


def _gpu(is_small: bool) -> Answers:
    """Best configs of every GPU in every type, and under every option."""
    yield from _one_by_one(GpuSpec, is_small)
    for evaluator in evaluators(GpuSpec) if not is_small else ():
        for options, shape in itertools.product(_GPU_OPTIONS, SHAPES[::3]):
            question = f"{evaluator.arch.name} {options} {shape}"
            yield ask(question, functools.partial(evaluator.evaluate, *shape, **options), cost_of)


def _multicore(is_small: bool) -> Answers:
    """Best mappings of every multi-core chip in every type, without idle cores, and by each policy."""
    yield from _one_by_one(MulticoreSpec, is_small)
    variants: tuple[dict[str, Any], ...] = (
        {"allow_idle_cores": False}, {"policy": "best"}, {"policy": "library"},
    )  # fmt: skip
    for arch, options in itertools.product(archs(MulticoreSpec, is_small), variants):
        try:
            evaluator = GEMMEvaluator(arch, disk_cache=False, **options)
        except GemmEvalError:
            continue
        for shape in SHAPES[::5]:
            yield ask(f"{arch.name} {options} {shape}", functools.partial(evaluator.evaluate, *shape), cost_of)


def _intervals(is_small: bool) -> Answers:
    """The interval around every latency: apart, as new held-out errors change it alone."""
    for kind in (GpuSpec, MulticoreSpec):
        for question, evaluator, shape, words in _gemms(kind, is_small):
            yield ask(question, functools.partial(evaluator.evaluate, *shape, **words), _interval_of)


def _top(is_small: bool) -> Answers:
    """The five best of a GEMM, and the last of them evaluated by itself."""
    shapes = _SMALL_SHAPES[:1] if is_small else SHAPES[::2]
    for kind, types in ((GpuSpec, ("fp16", "fp8", "w4a16", "fp8_block")), (MulticoreSpec, ("fp16", "int8", "w4a16"))):
        for evaluator, dtype, shape in itertools.product(evaluators(kind, is_small), types, shapes):
            call = functools.partial(_replayed, evaluator, shape, dtype)
            yield ask(f"{evaluator.arch.name} {dtype} {shape}", call, costs_of)
    for evaluator in evaluators(MulticoreSpec, is_small):
        call = functools.partial(_replayed, evaluator, SHAPES[12], None, distinct="partition")
        yield ask(f"{evaluator.arch.name} partitions", call, costs_of)


def costs_of(results: list[Any]) -> list[Any]:
    """Return `cost_of` each result."""
    return list(map(cost_of, results))


def _replayed(evaluator: GEMMEvaluator, shape: Shape, dtype: str | None, **options: Any) -> list[Any]:
    problem = evaluator.evaluate(*shape, dtype=dtype).problem
    results = evaluator.top(problem, 5, **options)
    return [*results, evaluator.evaluate_mapping(problem, results[-1].mapping)]


def _many(is_small: bool) -> Answers:
    """Columns of a batch of all shapes."""
    columns = (
        "G", "M", "K", "N", "latency_us", "physics_us", "tflop_per_s", "utilization_frac", "bound", "compute_us",
        "dram_us", "dram_bytes", "source", "sram_used_bytes", "active_cores", "energy_pj",
    )  # fmt: skip
    for kind in (GpuSpec, MulticoreSpec):
        for evaluator, name in itertools.product(evaluators(kind, is_small), ("bf16", "fp8", "int8", "w4a16")):
            call = functools.partial(evaluator.evaluate_many, SHAPES, dtype=name, errors="mark", progress=False)
            yield ask(
                f"{evaluator.arch.name} {name}",
                call,
                lambda table: {column: table[column].astype(object) for column in columns},
            )


def _grouped(is_small: bool) -> Answers:
    """Grouped GEMMs in the types and by the libraries of experts."""
    for kind in (GpuSpec, MulticoreSpec):
        for evaluator in evaluators(kind, is_small):
            for options, groups, sizes in itertools.product(_GROUPED_OPTIONS, _GROUPS, _GROUPED_SIZES):
                if kind is MulticoreSpec and options is not _GROUPED_OPTIONS[0] and sizes is not _GROUPED_SIZES[0]:
                    continue
                call = functools.partial(evaluator.evaluate_grouped, groups, *sizes, **options)
                yield ask(f"{evaluator.arch.name} {options} {groups} {sizes}", call, cost_of)
                if is_small:
                    return


def _configs(is_small: bool) -> Answers:
    """The configs of our kernels that the model chooses."""
    types: tuple[dict[str, Any], ...] = (
        {"input_dtype": "fp16", "weight_dtype": "int4", "group_size": 128},
        {"input_dtype": "bf16", "weight_dtype": "int4", "group_size": 32, "zero_dtype": "int4"},
        {"input_dtype": "bf16", "weight_dtype": "fp4", "group_size": 32, "scale_dtype": "e8m0"},
        {"input_dtype": "fp16", "weight_dtype": "fp4", "group_size": 16, "scale_dtype": "fp8"},
    )
    rows = (1, 3, 16, 50, 128, 700, 4096)
    for arch, kind in itertools.product(archs(GpuSpec, is_small), types):
        for M, (K, N) in itertools.product(rows, ((4096, 4096), (4096, 28672), (14336, 4096), (2048, 192))):
            call = functools.partial(_select, arch, GemmProblem, (1, M, K, N), kind)
            yield ask(f"{arch.name} {kind} {M} {K} {N}", call, list)
        call = functools.partial(_select, arch, GemmProblem.grouped, ((9, 0, 4, 31), 4096, 1536), kind)
        yield ask(f"{arch.name} {kind} grouped", call, list)


def _select(arch: GpuSpec, make: Callable[..., GemmProblem], sizes: tuple[Any, ...], types: dict[str, Any]) -> Any:
    return select_config(make(*sizes, **types), arch, 3, library="gemm-eval")


GEMM_KINDS: dict[str, Callable[[bool], Answers]] = {
    "gpu": _gpu, "multicore": _multicore, "intervals": _intervals, "top": _top, "many": _many, "grouped": _grouped,
    "configs": _configs,
}  # fmt: skip
