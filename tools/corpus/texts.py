"""Questions whose answers are words and dicts as users see them: apart, as they may be meant to change."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

from gemm_eval import GEMMEvaluator, GemmProblem, MulticoreSpec, estimate_model, moe_layer, w4a16_crossover
from gemm_eval.arch import GpuSpec
from tools.corpus.answer import Answers, ask_words
from tools.corpus.gemms import SHAPES, TYPES, evaluators

_TYPES = {GpuSpec: ("fp16", "fp8", "w4a16"), MulticoreSpec: ("fp16", "w4a16")}


def _results(is_small: bool) -> list[tuple[str, Callable[[], Any]]]:
    """Return the words of each question, and what returns the result that `explain` and `to_dict` are asked of."""
    asked: list[tuple[str, Callable[[], Any]]] = []
    for kind, types in _TYPES.items():
        for evaluator in evaluators(kind, is_small):
            name = evaluator.arch.name
            for dtype, shape in itertools.product(types, (SHAPES[4], SHAPES[12])):
                asked.append((f"{name} {dtype} {shape}", functools.partial(evaluator.evaluate, *shape, dtype=dtype)))
            asked.append(
                (f"{name} grouped", functools.partial(evaluator.evaluate_grouped, (120, 3, 0, 17), 4096, 1536))
            )
            sizes: dict[str, Any] = {"batch": 8, "kv_len": 4096, "num_heads": 32, "num_kv_heads": 8}
            for rows in (1, 4096):
                call = functools.partial(evaluator.evaluate_attention, q_len=rows, **sizes)
                asked.append((f"{name} attention of {rows}", call))
            message = functools.partial(evaluator.evaluate_collective, "all_reduce", 1 << 20, 4)
            asked.append((f"{name} collective", message))
            layer = functools.partial(moe_layer, evaluator, 256, 4096, 1536, 64, 4, dtype="bf16")
            asked.append((f"{name} experts", layer))
            model = functools.partial(estimate_model, "llama-3-8b", evaluator, 4, ignore_memory=True)
            asked.append((f"{name} model", model))
    return asked


def _asked(is_small: bool, method: str) -> Answers:
    for question, call in _results(is_small):
        yield ask_words(question, lambda call=call: _said(call(), method))  # type: ignore[misc]


def _said(result: Any, method: str) -> Any:
    """Return what a method of a result says; None for a result that does not have it."""
    return getattr(result, method)() if hasattr(result, method) else None


def _tables(is_small: bool) -> Answers:
    """Rows of tables, with every column, and what makes a crossover."""
    for kind in _TYPES:
        for evaluator in evaluators(kind, is_small):
            problems = [*SHAPES[::6], GemmProblem.grouped((5, 0, 70), 512, 768)]
            call = functools.partial(_rows, evaluator, problems)
            yield ask_words(evaluator.arch.name, call)
    for evaluator in evaluators(GpuSpec, is_small):
        call = functools.partial(_crossover, evaluator)
        yield ask_words(f"{evaluator.arch.name} crossover", call)


def _rows(evaluator: GEMMEvaluator, problems: list[Any]) -> Any:
    return evaluator.evaluate_many(problems, errors="mark", progress=False).to_dicts()


def _crossover(evaluator: GEMMEvaluator) -> str:
    return str(w4a16_crossover(evaluator.arch, 4096, 12288))


def _refusals(is_small: bool) -> Answers:
    """Ask chips for types that they do not take."""
    for kind in _TYPES:
        for evaluator, (name, words) in itertools.product(evaluators(kind, is_small), TYPES.items()):
            call = functools.partial(evaluator.evaluate, 1, 128, 4096, 4096, **words)
            yield ask_words(f"{evaluator.arch.name} {name}", lambda call=call: repr(call()))  # type: ignore[misc]


TEXT_KINDS: dict[str, Callable[[bool], Answers]] = {
    "explain": functools.partial(_asked, method="explain"), "to_dict": functools.partial(_asked, method="to_dict"),
    "tables": _tables, "refusals": _refusals,
}  # fmt: skip
