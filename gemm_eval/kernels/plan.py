"""Kernels for GEMMs: the cost model's choice for the GPU that is there, checked, compiled and bound to launches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from gemm_eval.arch import (
    SM_ARCHS,
    DeviceLimits,
    GpuSpec,
    MulticoreSpec,
    gpu_slug,
    limits_of_spec,
    list_archs,
    load_arch,
)
from gemm_eval.device import CompiledKernel, encode_tensor_map, runtime
from gemm_eval.dtypes import DType, parse_scheme
from gemm_eval.errors import GemmEvalError, InvalidMappingError, InvalidProblemError, UnsupportedError
from gemm_eval.kernels.families import (
    Fusion,
    GroupedFamily,
    GroupedSizes,
    Launch,
    Sizes,
    Variant,
    WeightMode,
    ceil_div,
    families,
    family_of,
    fp8_families,
)
from gemm_eval.kernels.registry import check_kernel, compile_for, make_variant, occupancy_of
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.words import plain_integer, shown
from gemm_eval.workload import GemmProblem

_CHOICES = 4096
_ALL = 1 << 20
_COLUMNS = 64  # of a packed block
_UNEVEN_ROWS = range(8, 20)
"""Rows of a group for which small tiles are best if all groups have as many, and much worse if one has more."""
_MANY_GROUPS, _EVEN_SHARE = 100, 0.4
"""Of so many groups, the share of such rows that is expected to fall evenly: it cost least on 6 GEMMs of 128 groups."""
# Fields of a spec that the hardware itself tells.
_TOLD = (
    "num_sms", "smem_per_cta_bytes", "smem_per_sm_bytes", "smem_reserved_bytes", "registers_per_sm",
    "max_threads_per_sm", "max_ctas_per_sm",
)  # fmt: skip


def problem_of(
    sizes: Sizes, activation: DType, mode: WeightMode, group_size: int, *, is_fp8: bool = False
) -> GemmProblem:
    """Return the model's problem for a GEMM of ours; `is_fp8`: of `w4a8_gemm`, whose C has the type `activation`."""
    types = _types_of(activation, mode, group_size) | ({"input_dtype": DType.FP8} if is_fp8 else {})
    return GemmProblem(1, sizes.M, sizes.K, sizes.N, **types)


def _types_of(activation: DType, mode: WeightMode, group_size: int) -> dict[str, Any]:
    scheme = parse_scheme(f"w4a16_{mode.name.lower()}") if mode.is_fp4 else None
    return {
        "input_dtype": activation, "weight_dtype": DType.FP4 if scheme else DType.INT4, "output_dtype": activation,
        "group_size": group_size or None, "scale_dtype": scheme.scale_dtype if scheme else activation,
        "zero_dtype": DType.INT4 if mode is WeightMode.GROUP_ZERO else None,
    }  # fmt: skip


def expected_groups(rows: int, num_groups: int) -> tuple[int, ...]:
    """Return the expected rows of groups, the most first: evenly spaced quantiles of a distribution.

    Rows fall on groups at random, a binomial distribution; 8 to 19 rows a group as unevenly as loads of experts do, an
    exponential one, and those of many groups less so: as choices took the least time of
    arch/measured/h200-sxm/w4a16-grouped.
    """
    if num_groups == 1:
        return (rows,)
    if rows // num_groups in _UNEVEN_ROWS:
        loads = np.sort(-np.log1p(-(np.arange(num_groups) + 0.5) / num_groups))[::-1]
        if num_groups >= _MANY_GROUPS:
            loads = _EVEN_SHARE + (1.0 - _EVEN_SHARE) * loads / loads.mean()
        ends = np.floor(np.cumsum(loads) * (rows / loads.sum()) + 0.5)
        return tuple(np.diff(ends, prepend=0.0).astype(int).tolist())
    share, middle = 1 / num_groups, rows / num_groups
    reach = 8 * math.sqrt(middle) + 8
    counts = range(max(0, int(middle - reach)), min(rows, int(middle + reach)) + 1)
    of_all = math.lgamma(rows + 1)
    logs = [
        of_all - math.lgamma(count + 1) - math.lgamma(rows - count + 1)
        + count * math.log(share) + (rows - count) * math.log1p(-share)
        for count in counts
    ]  # fmt: skip
    below = np.cumsum(np.exp(logs))
    places = np.searchsorted(below, (np.arange(num_groups) + 0.5) / num_groups)
    result = sorted((counts[min(index, len(counts) - 1)] for index in places.tolist()), reverse=True)
    return (max(1, result[0]), *result[1:])


@lru_cache(maxsize=_CHOICES)
def choose(
    sizes: Sizes, activation: DType, mode: WeightMode, group_size: int, spec: GpuSpec, limits: DeviceLimits, *,
    is_fp8: bool = False,
) -> KernelConfig:  # fmt: skip
    """Return the fastest kernel by the model (`spec`) that the GPU (`limits`) can run; group_size 0: mode COLUMN.

    `is_fp8`: of `w4a8_gemm`.
    """
    types = activation, mode, group_size
    return _first_that_runs(lambda k: rank(sizes, *types, spec, k, is_fp8=is_fp8), sizes, types, limits)


def rank(
    sizes: Sizes, activation: DType, mode: WeightMode, group_size: int, spec: GpuSpec, k: int = _ALL, *,
    is_fp8: bool = False,
) -> tuple[KernelConfig, ...]:  # fmt: skip
    """Return the `k` configs that the model finds fastest, best first; arguments as of `choose`."""
    return _ranked(problem_of(sizes, activation, mode, group_size, is_fp8=is_fp8), sizes, spec, k)


def _ranked(
    problem: GemmProblem, sizes: Sizes, spec: GpuSpec, k: int, *, library: str | None = None
) -> tuple[KernelConfig, ...]:
    from gemm_eval.evaluate import select_config  # here, as numba takes its time to load
    from gemm_eval.models.gpu.w4a16 import has_our_kernels

    if not has_our_kernels(spec, problem.types):
        raise _no_kernel(sizes, limits_of_spec(spec))
    return select_config(problem, spec, k, library=library)


def _first_that_runs(
    ranked: Callable[[int], Iterable[KernelConfig]], sizes: Sizes, types: tuple[DType, WeightMode, int],
    limits: DeviceLimits,
) -> KernelConfig:  # fmt: skip
    """Return the first config of a ranking that the GPU can run: the best, unless it has less than its spec says."""
    for k in (1, _ALL):
        for config in ranked(k):
            with contextlib.suppress(GemmEvalError):
                check_kernel(make_variant(config, *types[:2], types[2] or None), sizes, limits)
                return config
    raise _no_kernel(sizes, limits)


@lru_cache(maxsize=_CHOICES)
def choose_grouped(
    sizes: GroupedSizes, activation: DType, mode: WeightMode, group_size: int, expected_rows: int, is_batch: bool,
    spec: GpuSpec, limits: DeviceLimits,
) -> KernelConfig:  # fmt: skip
    """Return the grouped kernel that the model finds fastest and that the GPU can run; remembered.

    All groups have as many rows if `is_batch`, else `expected_rows` fall on them at random. The GPU says by the rows
    that it finds whether K is cut, so the config leaves that to it.
    """
    even = (max(1, expected_rows // sizes.num_groups),) * sizes.num_groups
    rows = max(expected_rows, min(sizes.M, 2))  # where one is expected, launches that have rows have more in the mean
    groups = even if is_batch else expected_groups(rows, sizes.num_groups)
    types = activation, mode, group_size

    def ranked(k: int) -> Iterable[KernelConfig]:
        configs = rank_grouped(groups, sizes.K, sizes.N, *types, spec, k)
        return (config._replace(decomposition=Decomposition.STREAM_K) for config in configs)

    return _first_that_runs(ranked, sizes.of_all, types, limits)


def rank_grouped(
    groups: tuple[int, ...], K: int, N: int, activation: DType, mode: WeightMode, group_size: int, spec: GpuSpec,
    k: int = _ALL,
) -> tuple[KernelConfig, ...]:  # fmt: skip
    """Return the `k` grouped configs that the model finds fastest for groups of so many rows, best first.

    A group that alone has rows is asked as two of half the columns: the model knows it as a plain GEMM.
    """
    from gemm_eval.models.gpu import OURS

    sizes, active = Sizes(sum(groups), K, N), [rows for rows in groups if rows]
    if len(active) == 1:
        active, N = active * 2, ceil_div(N, 2 * _COLUMNS) * _COLUMNS
    problem = GemmProblem.grouped(active, K, N, **_types_of(activation, mode, group_size))
    return _ranked(problem, sizes, spec, k, library=OURS)


def _no_kernel(sizes: Sizes, limits: DeviceLimits) -> UnsupportedError:
    return UnsupportedError(
        f"no W4A16 kernel can run M={sizes.M}, K={sizes.K}, N={sizes.N} on a GPU of compute capability "
        f"{'.'.join(map(str, limits.compute_capability))}; list_kernels says why"
    )


@cache
def spec_of_device(device: int) -> GpuSpec:
    """Return what the model takes a GPU of this machine for, by its number; see `spec_of`."""
    return spec_of(gpu_slug(runtime.name_of_device(device)), runtime.limits_of_device(device))


@cache
def spec_of(slug: str, limits: DeviceLimits) -> GpuSpec:
    """Return the preset of a GPU, else of the nearest by compute capability and SMs, with this GPU's limits."""
    specs = {name: load_arch(name) for name in list_archs()}
    presets = {name: spec for name, spec in specs.items() if isinstance(spec, GpuSpec) and spec.sm_arch in SM_ARCHS}
    result = presets.get(slug)
    if result is None:
        capability, major = limits.compute_capability, limits.compute_capability[0]
        is_ours = any(major == known for family in families().values() for known, _ in family.targets)
        capability_of = {name: limits_of_spec(spec).compute_capability for name, spec in presets.items()}
        alike = [name for name, known in capability_of.items() if is_ours and known[0] == major]
        if not alike:
            raise UnsupportedError(
                f"no W4A16 kernel runs on a GPU of compute capability {'.'.join(map(str, capability))}"
            )
        num_sms = limits.num_sms
        result = presets[min(alike, key=lambda n: (capability_of[n] != capability, abs(presets[n].num_sms - num_sms)))]
    changes = {name: getattr(limits, name) for name in _TOLD if getattr(limits, name) != getattr(result, name)}
    return result.with_(**changes) if changes else result


LARGEST_SIZE = (1 << 31) - 1
"""Kernels take sizes as 32-bit integers."""

_BYTES_PER_COUNTER = 4
_COUNTERS_MULTIPLE_BYTES = 256  # keeps what follows them aligned
_PLANS = 4096
_ARGUMENTS_OF_PLAN = 256

T = TypeVar("T")


class Plan(NamedTuple, Generic[T]):
    """A kernel for a GEMM on a GPU, ready but for addresses, which are in operands of type `T`."""

    variant: Variant
    launch: Launch
    compiled: CompiledKernel
    arguments: Callable[[T], tuple[Any, ...]]

    @property
    def counter_bytes(self) -> int:
        """Counters at the start of a workspace, with what keeps the rest aligned."""
        bare = self.launch.num_counters * _BYTES_PER_COUNTER
        return ceil_div(bare, _COUNTERS_MULTIPLE_BYTES) * _COUNTERS_MULTIPLE_BYTES

    @property
    def workspace_bytes(self) -> int:
        """Counters and partial sums."""
        return self.counter_bytes + self.launch.workspace_bytes


def spec_and_limits(arch: GpuSpec | str | None) -> tuple[GpuSpec, DeviceLimits]:
    """Return the spec of a GPU for the model, and its limits: of a spec, a preset or file, or of CuPy's current GPU."""
    if arch is None:
        device = runtime.current_device()
        return spec_of_device(device), runtime.limits_of_device(device)
    spec = load_arch(arch) if isinstance(arch, str) else arch
    if not isinstance(spec, GpuSpec):
        what = spec.name if isinstance(spec, MulticoreSpec) else shown(spec)
        raise UnsupportedError(f"W4A16 kernels need an NVIDIA GPU, {what} is none")
    return spec, limits_of_spec(spec)


def limits_of(arch: GpuSpec | str | None) -> DeviceLimits:
    """Return the limits of a GPU, as `spec_and_limits` does, also of one that no kernel runs on."""
    if arch is None:
        return runtime.limits_of_device(runtime.current_device())
    return spec_and_limits(arch)[1]


@lru_cache(maxsize=_PLANS)
def plan_on_device(
    sizes: Sizes | GroupedSizes, activation: DType, mode: WeightMode, group_size: int, config: KernelConfig | None,
    device: int, expected_rows: int = 0, is_batch: bool = False, fusion: Fusion = Fusion.NONE, *, is_fp8: bool = False,
) -> Plan[Any]:  # fmt: skip
    """Return `make_plan` for a GPU of this machine, by default of the config that the model chooses; remembered."""
    limits = runtime.limits_of_device(device)
    types = activation, mode, group_size
    if config is None:
        config = choose_for(sizes, *types, spec_of_device(device), limits, expected_rows, is_batch, is_fp8=is_fp8)
    return make_plan(sizes, *types, config, limits, fusion, is_fp8=is_fp8)


def choose_for(
    sizes: Sizes | GroupedSizes, activation: DType, mode: WeightMode, group_size: int, spec: GpuSpec,
    limits: DeviceLimits, expected_rows: int = 0, is_batch: bool = False, *, is_fp8: bool = False,
) -> KernelConfig:  # fmt: skip
    """Return `choose` of a GEMM, or `choose_grouped` of groups."""
    check_rows(sizes)
    if isinstance(sizes, GroupedSizes):
        return choose_grouped(sizes, activation, mode, group_size, expected_rows, is_batch, spec, limits)
    return choose(sizes, activation, mode, group_size, spec, limits, is_fp8=is_fp8)


def make_plan(
    sizes: Sizes | GroupedSizes, activation: DType, mode: WeightMode, group_size: int, config: KernelConfig,
    limits: DeviceLimits, fusion: Fusion = Fusion.NONE, *, is_fp8: bool = False,
) -> Plan[Any]:  # fmt: skip
    """Check and compile a kernel for a GEMM, or groups that share a launch (`GroupedOperands`). Needs no GPU.

    `is_fp8`: tokens are e4m3, as `quantize_tokens` leaves them.
    """
    check_rows(sizes)
    variant = make_variant(config, activation, mode, group_size)._replace(fusion=fusion)
    family = family_of(config)
    if (family.name in fp8_families()) is not is_fp8:
        runs = "w4a8_gemm" if family.name in fp8_families() else "w4a16_gemm"
        raise InvalidMappingError(f"{family.name} has kernels that {runs} runs", rule="family")
    is_of_groups = isinstance(family, GroupedFamily)
    if isinstance(sizes, GroupedSizes) and not is_of_groups:
        raise InvalidMappingError(f"{family.name} has kernels of one GEMM, which w4a16_gemm runs", rule="family")
    check_kernel(variant, sizes.of_all if isinstance(sizes, GroupedSizes) else sizes, limits)
    if is_of_groups and not isinstance(sizes, GroupedSizes):
        message = f"{family.name} has kernels of grouped GEMMs, which w4a16_grouped_gemm runs"
        raise InvalidMappingError(message, rule="family")
    compiled, ctas_per_sm = compile_fitting(variant, limits)
    launcher: Any = family.launch_groups if isinstance(family, GroupedFamily) else family.launch
    launch: Launch = launcher(variant, sizes, limits.num_sms, ctas_per_sm)
    bind: Any = family.arguments_of_groups if isinstance(family, GroupedFamily) else family.arguments

    @lru_cache(maxsize=_ARGUMENTS_OF_PLAN)
    def arguments(operands: Any) -> tuple[Any, ...]:
        return bind(variant, sizes, launch, operands, encode_tensor_map)  # type: ignore[no-any-return]

    return Plan(variant, launch, compiled, arguments)


def compile_fitting(variant: Variant, limits: DeviceLimits) -> tuple[CompiledKernel, int]:
    """Compile a kernel; return it with how many of its CTAs an SM holds at once."""
    compiled = compile_for(variant, limits)
    fitting = occupancy_of(variant, compiled, limits)
    if not fitting.ctas_per_sm:
        raise UnsupportedError(f"{variant.config} cannot run: a CTA does not fit an SM, {fitting.limited_by} run out")
    return compiled, fitting.ctas_per_sm


def check_rows(sizes: Sizes | GroupedSizes) -> None:
    """Check that M is one that kernels take."""
    if not 1 <= (plain_integer(sizes.M) or 0) <= LARGEST_SIZE:
        raise InvalidProblemError(f"M must be 1 to {LARGEST_SIZE:,}, got {shown(sizes.M)}")
