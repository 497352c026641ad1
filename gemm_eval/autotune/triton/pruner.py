"""`TritonPruner`: chooses the configs that `@triton.autotune` benchmarks; `autotune`: that decorator with a pruner."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton.arguments import KernelArguments, is_small
from gemm_eval.autotune.triton.compile import (
    Assembly,
    CodeReader,
    gpu_spec,
    import_triton,
    running_gpu,
    with_heuristics,
    without_autotuner,
)
from gemm_eval.autotune.triton.ranking import Ranking, TritonModel, Verdict, rank_configs
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.extras import needs_extra
from gemm_eval.words import shown
from gemm_eval.workload import GemmProblem

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
                model=self._cost_model(),
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

    def _cost_model(self) -> TritonModel:
        if self._model is None:
            from gemm_eval.models.gpu import triton as model

            self._model = cast(TritonModel, model)
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
