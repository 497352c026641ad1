"""What changes of an arch do to everything that a module runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.torch.prediction import Lever
from gemm_eval.torch.price import UNPRICED, ModulePrices
from gemm_eval.torch.work import Work
from gemm_eval.transformer import GemmWork

__all__ = ["find_levers"]

_MIN_GAIN_FRAC = 0.005  # below, a change is not worth a word


def find_levers(evaluator: GEMMEvaluator, attention_library: str | None, works: Sequence[Work]) -> tuple[Lever, ...]:
    """Return changes of the arch with what they save, the most helpful first; of equal work once.

    The model alone is asked on both sides: nothing is learned of changed archs.
    """
    counts = Counter(works)
    before = _alone(evaluator)
    base_us = _total_us(before, attention_library, counts)
    if not base_us:
        return ()
    found = []
    for change, changed_fields in _changes(before, counts).items():
        try:
            changed = before.on(before.arch.with_(**changed_fields))
            latency_us = _total_us(changed, attention_library, counts)
        except GemmEvalError:  # a change that takes the spec out of its range helps nobody
            continue
        gain_frac = 1.0 - latency_us / base_us
        if gain_frac >= _MIN_GAIN_FRAC:
            found.append(Lever(change, latency_us, gain_frac))
    return tuple(sorted(found, key=lambda lever: (-lever.gain_frac, lever.change)))


def _alone(evaluator: GEMMEvaluator) -> GEMMEvaluator:
    if not isinstance(evaluator.arch, GpuSpec):
        return evaluator
    options = {
        name: value for name, value in evaluator.preferred._asdict().items() if name in ("library", "l2", "clock")
    }
    return GEMMEvaluator(evaluator.arch, disk_cache=False, correction=False, **options)


def _changes(evaluator: GEMMEvaluator, counts: Counter[Work]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for work in counts:
        if isinstance(work, GemmWork) and len(found) < 32:
            found.update(dict(evaluator.backend.changes(work.problem)))
    if not found:
        arch = evaluator.arch
        found["dram_gb_per_s x2"] = {"dram_gb_per_s": 2 * arch.dram_gb_per_s}
    return found


def _total_us(evaluator: GEMMEvaluator, attention_library: str | None, counts: Counter[Work]) -> float:
    prices = ModulePrices(evaluator, attention_library)
    prices.find(counts)
    return sum(count * prices[work].latency_us for work, count in counts.items() if prices[work].bound != UNPRICED)
