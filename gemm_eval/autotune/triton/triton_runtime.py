"""Where this room touches Triton: its import, the parts of a decorated kernel, the GPU that it compiles for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from gemm_eval.arch import GpuSpec, gpu_slug, list_archs, load_arch
from gemm_eval.errors import ArchNotFoundError, GemmEvalError, InvalidOptionError
from gemm_eval.extras import needs_extra

__all__ = [
    "active_capability",
    "capability_of",
    "gpu_spec",
    "import_triton",
    "jit_function",
    "running_gpu",
    "with_heuristics",
    "without_autotuner",
]


def import_triton() -> Any:
    """Return the module triton.

    Raises:
        GemmEvalError: it is missing.
    """
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
    with needs_extra("tuning Triton kernels", "triton"):
        from triton.runtime.jit import JITFunction

    while not isinstance(kernel, JITFunction) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel if isinstance(kernel, JITFunction) else None


def with_heuristics(kernel: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments and config values, and those that `@triton.heuristics` of a kernel makes of them."""
    found = dict(values)
    while hasattr(kernel, "fn"):
        heuristics = getattr(kernel, "values", None)
        if isinstance(heuristics, Mapping):
            for name, make in heuristics.items():
                found[name] = make(found)
        kernel = kernel.fn
    return found


def capability_of(arch: GpuSpec) -> int:
    """Return what Triton calls the generation of a GPU: 90 for sm_90."""
    return int(arch.sm_arch.removeprefix("sm_"))


def active_capability() -> int | None:
    """Return the generation of the GPU that Triton would launch on, or None if there is none of NVIDIA's."""
    with needs_extra("tuning Triton kernels", "triton"):
        from triton.runtime import driver

    try:
        target = driver.active.get_current_target()
    except Exception:  # no GPU, no torch, no driver: Triton raises what its back ends raise
        return None
    return int(target.arch) if target.backend == "cuda" else None


def running_gpu() -> GpuSpec:
    """Return the preset of the GPU that Triton launches on: torch's current one, or CuPy's where torch is missing.

    Raises:
        GemmEvalError: there is no GPU.
        ArchNotFoundError: there is no preset for it.
    """
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
    """Return the GPU that `arch` names; None: the one that runs.

    Raises:
        InvalidOptionError: it names something else than a GPU.
        ArchError: no such preset or file, or one that does not hold together.
        GemmEvalError: it is None, and there is no GPU.
    """
    if arch is None:
        return running_gpu()
    spec = load_arch(arch) if isinstance(arch, str) else arch
    if not isinstance(spec, GpuSpec):
        raise InvalidOptionError(f"Triton kernels are ranked for NVIDIA GPUs, {spec.name} is none")
    return spec
