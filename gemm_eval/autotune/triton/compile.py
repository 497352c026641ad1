"""Compiling configs without launching them: with Triton's own caches on a machine with the GPU, offline elsewhere."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

from gemm_eval.arch import GFX_ARCHS, GpuSpec, check_nvidia, gpu_slug, list_archs, load_arch
from gemm_eval.autotune.triton.arguments import TensorArgument
from gemm_eval.autotune.triton.mfma import code_of_amdgcn
from gemm_eval.errors import ArchNotFoundError, GemmEvalError, InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu.triton import KernelCode, TritonConfig
from gemm_eval.words import needs_extra, one_line


def import_triton() -> Any:
    """Return the module triton."""
    with needs_extra("tuning Triton kernels", "triton"):
        import triton
    return triton


def without_autotuner(kernel: Any) -> Any:
    """Return the kernel that an autotuner tunes; any other kernel as it is."""
    while hasattr(kernel, "prune_configs") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def jit_function(kernel: Any) -> Any | None:
    """Return the `JITFunction` below decorators; None if there is none, as under TRITON_INTERPRET=1."""
    import_triton()
    from triton.runtime.jit import JITFunction

    while not isinstance(kernel, JITFunction) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel if isinstance(kernel, JITFunction) else None


def with_heuristics(kernel: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments and config values, and those that `@triton.heuristics` of a kernel makes of them."""
    all_values = dict(values)
    while hasattr(kernel, "fn"):
        heuristics = getattr(kernel, "values", None)
        if isinstance(heuristics, Mapping):
            for name, make in heuristics.items():
                all_values[name] = make(all_values)
        kernel = kernel.fn
    return all_values


def target_of(arch: GpuSpec) -> tuple[str, int | str, int]:
    """Return Triton's target for a GPU of NVIDIA or AMD: its back end, generation and warp; refuse others."""
    if arch.sm_arch in GFX_ARCHS:
        return "hip", arch.sm_arch, arch.threads_per_warp
    check_nvidia(arch, "compiling Triton's kernels")
    return "cuda", int(arch.sm_arch.removeprefix("sm_")), arch.threads_per_warp


def active_target() -> tuple[str, int | str, int] | None:
    """Return the target that Triton would launch on, or None if there is no GPU."""
    import_triton()
    from triton.runtime import driver

    try:
        target = driver.active.get_current_target()
    except Exception:  # no GPU, no torch, no driver: Triton raises what its back ends raise
        return None
    return target.backend, target.arch, target.warp_size


def running_gpu() -> GpuSpec:
    """Return the preset of the GPU that Triton launches on: torch's current one, or CuPy's where torch is missing."""
    return _preset_of(_name_of_gpu())


@cache
def _preset_of(name: str) -> GpuSpec:
    slug = gpu_slug(name)
    known = list_archs()
    spec = load_arch(slug) if slug in known else None
    if not isinstance(spec, GpuSpec):
        raise ArchNotFoundError(
            f"no preset for the GPU that runs, {name!r}: give arch, a GpuSpec or one of {', '.join(known)}"
        )
    return spec


def _name_of_gpu() -> str:
    try:
        import torch
    except ImportError:
        from gemm_eval.device import runtime

        return runtime.name_of_device(runtime.current_device())
    if not torch.cuda.is_available():
        raise GemmEvalError("no GPU to rank for: give arch, the name of a preset or a GpuSpec")
    return str(torch.cuda.get_device_name())


def gpu_spec(arch: GpuSpec | str | None) -> GpuSpec:
    """Return the GPU that `arch` names; None: the one that runs."""
    if arch is None:
        return running_gpu()
    spec = load_arch(arch) if isinstance(arch, str) else arch
    if not isinstance(spec, GpuSpec):
        raise InvalidOptionError(f"Triton kernels are ranked for GPUs, {spec.name} is none")
    return spec


RUN_ONLY = ("grid", "warmup")
"""Names that a launch passes beside the kernel's own arguments."""


class CompiledConfig(NamedTuple):
    """A compiled kernel: code, shared memory and warps of a CTA, and Triton's hash of all that it was made of."""

    cubin: bytes  # of AMD's GPUs the assembly text
    smem_bytes: int
    num_warps: int
    key: str


def compile_offline(
    kernel: Any, config: Any, named_args: Mapping[str, Any], *, arch: GpuSpec | str, **kwargs: Any
) -> CompiledConfig:
    """Compile a `triton.Config` of a kernel for a GPU that need not be there; its `pre_hook` is not called.

    `kernel` may have `@triton.heuristics` and `@triton.autotune` around it, and `TensorArgument` may stand for tensors.

    Raises:
        GemmEvalError: Triton is missing, or `kernel` is no kernel.
        Exception: what Triton raises when it does not compile.
    """
    compiled = compile_many_offline(kernel, [config], {**named_args, **kwargs}, gpu_spec(arch), num_threads=1)[0]
    if isinstance(compiled, Exception):
        raise compiled
    assert compiled is not None  # only a JIT has hooks that keep it from compiling
    return compiled


def compile_many_offline(
    kernel: Any, configs: Sequence[Any], values: Mapping[str, Any], arch: GpuSpec, *, num_threads: int
) -> list[CompiledConfig | Exception | None]:
    """Compile configs for a GPU that need not be there; what does not compile gives its exception."""
    triton = import_triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    kernel = without_autotuner(kernel)
    function = jit_function(kernel)
    if function is None:
        raise InvalidOptionError(f"kernel must be one of @triton.jit, got {type(kernel).__name__}")
    target = GPUTarget(*target_of(arch))
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
        results = [_attempt(_finished, job) for job in jobs]
    return _again_alone(results, configs, lambda config: _finished(prepare(config)()))


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
    results = [_attempt(_finished, job) for job in jobs]
    return _again_alone(results, configs, lambda config: _finished(start(config)))


def _is_async() -> bool:
    """Return whether the caller compiles in threads of its own, in which this module then compiles too."""
    import_triton()
    from triton.runtime._async_compile import active_mode

    return active_mode.get() is not None


def _arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kernel's own arguments; a bare torch dtype stands for a tensor, as in Triton's `warmup`."""
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


def _again_alone(results: list[Any], configs: Sequence[Any], compile_one: Callable[[Any], Any]) -> list[Any]:
    """Compile in this thread what Python itself failed at in others.

    CPython's ast module, through which Triton reads a kernel, counts its depth for all threads together, and raises a
    `SystemError` now and then when two of them parse at once. Triton wraps those of functions that a kernel calls.
    """
    return [
        _attempt(compile_one, config) if any(isinstance(error, SystemError) for error in _causes(result)) else result
        for result, config in zip(results, configs, strict=True)
    ]


def _causes(error: Any) -> Iterator[BaseException]:
    while isinstance(error, BaseException):
        yield error
        error = error.__cause__ or error.__context__


def _finished(job: Any) -> CompiledConfig | None:
    if isinstance(job, Exception):
        raise job
    kernel = job.result() if hasattr(job, "result") else job
    if kernel is None:
        return None
    metadata = kernel.metadata
    code = kernel.asm["cubin"] if "cubin" in kernel.asm else kernel.asm["amdgcn"].encode()
    return CompiledConfig(bytes(code), int(metadata.shared), int(metadata.num_warps), str(kernel.hash))


CodeReader = Callable[[Sequence[CompiledConfig], Sequence[TritonConfig]], Sequence[KernelCode | None]]
"""Reads machine code: what the model knows of each kernel, or None where it cannot say; may raise `GemmEvalError`."""

_ELF = b"\x7fELF"
_MAX_CODES = 4096
_MAX_REASON_CHARS = 200


CodeOf = Callable[[Sequence[int]], Sequence[KernelCode | str | None]]
"""Compiles configs, by their index: their code; why one falls; None: its code cannot be read, the estimate holds."""


class Assembly:
    """Compiles configs and reads their machine code, each code once: other shapes of a GEMM often share it."""

    def __init__(self, num_threads: int | None, read_code: CodeReader | None = None) -> None:
        # MLIR, LLVM and ptxas leave Python's lock to others
        self._num_threads = num_threads or min(8, os.cpu_count() or 1)
        self._read_code = read_code or _read_codes
        self._codes: dict[str, KernelCode] = {}  # by Triton's hash of source, types, config and target

    def code_of(
        self, kernel: Any, arch: GpuSpec, given: Sequence[Any], configs: Sequence[TritonConfig],
        values: Mapping[str, Any], notes: list[str],
    ) -> CodeOf | None:  # fmt: skip
        """Return what compiles the configs of a kernel for one call, by index; None if there is nothing to compile.

        `given` and `configs` are the configs as Triton's and as ours; `notes` gets what keeps it from reading code.
        """
        if kernel is None or jit_function(kernel) is None:
            return None

        def code_of(indices: Sequence[int]) -> list[KernelCode | str | None]:
            chosen = [given[i] for i in indices]
            if active_target() == target_of(arch):
                results = compile_with_jit(kernel, chosen, values, num_threads=self._num_threads)
            else:
                results = compile_many_offline(kernel, chosen, values, arch, num_threads=self._num_threads)
            launchable = {
                i: compiled
                for i, compiled in zip(indices, results, strict=True)
                if isinstance(compiled, CompiledConfig) and compiled.smem_bytes <= arch.smem_per_cta_bytes
            }
            self._read(list(launchable.values()), [configs[i] for i in launchable], notes)
            return [answer(compiled) for compiled in results]

        def answer(compiled: CompiledConfig | Exception | None) -> KernelCode | str | None:
            if compiled is None:
                return None
            if isinstance(compiled, Exception):
                return f"it does not compile: {_one_line(compiled)}"
            if compiled.smem_bytes > arch.smem_per_cta_bytes:
                demand, limit = f"{compiled.smem_bytes:,}", f"{arch.smem_per_cta_bytes:,}"
                return f"it cannot be launched: {demand} bytes of shared memory, a CTA has {limit}"
            return self._codes.get(compiled.key)

        return code_of

    def _read(self, compiled: list[CompiledConfig], configs: list[TritonConfig], notes: list[str]) -> None:
        """Read the codes that are not known yet, all at once: a disassembler takes longer to start than to read."""
        fresh = {one.key: (one, config) for one, config in zip(compiled, configs, strict=True)}
        fresh = {key: pair for key, pair in fresh.items() if key not in self._codes}
        if not fresh:
            return
        try:
            codes = self._read_code([one for one, _ in fresh.values()], [config for _, config in fresh.values()])
        except GemmEvalError as error:
            notes.append(f"machine code was not read, the estimate stands: {error}")
            return
        if None in codes:
            text = f"machine code of {codes.count(None)} configs has no main loop as the model knows them"
            notes.append(f"{text}: the estimate stands")
        while len(self._codes) + len(codes) > _MAX_CODES and self._codes:
            self._codes.pop(next(iter(self._codes)), None)
        self._codes.update((key, code) for key, code in zip(fresh, codes, strict=True) if code is not None)


def _read_codes(compiled: Sequence[CompiledConfig], configs: Sequence[TritonConfig]) -> list[KernelCode | None]:
    from gemm_eval.autotune.asm import kernel_code, score_cubins

    if compiled and not compiled[0].cubin.startswith(_ELF):
        pairs = zip(compiled, configs, strict=True)
        return [code_of_amdgcn(one.cubin.decode(), config, one.smem_bytes) for one, config in pairs]
    codes: list[KernelCode | None] = []
    for one, config, card in zip(compiled, configs, score_cubins([one.cubin for one in compiled]), strict=True):
        try:
            code = kernel_code(
                card, block_m=config.block_m, block_n=config.block_n, block_k=config.block_k,
                num_warps=one.num_warps, smem_bytes=one.smem_bytes,
            )  # fmt: skip
        except InvalidInputError:  # a main loop without tensor cores
            code = None
        codes.append(code)
    return codes


def _one_line(error: Exception) -> str:
    """Return the line of an error that says it: that of ptxas, or the last line of Triton's own errors."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    line = next((line for line in lines if line.startswith(("ptxas fatal", "ptxas error", "error"))), lines[-1])
    return one_line(line, _MAX_REASON_CHARS)
