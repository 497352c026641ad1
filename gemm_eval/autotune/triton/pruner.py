"""Rank Triton configs by predicted time, and prune with it what `@triton.autotune` benchmarks: `TritonPruner`."""

import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from gemm_eval.arch import GFX_ARCHS, GpuSpec
from gemm_eval.autotune.triton import mfma
from gemm_eval.autotune.triton.arguments import KernelArguments, is_small, reject_configs, shared_bytes_bounds
from gemm_eval.autotune.triton.compile import (
    Assembly,
    CodeOf,
    CodeReader,
    gpu_spec,
    import_triton,
    running_gpu,
    with_heuristics,
    without_autotuner,
)
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import source_of
from gemm_eval.models.gpu import triton as nvidia
from gemm_eval.models.gpu.triton import KernelCode, TritonConfig, TritonTimes
from gemm_eval.words import needs_extra, shown
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
        threads = code.num_warps * self.arch.threads_per_warp
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


DEFAULT_TOP_K = 0.2
"""Share of the configs that are benchmarked unless the caller says otherwise."""

_MS_PER_US = 1e-3


def num_kept(top_k: int | float, num_configs: int) -> int:
    """Return how many of `num_configs` configs stay: a count, or a share rounded down; at least 1."""
    if isinstance(top_k, bool) or not isinstance(top_k, int | float):
        raise InvalidOptionError(f"top_k must be a count (int) or a share (float), got {shown(top_k)}")
    if isinstance(top_k, int):
        if top_k < 1:
            raise InvalidOptionError(f"top_k must be a count >= 1, got {top_k}")
        return min(top_k, num_configs)
    if not 0 < top_k <= 1:
        raise InvalidOptionError(f"top_k must be a share in (0, 1] if it is a float, got {top_k}; a count is an int")
    return max(1, math.floor(top_k * num_configs + 1e-9))  # 0.29 * 100 is a little less than 29


class TritonPruner:
    """Chooses which configs of a GEMM kernel are worth a benchmark: rules, then a cost model, then machine code.

    For `@triton.autotune(prune_configs_by=pruner.prune_configs_by, do_bench=pruner.do_bench)`; `autotune` of this
    package does that, and tells the pruner its kernel. One pruner is for one kernel.

    Args:
        arch: the GPU: a preset's name, a file, or a spec; None: the one that runs.
        arguments: which argument of the kernel is what.
        top_k: how many configs stay at most: a count, or a share of all, rounded down; never none. 1: the model's
            choice, and no benchmark.
        kernel: what the configs are for; without it (or with `use_assembly` False) nothing is compiled to choose.
        use_assembly: rank the best by their machine code.
        compile_k: how many are compiled for that, a count or a share; None: twice as many as stay, at least 8.
        small: says which GEMMs get a config at once, without compiling or benchmark; None: none does.
        num_compile_threads: threads that compile at once; None: as many as there are CPUs, at most 8.
        verbose: print what became of each config, and why.
        bench: what benchmarks where it must be; None: Triton's default.
        model: the cost model; None: that of this library.
        read_code: reads machine code, see `CodeReader`; None: that of `gemm_eval.autotune.asm`.

    Attributes:
        last: the latest `Ranking`, or None.

    Raises:
        InvalidOptionError: an option out of its range.
    """

    def __init__(
        self, arch: GpuSpec | str | None = None, arguments: KernelArguments | None = None, *,
        top_k: int | float = DEFAULT_TOP_K, kernel: Any = None, use_assembly: bool = True,
        compile_k: int | float | None = None, small: Callable[[GemmProblem, GpuSpec], bool] | None = is_small,
        num_compile_threads: int | None = None, verbose: bool = False, bench: Callable[..., Any] | None = None,
        model: TritonModel | None = None, read_code: CodeReader | None = None,
    ) -> None:  # fmt: skip
        num_kept(top_k, 1)
        if compile_k is not None:
            num_kept(compile_k, 1)
        if num_compile_threads is not None and num_compile_threads < 1:
            raise InvalidOptionError(f"num_compile_threads must be >= 1, got {num_compile_threads}")
        self.arch = None if arch is None else gpu_spec(arch)
        self.arguments = KernelArguments() if arguments is None else arguments
        self.top_k, self.compile_k = top_k, compile_k
        self.kernel = kernel
        self.use_assembly, self.small, self.verbose, self.bench = use_assembly, small, verbose, bench
        self.last: Ranking | None = None
        self._model = model
        self._assembly = Assembly(num_compile_threads, read_code)
        self._local = threading.local()

    @property
    def prune_configs_by(self) -> dict[str, Any]:
        """The argument of that name of `@triton.autotune`; all pruning happens in `early_config_prune`."""
        return {"early_config_prune": self.early_config_prune}

    def early_config_prune(self, configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        """Return the configs that are worth a benchmark, best first: Triton calls this before it tunes."""
        ranking = self.rank(configs, named_args, **kwargs)
        kept = ranking.kept
        self._local.only_us = (ranking.verdicts[0].time_us or 0.0) if len(kept) == 1 else None
        if self.verbose:
            from rich.console import Console

            Console().print(str(ranking), soft_wrap=True, markup=False, highlight=False)
        return kept

    def rank(self, configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any) -> Ranking:
        """Rank configs for one call, without benchmarking any.

        With a GPU of the same generation as `arch`, Triton compiles as for a launch; else offline, where
        `TensorArgument` may stand for tensors, and each config's `pre_hook` is left out.
        """
        if not configs:
            raise InvalidOptionError("configs must be at least one triton.Config, got none")
        kernel = without_autotuner(self.kernel)
        call = {**named_args, **kwargs}
        values = [with_heuristics(kernel, {**call, **config.all_kwargs()}) for config in configs]
        ours, problem = [self.arguments.config(one) for one in values], self.arguments.problem(values[0])
        arch, notes = self._arch(), list[str]()
        name = _name_of(kernel)
        try:
            ranking = rank_configs(
                arch, problem, ours, configs, kernel=name, k=num_kept(self.top_k, len(configs)),
                model=self._cost_model(arch),
                code_of=self._assembly.code_of(kernel, arch, configs, ours, call, notes) if self.use_assembly else None,
                num_to_compile=None if self.compile_k is None else num_kept(self.compile_k, len(configs)),
                is_small=self.small is not None and self.small(problem, arch),
            )  # fmt: skip
            self.last = replace(ranking, notes=(*ranking.notes, *notes))
        except UnsupportedError as error:
            note = f"all configs stay, for the model knows no such kernel: {error}"
            warnings.warn(note, stacklevel=3)
            verdicts = tuple(Verdict(*pair, None, False, True, "") for pair in zip(ours, configs, strict=True))
            self.last = Ranking(name, arch.name, problem, verdicts, notes=(note,))
        return self.last

    def do_bench(self, kernel_call: Callable[[], Any], quantiles: Sequence[float] | None = None, **kwargs: Any) -> Any:
        """Benchmark a kernel for `@triton.autotune`; a config that alone stayed gets its predicted time instead."""
        only_us = getattr(self._local, "only_us", None)
        if only_us is not None:
            return only_us * _MS_PER_US if quantiles is None else [only_us * _MS_PER_US] * len(quantiles)
        bench = self.bench
        if bench is None:
            with needs_extra("tuning Triton kernels", "triton"):
                from triton.runtime import driver

            bench = driver.active.get_benchmarker()
        return bench(kernel_call, quantiles=quantiles, **kwargs)

    def _arch(self) -> GpuSpec:
        return running_gpu() if self.arch is None else self.arch

    def _cost_model(self, arch: GpuSpec) -> TritonModel:
        if self._model is None:
            self._model = cast(TritonModel, mfma if arch.sm_arch in GFX_ARCHS else nvidia)
        return self._model


def _name_of(kernel: Any) -> str:
    while hasattr(kernel, "fn") and not hasattr(kernel, "__name__"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", "a kernel"))


_OF_PRUNER = {"use_assembly", "compile_k", "small", "num_compile_threads", "model", "read_code"}
_REPLACED = {
    "prune_configs_by": "this decorator gives it; to prune by rules of your own use triton.autotune and TritonPruner",
    "warmup": "Triton deprecates it: give do_bench=lambda call, quantiles: triton.testing.do_bench(call, warmup=...)",
    "rep": "Triton deprecates it: give do_bench=lambda call, quantiles: triton.testing.do_bench(call, rep=...)",
    "use_cuda_graph": "Triton deprecates it: give do_bench=triton.testing.do_bench_cudagraph",
}


def autotune(
    configs: Sequence[Any], key: Sequence[str], *, arguments: KernelArguments | None = None,
    arch: GpuSpec | str | None = None, top_k: int | float = DEFAULT_TOP_K, verbose: bool = False,
    do_bench: Callable[..., Any] | None = None, **options: Any,
) -> Callable[[Any], Any]:  # fmt: skip
    """Decorate a GEMM kernel as `triton.autotune` does, but benchmark only what the model finds worth it.

    Rules reject, the model ranks, the best are compiled (in threads) and ranked again by their machine code, and of
    those the `top_k` best are benchmarked. If one config stays, none is: for small GEMMs, and with `top_k` = 1.

        @autotune(CONFIGS, key=["M", "N", "K"], arguments=KernelArguments(b="w_ptr", weight_dtype="int4"))
        @triton.jit
        def kernel(...): ...

    Args:
        configs, key: as for `triton.autotune`.
        arguments: which argument of the kernel is what.
        arch, top_k, verbose: see `TritonPruner`.
        do_bench: benchmarks where it must be; None: Triton's default.
        options: others of `TritonPruner`, and of `triton.autotune`.

    Returns:
        A decorator whose result is Triton's `Autotuner`, with its `TritonPruner` as attribute `pruner`.

    Raises:
        InvalidOptionError: an option is out of range, or `arguments` names what the kernel has not.
    """
    triton = import_triton()
    arguments = KernelArguments() if arguments is None else arguments
    for name, remedy in _REPLACED.items():
        if options.get(name) is not None:
            raise InvalidOptionError(f"autotune takes no {name}: {remedy}")
    of_pruner = {name: options.pop(name) for name in _OF_PRUNER & options.keys()}

    def decorate(kernel: Any) -> Any:
        pruner = TritonPruner(arch, arguments, top_k=top_k, kernel=kernel, verbose=verbose, bench=do_bench, **of_pruner)
        arguments.check([*kernel.arg_names, *(name for config in configs for name in config.kwargs)])
        tune = triton.autotune(
            list(configs), list(key), prune_configs_by=pruner.prune_configs_by, do_bench=pruner.do_bench, **options
        )
        tuner = tune(kernel)
        tuner.pruner = pruner
        return tuner

    return decorate
