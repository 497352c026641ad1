"""Stands in for what ranking Triton configs needs: configs without Triton, a cost model, a driver without a GPU."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu.calibration import Origin
from gemm_eval.models.gpu.triton import KernelCode, MainLoop, TritonConfig, TritonTimes
from gemm_eval.workload import GemmProblem

SIZES = (128, 64, 32, 16)


class FakeConfig:
    """What pruning sees of a `triton.Config`."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3) -> None:
        self.kwargs, self.num_warps, self.num_stages, self.pre_hook = kwargs, num_warps, num_stages, None

    def all_kwargs(self) -> dict[str, Any]:
        return {**self.kwargs, "num_warps": self.num_warps, "num_ctas": 1, "num_stages": self.num_stages}


def tiles(make: Callable[..., Any] = FakeConfig, sizes: Sequence[int] = SIZES) -> list[Any]:
    """Configs with square tiles of `sizes`."""
    return [
        make({"BLOCK_M": size, "BLOCK_N": size, "BLOCK_K": 32, "GROUP_M": 8, "SPLIT_K": 1}, num_warps=4, num_stages=3)
        for size in sizes
    ]


def code_of(
    config: TritonConfig, *, registers: int = 64, smem_bytes: int = 16384, is_compiled: bool = False
) -> KernelCode:
    loop = MainLoop(config.block_k, (), 100, 10, 10, 0, 10, 10, 0, 1, 1, 1, 0, 10, 0)
    return KernelCode(config.num_warps, registers, smem_bytes, 0, 100, loop, is_compiled)


class FakeModel:
    """Predicts `time_us(config, is_compiled)`, and remembers which codes it was asked about."""

    def __init__(self, time_us: Callable[[TritonConfig, bool], float]) -> None:
        self.time_us = time_us
        self.asked: list[tuple[TritonConfig, bool]] = []

    def estimate_code(self, arch: GpuSpec, problem: GemmProblem, config: TritonConfig) -> KernelCode:
        return code_of(config)

    def triton_times(
        self, arch: GpuSpec, problem: GemmProblem, configs: Sequence[TritonConfig], codes: Sequence[KernelCode]
    ) -> Any:
        pairs = [(config, code.is_compiled) for config, code in zip(configs, codes, strict=True)]
        self.asked += pairs
        us = np.array([self.time_us(*pair) for pair in pairs], float)
        return TritonTimes(us, 0.9 * us, 1.1 * us, us, Origin(True, arch.name, ""))


def area(config: TritonConfig, is_compiled: bool) -> float:
    """A model for which small tiles are fast."""
    return config.block_m * config.block_n / 100


class FakeDriver:
    """What Triton's JIT asks of a driver before it launches."""

    def __init__(self, capability: int = 90) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def tensors(dtype: str = "fp16") -> dict[str, Any]:
    return {name: SimpleNamespace(dtype=dtype, data_ptr=lambda: 0) for name in ("a_ptr", "b_ptr", "c_ptr")}
