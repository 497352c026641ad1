"""Ranking configs in two steps: all by their estimated code, the best of them by their machine code."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton.arguments import reject_configs, shared_bytes_bounds
from gemm_eval.evaluate.interval import source_of
from gemm_eval.models.gpu.triton import KernelCode, TritonConfig, TritonTimes
from gemm_eval.workload import GemmProblem


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one config: why it falls, or what is to be said of one that stays.

    `time_us` is predicted, None where it is not; 80% of measured times are expected within `low_us` to `high_us`.
    `is_compiled`: the prediction knows its machine code.
    """

    config: TritonConfig
    given: Any
    time_us: float | None
    is_compiled: bool
    is_kept: bool
    reason: str
    low_us: float | None = None
    high_us: float | None = None


@dataclass(frozen=True)
class Ranking:
    """All configs of a kernel for one GEMM: those that stay first, and within each part the fastest first.

    Attributes:
        kernel, gpu: names.
        problem: the GEMM.
        verdicts: one of each config.
        is_small: the GEMM is so small that one config was dispatched at once.
        num_compiled: configs that were compiled, or found compiled.
        compile_s: how long that took, their machine code's reading and all.
        notes: what was out of the ordinary.
        source: ``corrected`` or ``calibrated`` where times were fitted on this GPU, with or without what timings showed
            beyond the terms of the model; else ``analytic``.
    """

    kernel: str
    gpu: str
    problem: GemmProblem | None
    verdicts: tuple[Verdict, ...]
    is_small: bool = False
    num_compiled: int = 0
    compile_s: float = 0.0
    notes: tuple[str, ...] = ()
    source: str = "analytic"

    @property
    def kept(self) -> list[Any]:
        """The configs that stay, as they were given, the one predicted fastest first."""
        return [verdict.given for verdict in self.verdicts if verdict.is_kept]

    def __str__(self) -> str:
        title = f"{self.kernel} on {self.gpu}, {self.problem}: {len(self.kept)} of {len(self.verdicts)} configs stay"
        if self.is_small:
            title += ", a small GEMM"
        if self.num_compiled:
            title += f", {self.num_compiled} compiled in {self.compile_s:.1f} s"
        lines = [title, *self.notes]
        for number, verdict in enumerate(self.verdicts, 1):
            by = "code" if verdict.is_compiled else "estimate"
            ends = "" if verdict.low_us is None else f" ({verdict.low_us:.2f} to {verdict.high_us:.2f})"
            time = "" if verdict.time_us is None else f"{verdict.time_us:.2f} us{ends}, {by}: "
            reason = f": {verdict.reason}" if verdict.reason else ""
            lines.append(f"{number:4d}  {verdict.config}  {time}{'stays' if verdict.is_kept else 'falls'}{reason}")
        return "\n".join(lines)


COMPILED_PER_KEPT = 2
"""Configs that are compiled for each that stays, unless the caller says how many."""

MIN_COMPILED = 8
"""At least so many configs are compiled: the estimate's best few are near each other."""


class TritonModel(Protocol):
    """The cost model; `gemm_eval.models.gpu.triton` is one."""

    def estimate_code(self, arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> KernelCode:
        """Return what the code of a config is expected to be."""

    def triton_times(
        self, arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode]
    ) -> TritonTimes:
        """Return the predicted time of each config, infinite if it cannot be launched, and the interval around it."""


CodeOf = Callable[[Sequence[int]], Sequence[KernelCode | str | None]]
"""Compiles configs, by their index: their code; why one falls; None: its code cannot be read, the estimate holds."""


def rank_configs(
    arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], given: Sequence[Any], *, kernel: str, k: int,
    model: TritonModel, code_of: CodeOf | None = None, num_to_compile: int | None = None, is_small: bool = False,
) -> Ranking:  # fmt: skip
    """Rank configs, `given` as the caller has them; one stays at least, and `k` at most if the model tells them apart.

    Without `code_of` estimates decide. `num_to_compile` None: `COMPILED_PER_KEPT` for each that stays, at least
    `MIN_COMPILED`. `is_small`: the estimate's best stays alone, and nothing is compiled.
    """
    ranker = _Ranker(arch, problem, configs, model)
    kept, is_small = ranker.rank(k, code_of, num_to_compile, is_small)
    others = sorted(
        set(range(len(configs))) - set(kept),
        key=lambda i: (i not in ranker.compiled, ranker.times[i] is None, ranker.times[i] or 0.0, i),
    )
    for i in kept:
        ranker.reasons[i] = ""
    verdicts = tuple(ranker.verdict(i, given[i], is_kept=i in kept) for i in (*kept, *others))
    return Ranking(
        kernel, arch.name, problem, verdicts, is_small, ranker.num_compiled, ranker.compile_s, tuple(ranker.notes),
        ranker.source,
    )  # fmt: skip


class _Ranker:
    """The state of one ranking; lists are in the order of the configs, which go by their index."""

    def __init__(
        self, arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], model: TritonModel
    ) -> None:
        self.arch, self.problem, self.configs, self.model = arch, problem, configs, model
        self.times: list[float | None] = [None] * len(configs)
        self.ends: dict[int, tuple[float, float]] = {}
        self.source = "analytic"
        self.codes: dict[int, KernelCode] = {}
        self.compiled: set[int] = set()  # those whose code is known to launch
        self.reasons = [""] * len(configs)
        self.num_compiled, self.compile_s = 0, 0.0
        self.notes: list[str] = []

    def rank(
        self, k: int, code_of: CodeOf | None, num_to_compile: int | None, is_small: bool
    ) -> tuple[list[int], bool]:
        """Return those that stay, best first, and whether one is dispatched at once."""
        standing = self._by_rules()
        estimated = self._estimate(standing) if standing else []
        if not estimated:
            self.notes.append(f"none is expected to be launched: {'what rules leave' if standing else 'all'} stay")
            return standing or list(range(len(self.configs))), False
        if is_small:
            best = min(estimated, key=lambda i: (not self._surely_fits(i), estimated.index(i)))
            for i in estimated:
                self.reasons[i] = f"a small GEMM: {self.configs[best]} is dispatched at once"
            return [best], True
        ranked = estimated
        if code_of is not None and len(estimated) > 1:
            count = max(num_to_compile or max(COMPILED_PER_KEPT * k, MIN_COMPILED), k)
            ranked = self._compile(estimated, k, count, code_of)
            if not ranked:
                self.notes.append(f"none of them compiled, and the estimate decides: {self.reasons[estimated[0]]}")
                ranked = estimated
        for position, i in enumerate(ranked[k:], k + 1):
            self.reasons[i] = f"number {position}: the best {k} stay"
        return ranked[:k], False

    def verdict(self, i: int, given: Any, *, is_kept: bool) -> Verdict:
        time_us, is_compiled = self.times[i], i in self.compiled
        ends = (None, None) if time_us is None else self.ends[i]
        return Verdict(self.configs[i], given, time_us, is_compiled, is_kept, self.reasons[i], *ends)

    def _by_rules(self) -> list[int]:
        """Return indices of the configs that rules leave; if they leave none, of those that can run at all."""
        rejections = reject_configs(self.arch, self.problem, self.configs)
        for i, no in enumerate(rejections):
            self.reasons[i] = "" if no is None else f"{no.rule}: {no.reason}"
        standing = [i for i, no in enumerate(rejections) if no is None]
        if not standing:
            standing = [i for i, no in enumerate(rejections) if no is not None and no.can_run]
            self.notes.append(f"every config breaks a rule: the model chooses among the {len(standing)} that can run")
            for i in standing:
                self.reasons[i] = ""
        return standing

    def _estimate(self, indices: list[int]) -> list[int]:
        """Predict times without compiling; return what can be launched, best first."""
        for i in indices:
            self.codes[i] = self.model.estimate_code(self.arch, self.problem, self.configs[i])
        return self._predict(indices, "the model expects that it cannot be launched")

    def _predict(self, indices: list[int], reason: str) -> list[int]:
        configs, codes = [self.configs[i] for i in indices], [self.codes[i] for i in indices]
        times = self.model.triton_times(self.arch, self.problem, configs, codes)
        self.source = source_of(times.origin, *(float(us.min()) for us in (times.latency_us, times.physics_us)))
        fine: list[int] = []
        for i, time_us, *ends in zip(indices, *(us.tolist() for us in times[:3]), strict=True):
            if math.isfinite(time_us):
                self.times[i], self.ends[i] = time_us, tuple(ends)
                fine.append(i)
            else:
                self.times[i] = None
                self.reasons[i] = f"{reason}: {_needs(self.codes[i])}"
        return sorted(fine, key=lambda i: (self.times[i], i))

    def _compile(self, estimated: list[int], k: int, count: int, code_of: CodeOf) -> list[int]:
        """Compile the best by estimate until `k` are known to launch; return those, best first by their code."""
        start, done, first = time.perf_counter(), list[int](), 0
        while first < len(estimated) and (first == 0 or len(done) < k):
            batch = estimated[first : first + (count if first == 0 else k - len(done))]
            first += len(batch)
            launchable = [i for i, code in zip(batch, code_of(batch), strict=True) if self._takes(i, code)]
            done += self._predict(launchable, "as compiled, it cannot be launched") if launchable else []
        self.num_compiled, self.compile_s = first, time.perf_counter() - start
        for position, i in enumerate(estimated[first:], first + 1):
            self.reasons[i] = f"number {position} by estimate, the best {first} were compiled"
        return sorted(done, key=lambda i: (self.times[i], i))

    def _takes(self, i: int, code: KernelCode | str | None) -> bool:
        """Return whether a config, as compiled, can be launched."""
        if isinstance(code, str):
            self.times[i], self.reasons[i] = None, code
            return False
        if code is None:
            return True
        self.codes[i] = code
        self.compiled.add(i)
        threads = code.num_warps * 32
        if code.smem_bytes > self.arch.smem_per_cta_bytes or code.registers * threads > self.arch.registers_per_sm:
            self.times[i] = None
            self.reasons[i] = (
                f"it cannot be launched: {_needs(code)}; a CTA has at most {self.arch.smem_per_cta_bytes:,} bytes, "
                f"{self.arch.registers_per_sm // threads} registers a thread"
            )
            return False
        return True

    def _surely_fits(self, i: int) -> bool:
        return shared_bytes_bounds(self.problem, self.configs[i])[1] <= self.arch.smem_per_cta_bytes


def _needs(code: KernelCode) -> str:
    return f"{code.smem_bytes:,} bytes of shared memory, {code.num_warps} warps of {code.registers} registers"
