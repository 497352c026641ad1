"""The CUDA text of a W4A16 kernel, and what it is compiled for. Needs no GPU and no driver."""

from __future__ import annotations

from pathlib import Path

from gemm_eval.device import CompiledKernel, compile_text
from gemm_eval.errors import UnsupportedError
from gemm_eval.kernels.families import TARGETS_THAT_RAN, Family, Variant

__all__ = ["COMMON", "SOURCES", "compile_kernel", "has_run_on", "target_of", "text_of"]

SOURCES = Path(__file__).parent / "cuda"
"""The folder of the CUDA sources."""

COMMON = "common.cuh"
"""What stands before every kernel."""


def target_of(family: Family, compute_capability: tuple[int, int]) -> str:
    """Return what NVRTC compiles the kernels of `family` for on a GPU.

    Raises:
        UnsupportedError: the family has no kernels for such a GPU.
    """
    found = _find_target(family, compute_capability)
    if found is not None:
        return found
    major, minor = compute_capability
    known = ", ".join(".".join(map(str, capability)) for capability in family.targets)
    because = f": {family.limited_by}" if family.limited_by and compute_capability > max(family.targets) else ""
    raise UnsupportedError(
        f"{family.name} has no kernels for GPUs of compute capability {major}.{minor}, only for {known}{because}"
    )


def has_run_on(family: Family, compute_capability: tuple[int, int]) -> bool:
    """Whether what `family` is compiled for on a GPU has run on one, and been checked there."""
    return _find_target(family, compute_capability) in TARGETS_THAT_RAN


def _find_target(family: Family, compute_capability: tuple[int, int]) -> str | None:
    major, minor = compute_capability
    fitting = [known for known in family.targets if known[0] == major and known[1] <= minor]
    return family.targets[max(fitting)] if fitting else None


def compile_kernel(family: Family, variant: Variant, target: str) -> CompiledKernel:
    """Compile `variant` for `target`, or take it from the process or the disk cache.

    Raises:
        GemmEvalError: CuPy or NVRTC is missing, or the text does not compile.
    """
    return compile_text(text_of(family, variant), family.entry, target, variant.macros() | family.macros(variant))


def text_of(family: Family, variant: Variant) -> str:
    """Return the whole CUDA text of `variant`: common.cuh, the family's headers, its prelude, its source."""
    headers = [(SOURCES / name).read_text("utf-8") for name in (COMMON, *family.headers)]
    return "\n".join((*headers, family.prelude(variant), (SOURCES / family.source).read_text("utf-8")))
