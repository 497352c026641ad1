"""From a config to what the model knows of its machine code: compiled, read once, and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton.compile import CompiledConfig, compile_many_offline, compile_with_jit
from gemm_eval.autotune.triton.ranker import CodeOf
from gemm_eval.autotune.triton.triton_runtime import active_capability, capability_of, jit_function
from gemm_eval.errors import GemmEvalError, InvalidInputError
from gemm_eval.models.gpu.triton import KernelCode, TritonConfig

__all__ = ["Assembly", "CodeReader"]

CodeReader = Callable[[Sequence[CompiledConfig], Sequence[TritonConfig]], Sequence[KernelCode | None]]
"""Reads machine code: what the model knows of each kernel, or None where it cannot say; may raise `GemmEvalError`."""

_MAX_CODES = 4096
_MAX_REASON_CHARS = 200


class Assembly:
    """Compiles configs and reads their machine code, each code once: other shapes of a GEMM often share it.

    Args:
        num_threads: how many compile at once.
        read_code: reads machine code; None: that of `gemm_eval.autotune.asm`.
    """

    def __init__(self, num_threads: int, read_code: CodeReader | None = None) -> None:
        self._num_threads = num_threads
        self._read_code = read_code or _read_codes
        self._codes: dict[str, KernelCode] = {}  # by Triton's hash of source, types, config and target

    def code_of(
        self,
        kernel: Any,
        arch: GpuSpec,
        given: Sequence[Any],
        configs: Sequence[TritonConfig],
        values: Mapping[str, Any],
        notes: list[str],
    ) -> CodeOf | None:
        """Return what compiles the configs of a kernel for one call, by index; None if there is nothing to compile.

        Args:
            kernel: of `@triton.jit`, with or without heuristics; None: unknown.
            arch: the GPU.
            given, configs: the configs, as Triton's and as ours.
            values: the arguments of the call, by name.
            notes: where it says what keeps it from reading code.
        """
        if kernel is None or jit_function(kernel) is None:
            return None

        def code_of(indices: Sequence[int]) -> list[KernelCode | str | None]:
            chosen = [given[i] for i in indices]
            if active_capability() == capability_of(arch):
                found = compile_with_jit(kernel, chosen, values, num_threads=self._num_threads)
            else:
                found = compile_many_offline(kernel, chosen, values, arch, num_threads=self._num_threads)
            launchable = {
                i: compiled
                for i, compiled in zip(indices, found, strict=True)
                if isinstance(compiled, CompiledConfig) and compiled.smem_bytes <= arch.smem_per_cta_bytes
            }
            self._read(list(launchable.values()), [configs[i] for i in launchable], notes)
            return [answer(compiled) for compiled in found]

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
    """What ptxas says is in a line of its own; of Triton's own errors the last line says it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    line = next((line for line in lines if line.startswith(("ptxas fatal", "ptxas error", "error"))), lines[-1])
    return line if len(line) <= _MAX_REASON_CHARS else line[: _MAX_REASON_CHARS - 3] + "..."
