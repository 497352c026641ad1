"""Kernels bound to a GEMM: chosen, checked, compiled, and with the arguments of their launches remembered."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from gemm_eval.arch import DeviceLimits, GpuSpec, MulticoreSpec, limits_of_spec, load_arch
from gemm_eval.checks import plain_integer
from gemm_eval.device import CompiledKernel, encode_tensor_map, runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidMappingError, InvalidProblemError, UnsupportedError
from gemm_eval.kernels.choice import choose, choose_grouped, spec_of_device
from gemm_eval.kernels.families import (
    GroupedFamily,
    GroupedSizes,
    Launch,
    Sizes,
    Variant,
    WeightMode,
    ceil_div,
    family_of,
)
from gemm_eval.kernels.registry import check_kernel, compile_for, make_variant, occupancy_of
from gemm_eval.mapping import KernelConfig
from gemm_eval.words import shown

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
    device: int, expected_rows: int = 0, is_batch: bool = False,
) -> Plan[Any]:  # fmt: skip
    """Return `make_plan` for a GPU of this machine, by default of the config that the model chooses; remembered.

    `expected_rows` and `is_batch` are those of `choose_grouped`, for groups.
    """
    limits = runtime.limits_of_device(device)
    if config is None:
        check_rows(sizes)
        types, spec = (activation, mode, group_size), spec_of_device(device)
        if isinstance(sizes, GroupedSizes):
            config = choose_grouped(sizes, *types, expected_rows, is_batch, spec, limits)
        else:
            config = choose(sizes, *types, spec, limits)
    return make_plan(sizes, activation, mode, group_size, config, limits)


def make_plan(
    sizes: Sizes | GroupedSizes, activation: DType, mode: WeightMode, group_size: int, config: KernelConfig,
    limits: DeviceLimits,
) -> Plan[Any]:  # fmt: skip
    """Check and compile a kernel for a GEMM, or for groups that share a launch. Needs no GPU.

    Operands of its launches are `Operands`, or `GroupedOperands` for groups.

    Raises:
        InvalidInputError: sizes or a config that cannot be.
        UnsupportedError: the GPU lacks what the kernel needs.
        GemmEvalError: CuPy or NVRTC is missing.
    """
    check_rows(sizes)
    variant = make_variant(config, activation, mode, group_size)
    family = family_of(config)
    if isinstance(sizes, GroupedSizes):
        if not isinstance(family, GroupedFamily):
            raise InvalidMappingError(f"{family.name} has kernels of one GEMM, which w4a16_gemm runs", rule="family")
        check_kernel(variant, sizes.of_all, limits)
        compiled, ctas_per_sm = compile_fitting(variant, limits)
        launch = family.launch_groups(variant, sizes, limits.num_sms, ctas_per_sm)
        bind: Any = family.arguments_of_groups
    else:
        check_kernel(variant, sizes, limits)
        if isinstance(family, GroupedFamily):
            raise InvalidMappingError(
                f"{family.name} has kernels of grouped GEMMs, which w4a16_grouped_gemm runs", rule="family"
            )
        compiled, ctas_per_sm = compile_fitting(variant, limits)
        launch = family.launch(variant, sizes, limits.num_sms, ctas_per_sm)
        bind = family.arguments

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
