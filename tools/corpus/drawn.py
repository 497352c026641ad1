"""Questions about random multi-core chips, and about configs of Triton kernels."""

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

from gemm_eval import GEMMEvaluator, GemmProblem
from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu.triton import TritonConfig, estimate_code, triton_costs
from gemm_eval.models.multicore.model import pack_params
from tools.corpus.answer import Answers, ask, ask_words
from tools.corpus.gemms import SHAPES, archs, cost_of, costs_of
from tools.laws.multicore_draws import draw_chip, draw_mapping, draw_problem

_TRITON = tuple(
    TritonConfig(m, n, k, warps, stages, group, split)
    for (m, n), k, (warps, stages), (group, split) in itertools.product(
        ((16, 64), (64, 128), (128, 256)), (32, 128), ((4, 3), (8, 4), (4, 1)), ((1, 1), (8, 1), (4, 3))
    )
)


def _chips(is_small: bool) -> Answers:
    """Random chips: the best, the best few, one mapping, and what does not fit."""
    for seed in range(20 if is_small else 150):
        rng = random.Random(seed)
        arch = draw_chip(rng)
        problem = draw_problem(rng, arch)
        mapping = draw_mapping(rng, arch, problem, pack_params(arch, problem.types))
        for is_idle in (True, False):
            evaluator = GEMMEvaluator(arch, allow_idle_cores=is_idle, disk_cache=False)
            yield ask(f"{seed} {is_idle}", functools.partial(evaluator.evaluate_problem, problem), cost_of)
            yield ask(f"{seed} {is_idle} top", functools.partial(evaluator.top, problem, 7), costs_of)
        by_partition = functools.partial(evaluator.top, problem, 4, distinct="partition")
        yield ask(f"{seed} partitions", by_partition, costs_of)
        yield ask(f"{seed} mapping", functools.partial(evaluator.evaluate_mapping, problem, mapping), cost_of)
        tiny = GEMMEvaluator(arch.with_(sram_bytes=5), disk_cache=False)
        yield ask_words(f"{seed} tiny", lambda tiny=tiny, problem=problem: cost_of(tiny.evaluate_problem(problem)))  # type: ignore[misc]


def _triton(is_small: bool) -> Answers:
    """Costs of configs, from estimated code."""
    types: tuple[dict[str, Any], ...] = (
        {"input_dtype": "fp16"},
        {"input_dtype": "bf16", "weight_dtype": "int4", "group_size": 64},
    )
    for arch in archs(GpuSpec, is_small):
        for (_, M, K, N), kind in itertools.product(SHAPES[1 :: 12 if is_small else 4], types):
            call = functools.partial(_triton_costs, arch, GemmProblem(1, M, K, N, **kind))
            yield ask(f"{arch.name} {kind} {M} {K} {N}", call, list)


def _triton_costs(arch: GpuSpec, problem: GemmProblem) -> Any:
    codes = [estimate_code(arch, problem, config) for config in _TRITON]
    return triton_costs(arch, problem, _TRITON, codes)


DRAWN_KINDS: dict[str, Callable[[bool], Answers]] = {"chips": _chips, "triton": _triton}
