"""Answers to fixed questions through the public API, as text: a mutant that changes none of them tells nothing.

``python -m tests.mutation.corpus small chips gpus triton`` asks what plain Python answers in seconds, ``full`` what
compiled kernels do. Counts of what a search looked at are no answers.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gemm_eval import GEMMEvaluator, GemmProblem, GEMMResult, InfeasibleError, MulticoreSpec, list_archs, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import GemmEvalError
from gemm_eval.models.gpu.triton import TritonConfig, estimate_code, triton_costs
from gemm_eval.models.multicore.params import pack_params
from gemm_eval.search.restricted import PlanOptions
from tests.laws.multicore_draws import draw_chip, draw_mapping, draw_problem

__all__ = ["answers"]

_DIGITS = 12  # of a float: the last ones may depend on the order of a sum
_GPU_TYPES = ("fp16", "fp8", "int8", "w4a16", "w8a16")
_GPU_SHAPES = (
    (1, 64, 512, 768), (1, 1, 4096, 4096), (1, 8, 2048, 8192), (1, 16, 11008, 4096), (1, 33, 7, 5),
    (1, 300, 4096, 1536), (1, 2048, 4096, 6144), (1, 4096, 1024, 16384), (4, 77, 1000, 1001), (48, 16, 2048, 1408),
)  # fmt: skip
_CHIP_SHAPES = (
    (1, 3, 2048, 4096),
    (1, 500, 4096, 6000),
    (1, 4096, 1000, 3000),
    (12, 512, 128, 2048),
    (1, 40, 8192, 640),
)
_TRITON = tuple(
    TritonConfig(m, n, k, warps, stages, group, split)
    for (m, n), k, (warps, stages), (group, split) in itertools.product(
        ((16, 64), (64, 128), (128, 256)), (32, 128), ((4, 3), (8, 4), (4, 1)), ((1, 1), (8, 1), (4, 3))
    )
)


Questions = Iterator[tuple[str, Callable[[], Any]]]


def answers(size: str, kinds: Iterable[str]) -> dict[str, str]:
    """Return question -> answer."""
    ask: dict[str, Callable[[bool], Questions]] = {"chips": _chips, "gpus": _gpus, "triton": _triton}
    return {name: _asked(question) for kind in kinds for name, question in ask[kind](size == "full")}


def _asked(question: Callable[[], Any]) -> str:
    try:
        return str(question())
    except GemmEvalError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:  # a mutant may raise anything, which is an answer too
        return f"{type(error).__name__}"


def _said(value: Any) -> Any:
    """A result as plain values, rounded, without what the search counted."""
    if isinstance(value, GEMMResult):
        counts = ("num_candidates", "num_refused")
        known = {name: getattr(value, name) for name in value.__dataclass_fields__ if name[0] != "_"}
        return {name: _said(field) for name, field in known.items() if name not in counts}
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items()}
    return [_said(item) for item in value] if type(value) in (list, tuple) else str(value)


def _saying(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: _said(function(*arguments, **options))


def _chips(is_full: bool) -> Questions:
    """Random chips: the best, the best few, one mapping, plans, and both timings; and presets."""
    for seed in range(150 if is_full else 20):
        rng = random.Random(seed)
        arch = draw_chip(rng)
        problem = draw_problem(rng, arch)
        mapping = draw_mapping(rng, arch, problem, pack_params(arch, problem.types))
        plan = rng.choice(("balanced", "aggressive", PlanOptions.heuristic(2, 4)))
        for is_idle in (True, False):
            evaluator = GEMMEvaluator(arch, allow_idle_cores=is_idle, disk_cache=False)
            yield f"chip {seed} {is_idle}", _saying(evaluator.evaluate_problem, problem)
            yield f"chip {seed} {is_idle} top", _saying(evaluator.top, problem, 7)
        yield f"chip {seed} mapping", _saying(evaluator.evaluate_mapping, problem, mapping)
        yield f"chip {seed} partitions", _saying(evaluator.top, problem, 4, distinct="partition")
        planned = GEMMEvaluator(arch, plan=plan, disk_cache=False)
        yield f"chip {seed} {plan}", _saying(planned.evaluate_problem, problem)
        tiny = GEMMEvaluator(arch.with_(sram_bytes=5), disk_cache=False)
        yield f"chip {seed} tiny", functools.partial(_levers, tiny, problem)
    for name in list_archs() if is_full else ():
        preset = load_arch(name)
        if isinstance(preset, MulticoreSpec):
            evaluator = GEMMEvaluator(preset, disk_cache=False)
            for dtype, shape in itertools.product((None, "w4a16"), _CHIP_SHAPES):
                yield f"{name} {dtype} {shape}", _saying(evaluator.evaluate, *shape, dtype=dtype)


def _levers(evaluator: GEMMEvaluator, problem: GemmProblem) -> Any:
    try:
        return _said(evaluator.evaluate_problem(problem))
    except InfeasibleError as error:
        return str(error), error.demand, error.limit, error.levers


def _gpu_specs(is_full: bool) -> Iterator[GpuSpec]:
    archs = map(load_arch, list_archs() if is_full else ("h100-sxm", "l40s"))
    return (arch for arch in archs if isinstance(arch, GpuSpec))


def _gpus(is_full: bool) -> Questions:
    """Best configs, the best few, a config replayed, under all states."""
    for arch in _gpu_specs(is_full):
        states = (("cold", "burst"), ("warm", "sustained")) if is_full else (("cold", "burst"),)
        for l2, clock in states:
            evaluator = GEMMEvaluator(arch, l2=l2, clock=clock, disk_cache=False)
            shapes = _GPU_SHAPES if is_full else _GPU_SHAPES[:2]
            for dtype, shape in itertools.product(_GPU_TYPES if is_full else ("fp16", "w4a16", "w8a16"), shapes):
                what = f"{arch.name} {l2} {clock} {dtype} {shape}"
                yield what, functools.partial(_configs, evaluator, shape, dtype, is_full)


def _triton(is_full: bool) -> Questions:
    """Costs of configs, from estimated code."""
    for arch in _gpu_specs(is_full):
        types = ({"input_dtype": "fp16"}, {"input_dtype": "bf16", "weight_dtype": "int4", "group_size": 64})
        for (_, M, K, N), kind in itertools.product(_GPU_SHAPES[:: 2 if is_full else 6], types):
            problem = GemmProblem(1, M, K, N, **kind)  # type: ignore[arg-type]
            yield f"triton {arch.name} {problem}", functools.partial(_triton_costs, arch, problem)


def _configs(evaluator: GEMMEvaluator, shape: tuple[int, int, int, int], dtype: str, is_full: bool) -> Any:
    best = evaluator.evaluate(*shape, dtype=dtype)
    top = evaluator.top(best.problem, 5) if is_full else [best]
    return _said([best, *top, evaluator.evaluate_mapping(best.problem, top[-1].mapping)])


def _triton_costs(arch: GpuSpec, problem: GemmProblem) -> Any:
    codes = [estimate_code(arch, problem, config) for config in _TRITON]
    return [[float(f"{x:.{_DIGITS}g}") for x in column] for column in triton_costs(arch, problem, _TRITON, codes)]


if __name__ == "__main__":
    json.dump(answers(sys.argv[1], sys.argv[2:]), sys.stdout)
