"""Choosing a kernel config by the model, without running one."""

from __future__ import annotations

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, list_archs, load_arch
from gemm_eval.checks import as_integer
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.mapping import KernelConfig
from gemm_eval.models.gpu import OURS, cached_by_arch, pack_gpu, unpack_config
from gemm_eval.models.gpu.w4a16 import W4A16_SIZES, has_our_kernels
from gemm_eval.search import find_best_config, find_top_configs
from gemm_eval.words import shown
from gemm_eval.workload import GemmProblem, run_options

_MAX_CONFIGS = 1 << 40  # more than there are
_packed = cached_by_arch(pack_gpu)  # a spec's hash takes longer than the search
_presets: dict[str, ArchSpec] = {}  # reading one takes a thousand times as long as a search


def select_config(
    problem: GemmProblem,
    arch: GpuSpec | str,
    k: int = 1,
    *,
    library: str | None = None,
    l2: str = "cold",
    clock: str = "burst",
) -> tuple[KernelConfig, ...]:
    """Return the `k` kernel configs that the model finds fastest for a GEMM, best first; fewer if there are fewer.

    For fp16 or bf16 activations and 4-bit weights these are kernels that `gemm_eval.kernels.w4a16_gemm` runs, for fp8
    ones on Hopper (dtype "w4a8_fp8") those of `w4a8_gemm`, on GPUs where `GEMMEvaluator.evaluate` answers for
    TensorRT-LLM's or a hypothetical kernel too. Takes some tens of microseconds for k = 1, once the model is loaded.

    Args:
        problem: sizes and data types.
        arch: a GPU's spec, a preset's name, or the path of a file. A preset is read once, a file at every call, and a
            spec is recognized as the same object: keep it.
        k: how many.
        library, l2, clock: as in `GEMMEvaluator.evaluate`, but that our kernels are the default wherever they can run.

    Raises:
        InvalidProblemError: `problem` is none.
        InvalidOptionError: `arch` is no GPU, k < 1, or another library, L2 or clock state than there are.
        UnsupportedError: GPU, types and library do not go together.
        InfeasibleError: no kernel can run it.
    """
    spec = _load(arch) if isinstance(arch, str) else arch
    if not isinstance(spec, GpuSpec):
        what = spec.name if isinstance(spec, MulticoreSpec) else shown(spec)
        raise InvalidOptionError(f"select_config chooses kernels of GPUs, {what} is none")
    if not isinstance(problem, GemmProblem):
        raise InvalidProblemError(f"problem must be a GemmProblem, got {shown(problem)}")
    k = as_integer("k", k, 1, _MAX_CONFIGS)
    types = problem.types
    if library is None and W4A16_SIZES.takes(*problem.sizes[1:]) and has_our_kernels(spec, types):
        library = OURS
    options = run_options(library, l2, clock, correction=True if isinstance(library, str) and library == OURS else None)
    packed = _packed(spec, types, options)
    find = find_best_config(spec, problem, packed) if k == 1 else find_top_configs(spec, problem, packed, k)
    return tuple(unpack_config(record) for record in find)


def _load(name_or_path: str) -> ArchSpec:
    spec = _presets.get(name_or_path)
    if spec is None:
        spec = load_arch(name_or_path)
        if name_or_path in list_archs():
            spec = _presets.setdefault(name_or_path, spec)
    return spec
