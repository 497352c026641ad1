"""`autotune`: Triton's decorator of that name, with a pruner that knows the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton.arguments import KernelArguments
from gemm_eval.autotune.triton.pruner import DEFAULT_TOP_K, TritonPruner
from gemm_eval.autotune.triton.triton_runtime import import_triton
from gemm_eval.errors import InvalidOptionError

__all__ = ["autotune"]

_OF_PRUNER = {
    "use_assembly",
    "compile_k",
    "small",
    "num_compile_threads",
    "model",
    "read_code",
}
_REPLACED = {
    "prune_configs_by": "this decorator gives it; to prune by rules of your own use triton.autotune and TritonPruner",
    "warmup": "Triton deprecates it: give do_bench=lambda call, quantiles: triton.testing.do_bench(call, warmup=...)",
    "rep": "Triton deprecates it: give do_bench=lambda call, quantiles: triton.testing.do_bench(call, rep=...)",
    "use_cuda_graph": "Triton deprecates it: give do_bench=triton.testing.do_bench_cudagraph",
}


def autotune(
    configs: Sequence[Any],
    key: Sequence[str],
    *,
    arguments: KernelArguments | None = None,
    arch: GpuSpec | str | None = None,
    top_k: int | float = DEFAULT_TOP_K,
    verbose: bool = False,
    do_bench: Callable[..., Any] | None = None,
    **options: Any,
) -> Callable[[Any], Any]:
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
        GemmEvalError: Triton is missing.
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
