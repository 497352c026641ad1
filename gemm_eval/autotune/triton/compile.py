"""Compiling configs without launching them: with Triton's own caches on a machine with the GPU, offline elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton.arguments import TensorArgument
from gemm_eval.autotune.triton.triton_runtime import (
    capability_of,
    gpu_spec,
    import_triton,
    jit_function,
    with_heuristics,
    without_autotuner,
)
from gemm_eval.errors import InvalidOptionError
from gemm_eval.extras import needs_extra

__all__ = ["CompiledConfig", "compile_many_offline", "compile_offline", "compile_with_jit", "default_num_threads"]

RUN_ONLY = ("grid", "warmup")
"""What a launch passes beside the kernel's own arguments."""


class CompiledConfig(NamedTuple):
    """A compiled kernel.

    Attributes:
        cubin: its machine code.
        smem_bytes: shared memory of a CTA.
        num_warps: of a CTA.
        key: Triton's hash of source, types, config and target.
    """

    cubin: bytes
    smem_bytes: int
    num_warps: int
    key: str


def default_num_threads() -> int:
    """Return how many threads compile at once: MLIR, LLVM and ptxas leave Python's lock to others."""
    return min(8, os.cpu_count() or 1)


def compile_offline(
    kernel: Any, config: Any, named_args: Mapping[str, Any], *, arch: GpuSpec | str, **kwargs: Any
) -> CompiledConfig:
    """Compile one config for a GPU that need not be there.

    Args:
        kernel: of `@triton.jit`; `@triton.heuristics` and `@triton.autotune` may be around it.
        config: a `triton.Config`; its `pre_hook` is not called.
        named_args: the kernel's arguments by name; `TensorArgument` may stand for tensors.
        arch: the GPU: a preset's name, a file, or a spec.
        kwargs: more arguments by name.

    Raises:
        GemmEvalError: Triton is missing.
        InvalidOptionError: `kernel` is no kernel.
        Exception: what Triton raises when it does not compile.
    """
    found = compile_many_offline(kernel, [config], {**named_args, **kwargs}, gpu_spec(arch), num_threads=1)[0]
    if isinstance(found, Exception):
        raise found
    assert found is not None  # only a JIT has hooks that keep it from compiling
    return found


def compile_many_offline(
    kernel: Any, configs: Sequence[Any], values: Mapping[str, Any], arch: GpuSpec, *, num_threads: int
) -> list[CompiledConfig | Exception | None]:
    """Compile configs for a GPU that need not be there; what does not compile gives its exception."""
    triton = import_triton()
    with needs_extra("tuning Triton kernels", "triton"):
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource, make_backend
        from triton.runtime.jit import create_function_from_signature

    kernel = without_autotuner(kernel)
    function = jit_function(kernel)
    if function is None:
        raise InvalidOptionError(f"kernel must be one of @triton.jit, got {type(kernel).__name__}")
    target = GPUTarget("cuda", capability_of(arch), 32)
    backend = make_backend(target)
    bind = create_function_from_signature(function.signature, function.params, backend)

    def prepare(config: Any) -> Callable[[], Any]:
        # as JITFunction.run does, so that types, alignments and constants are those of a launch
        keywords = with_heuristics(kernel, {**_arguments(values), **config.all_kwargs()})
        bound, specialization, options = bind(**keywords)
        options, signature, constants, attributes = function._pack_args(
            backend, keywords, bound, specialization, options
        )
        source = ASTSource(function, signature, constants, attributes)
        return lambda: triton.compile(source, target=target, options=options.__dict__)

    with ThreadPoolExecutor(num_threads) as threads:
        jobs = [_attempt(lambda one: threads.submit(prepare(one)), config) for config in configs]
        found = [_attempt(_finished, job) for job in jobs]
    return _again_alone(found, configs, lambda config: _finished(prepare(config)()))


def compile_with_jit(
    kernel: Any, configs: Sequence[Any], values: Mapping[str, Any], *, num_threads: int
) -> list[CompiledConfig | Exception | None]:
    """Compile configs as a launch with these arguments would, so that a launch finds them in Triton's caches.

    A config's `pre_hook` is called, as before a launch. What does not compile gives its exception; None: a hook of
    Triton (`knobs.runtime.jit_cache_hook`) kept the kernel from being compiled.
    """
    triton = import_triton()
    kernel = without_autotuner(kernel)

    def start(config: Any) -> Any:
        if config.pre_hook:
            config.pre_hook({**values, **config.all_kwargs()})
        return kernel.warmup(grid=values.get("grid"), **{**_arguments(values), **config.all_kwargs()})

    if num_threads == 1 or _is_async():
        jobs = [_attempt(start, config) for config in configs]
    else:
        with ThreadPoolExecutor(num_threads) as threads, triton.AsyncCompileMode(threads, ignore_errors=True):
            jobs = [_attempt(start, config) for config in configs]
    found = [_attempt(_finished, job) for job in jobs]
    return _again_alone(found, configs, lambda config: _finished(start(config)))


def _is_async() -> bool:
    """Whether the caller compiles in threads of its own, in which what is compiled here then runs too."""
    with needs_extra("tuning Triton kernels", "triton"):
        from triton.runtime._async_compile import active_mode

    return active_mode.get() is not None


def _arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the kernel itself takes; a bare torch dtype stands for a tensor, as in Triton's `warmup`."""
    return {
        name: TensorArgument(value) if type(value).__name__ == "dtype" and type(value).__module__ == "torch" else value
        for name, value in values.items()
        if name not in RUN_ONLY
    }


def _attempt(call: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return call(argument)
    except Exception as error:  # a config may fail in any way: the front end, MLIR, LLVM, ptxas
        return error


def _again_alone(found: list[Any], configs: Sequence[Any], compile_one: Callable[[Any], Any]) -> list[Any]:
    """Compile in this thread what Python itself failed at in others.

    CPython's ast module, through which Triton reads a kernel, counts its depth for all threads together, and raises a
    `SystemError` now and then when two of them parse at once.
    """
    return [
        _attempt(compile_one, config) if isinstance(result, SystemError) else result
        for result, config in zip(found, configs, strict=True)
    ]


def _finished(job: Any) -> CompiledConfig | None:
    if isinstance(job, Exception):
        raise job
    kernel = job.result() if hasattr(job, "result") else job
    return None if kernel is None else _compiled(kernel)


def _compiled(kernel: Any) -> CompiledConfig:
    metadata = kernel.metadata
    return CompiledConfig(bytes(kernel.asm["cubin"]), int(metadata.shared), int(metadata.num_warps), str(kernel.hash))
