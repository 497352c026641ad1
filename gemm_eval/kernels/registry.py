"""The registry of kernels: their CUDA text and targets, which of them a GPU can run and why not, their occupancy."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gemm_eval.arch import DeviceLimits, Occupancy, occupancy_of_cta
from gemm_eval.device import CompiledKernel, compile_text
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidMappingError, InvalidOptionError, InvalidProblemError, UnsupportedError
from gemm_eval.kernels.families import (
    TARGETS_THAT_RAN,
    Family,
    Sizes,
    Variant,
    WeightMode,
    families,
    family_of,
    fp8_families,
    grouped_families,
)
from gemm_eval.kernels.layout import parse_activation, parse_group_size, parse_mode
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.words import one_line, plain_integer, shown
from gemm_eval.workload import MAX_DIM

SOURCES = Path(__file__).parent / "cuda"
"""The folder of the CUDA sources."""

COMMON = "common.cuh"
"""What stands before every kernel."""


def target_of(family: Family, compute_capability: tuple[int, int]) -> str:
    """Return what NVRTC compiles the kernels of `family` for on a GPU."""
    result = _find_target(family, compute_capability)
    if result is not None:
        return result
    major, minor = compute_capability
    known = ", ".join(".".join(map(str, capability)) for capability in family.targets)
    because = f": {family.limited_by}" if family.limited_by and compute_capability > max(family.targets) else ""
    raise UnsupportedError(
        f"{family.name} has no kernels for GPUs of compute capability {major}.{minor}, only for {known}{because}"
    )


def has_run_on(family: Family, compute_capability: tuple[int, int]) -> bool:
    """Say whether the target that `family` is compiled for on a GPU has run on one, and been checked there."""
    return _find_target(family, compute_capability) in TARGETS_THAT_RAN


def _find_target(family: Family, compute_capability: tuple[int, int]) -> str | None:
    major, minor = compute_capability
    fitting = [known for known in family.targets if known[0] == major and known[1] <= minor]
    return family.targets[max(fitting)] if fitting else None


def compile_kernel(family: Family, variant: Variant, target: str) -> CompiledKernel:
    """Compile `variant` for `target`, or take it from the process or the disk cache."""
    return compile_text(text_of(family, variant), family.entry, target, variant.macros() | family.macros(variant))


def text_of(family: Family, variant: Variant) -> str:
    """Return the whole CUDA text of `variant`: common.cuh, the family's headers, its prelude, its source."""
    headers = [(SOURCES / name).read_text("utf-8") for name in (COMMON, *family.headers)]
    return "\n".join((*headers, family.prelude(variant), (SOURCES / family.source).read_text("utf-8")))


class KernelEntry(NamedTuple):
    """A kernel of the registry, on one GPU.

    Attributes:
        refusal: why it cannot run there, or None.
        num_threads, smem_bytes: of a CTA, the latter dynamic.
        has_run: whether its family's kernels for this compute capability have run on a GPU, and been checked and timed
            there; False: they are compiled for it and counted, never run, or there are none.
    """

    variant: Variant
    refusal: str | None
    num_threads: int
    smem_bytes: int
    has_run: bool


def make_variant(
    config: KernelConfig, activation: DType | str, mode: WeightMode | str, group_size: int | None
) -> Variant:
    """Return what the kernel `config` is compiled for; group_size None: 128, or what the mode has."""
    if not isinstance(config, KernelConfig):
        raise InvalidOptionError(f"config must be a KernelConfig, got {shown(config)}")
    for name, value in config._asdict().items():
        if name != "family" and plain_integer(value) is None:
            raise InvalidMappingError(f"config.{name} must be an integer, got {shown(value)}", rule="config")
    try:  # plain integers equal the members of these enums, but families ask for identity
        config = config._replace(
            schedule=Schedule(config.schedule),
            decomposition=Decomposition(config.decomposition),
            raster_order=RasterOrder(config.raster_order),
        )
    except ValueError as error:
        raise InvalidMappingError(f"config: {one_line(str(error))}", rule="config") from None
    known = parse_mode(mode)
    return Variant(config, parse_activation(activation), known, parse_group_size(group_size, known))


def list_kernels(
    limits: DeviceLimits, activation: DType | str = DType.FP16, mode: WeightMode | str = WeightMode.GROUP,
    group_size: int | None = None, sizes: Sizes | None = None, *, is_fp8: bool = False,
) -> list[KernelEntry]:  # fmt: skip
    """List all kernels, with the reason where a GPU cannot run one: for any sizes, or for `sizes` (elements).

    `is_fp8`: those of `w4a8_gemm`, else of `w4a16_gemm`.
    """
    _check_place(sizes, limits)
    entries = []
    for family in (fp8_families() if is_fp8 else families()).values():
        has_run = has_run_on(family, limits.compute_capability)
        for config in family.configs():
            variant = make_variant(config, activation, mode, group_size)
            refusal = why_not(variant, sizes, limits)
            smem_bytes = family.smem_bytes(variant)
            entries.append(KernelEntry(variant, refusal, family.num_threads(variant), smem_bytes, has_run))
    return entries


def legal_configs(
    sizes: Sizes, limits: DeviceLimits, activation: DType | str = DType.FP16, mode: WeightMode | str = WeightMode.GROUP,
    group_size: int | None = None, *, is_fp8: bool = False,
) -> Iterator[KernelConfig]:  # fmt: skip
    """Yield every config that `check_kernel` lets pass for one GEMM: each kernel with each way to cut K.

    `is_fp8`: kernels of `w4a8_gemm`.
    """
    _check_place(sizes, limits)
    for family in (fp8_families() if is_fp8 else families()).values():
        for config in family.configs():
            variant = make_variant(config, activation, mode, group_size)
            if why_not(variant, sizes, limits) is None:
                yield from (split.config for split in legal_splits(variant, sizes, limits))


def _check_place(sizes: Sizes | None, limits: DeviceLimits) -> None:
    if not isinstance(limits, DeviceLimits):
        raise InvalidOptionError(f"limits must be DeviceLimits, as limits_of_spec returns them, got {shown(limits)}")
    if sizes is None:
        return
    if not isinstance(sizes, Sizes) or not all(1 <= (plain_integer(size) or 0) <= MAX_DIM for size in sizes):
        raise InvalidProblemError(f"sizes must be Sizes(M, K, N) of integers in 1..2**40, got {shown(sizes)}")


def check_kernel(variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> None:
    """Check that a GPU can run a kernel: for `sizes` (elements), or for any where that is None."""
    config = variant.config
    family = family_of(config)
    base = variant._replace(config=family.compiled(config))
    if base.config not in _configs_of(family.name):
        raise InvalidMappingError(
            f"{family.name} has no such kernel: {base.config}; `gemm-eval kernels` lists what there is", rule="config"
        )
    for checked in (base, variant):
        refusal = why_not(checked, sizes, limits)
        if refusal is not None:
            raise UnsupportedError(f"{checked.config} cannot run: {refusal}")
    if sizes is not None and variant not in (split := list(legal_splits(base, sizes, limits))):
        known = ", ".join(f"({other.config.decomposition.name}, {other.config.split_k})" for other in split)
        raise InvalidMappingError(
            f"(decomposition, split_k) must be one of {known} for M={sizes.M}, K={sizes.K}, N={sizes.N}, "
            f"got ({config.decomposition!r}, {config.split_k})",
            rule="split",
        )


def why_not(variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
    """Return why a GPU cannot run a kernel of the registry: for `sizes`, or for any where that is None; or None."""
    family = family_of(variant.config)
    try:
        target_of(family, limits.compute_capability)
    except UnsupportedError as error:
        return str(error)
    return family.refusal(variant, sizes, limits)


def legal_splits(variant: Variant, sizes: Sizes, limits: DeviceLimits) -> Iterator[Variant]:
    """Yield a kernel whose K is not split, and the same with each way to cut K that it can run."""
    for decomposition, split_k in family_of(variant.config).splits(variant, sizes, limits):
        split = variant._replace(config=variant.config._replace(decomposition=decomposition, split_k=split_k))
        if why_not(split, sizes, limits) is None:
            yield split


def compile_for(variant: Variant, limits: DeviceLimits) -> CompiledKernel:
    """Compile a kernel for a GPU, or take it from the cache. Needs no GPU."""
    family = family_of(variant.config)
    return compile_kernel(family, variant, target_of(family, limits.compute_capability))


def occupancy_of(variant: Variant, compiled: CompiledKernel, limits: DeviceLimits) -> Occupancy:
    """Return how many CTAs of a kernel an SM holds at once, from what it takes."""
    family = family_of(variant.config)
    smem_bytes = family.smem_bytes(variant) + compiled.static_smem_bytes
    spill_bytes = compiled.spill_store_bytes + compiled.spill_load_bytes
    return occupancy_of_cta(family.num_threads(variant), compiled.registers, smem_bytes, spill_bytes, limits)


@cache
def _configs_of(name: str) -> frozenset[KernelConfig]:
    return frozenset((families() | fp8_families() | grouped_families())[name].configs())
