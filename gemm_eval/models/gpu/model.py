"""The GPU cost model from Python: options, packing and unpacking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidOptionError
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu.calibration import coefficients_for
from gemm_eval.models.gpu.cost_kernels import BOUNDS
from gemm_eval.models.gpu.libraries import FAMILIES, LIBRARIES, default_library
from gemm_eval.models.gpu.params import pack_gpu_params
from gemm_eval.workload import GemmProblem

__all__ = ["GPU_MODEL_VERSION", "GpuCost", "GpuOptions", "gpu_params", "unpack_gpu_cost"]

GPU_MODEL_VERSION = "gpu-1"
"""Changes whenever the same GPU, problem and config can get another cost."""

_L2_STATES = ("cold", "warm")
_CLOCKS = ("burst", "sustained")
_FAMILY_NAMES = {family.number: family.name for family in FAMILIES.values()}


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """How a GPU runs a GEMM.

    Attributes:
        library: whose kernels: ``cublas``, ``gemm-eval``, ``trtllm``; None: the default for the data types.
        l2: ``cold``: weights come from DRAM; ``warm``: what fits is still in L2 from the call before.
        clock: ``burst``: at most about 10 ms busy; ``sustained``: as long as the power limit takes to set the clock.

    Raises:
        InvalidOptionError: another value.
    """

    library: str | None = None
    l2: str = "cold"
    clock: str = "burst"

    def __post_init__(self) -> None:
        known: Mapping[str, tuple[str, ...]] = {"library": tuple(LIBRARIES), "l2": _L2_STATES, "clock": _CLOCKS}
        for name, allowed in known.items():
            value = getattr(self, name)
            if value not in allowed and not (name == "library" and value is None):
                raise InvalidOptionError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


class GpuCost(NamedTuple):
    """The cost of one kernel config; times in us, terms of `breakdown` add up to `latency_us`."""

    config: KernelConfig
    latency_us: float
    compute_us: float
    dram_us: float
    dram_bytes: int
    bound: str
    breakdown: dict[str, float]
    traffic: dict[str, int]
    smem_bytes: int
    active_sms: int
    ctas_per_sm: int
    num_ctas: int
    num_waves: int
    num_candidates: int
    num_refused: dict[str, int]
    is_calibrated: bool


_TERMS = (
    "launch_us", "prologue_us", "matrix_us", "dequant_us", "step_wait_us", "tile_overhead_us", "l2_us", "dram_us",
    "store_us", "reduction_us", "power_us", "choice_us",
)  # fmt: skip
_TRAFFIC = {
    "a_bytes": "dram_a_bytes", "b_bytes": "dram_b_bytes", "scale_bytes": "dram_scale_bytes", "c_bytes": "dram_c_bytes",
}  # fmt: skip


def gpu_params(arch: GpuSpec, problem: GemmProblem, options: GpuOptions) -> npt.NDArray[np.void]:
    """Pack a GPU, the data types of a problem and the options for the kernels, [1] of `GPU_PARAMS_DTYPE`.

    Raises:
        UnsupportedError: GPU, types and library do not go together.
    """
    library = options.library or default_library(problem)
    rules = LIBRARIES[library]
    params = None
    for is_unaligned in (True, False):
        family = rules.family(arch, problem, is_unaligned=is_unaligned)
        coefficients, origin = coefficients_for(arch, library, family)
        params = pack_gpu_params(
            arch, problem, library, coefficients, l2=options.l2, clock=options.clock,
            is_calibrated=origin.is_calibrated, unaligned=params,
        )  # fmt: skip
    assert params is not None
    return params


def unpack_gpu_cost(record: np.void) -> GpuCost:
    """Turn a record of `GPU_COST_DTYPE` into Python values.

    Raises:
        KeyError, ValueError, IndexError: the record holds a code that does not exist.
    """
    config = KernelConfig(
        _FAMILY_NAMES[int(record["family"])],
        *(int(record[name]) for name in ("cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages")),
        Schedule(int(record["schedule"])),
        Decomposition(int(record["decomposition"])),
        int(record["split_k"]),
        RasterOrder(int(record["raster_order"])),
        int(record["raster_swizzle"]),
    )
    latency_us = float(record["latency_us"])
    breakdown = {name: float(record[name]) for name in _TERMS}
    breakdown["hidden_us"] = latency_us - sum(breakdown.values())
    return GpuCost(
        config=config,
        latency_us=latency_us,
        compute_us=float(record["compute_us"]),
        dram_us=float(record["dram_us"]),
        dram_bytes=int(record["dram_bytes"]),
        bound=BOUNDS[int(record["bound"])],
        breakdown=breakdown,
        traffic={name: int(record[field]) for name, field in _TRAFFIC.items()},
        smem_bytes=int(record["smem_bytes"]),
        active_sms=int(record["active_sms"]),
        ctas_per_sm=int(record["ctas_per_sm"]),
        num_ctas=int(record["num_ctas"]),
        num_waves=int(record["num_waves"]),
        num_candidates=int(record["num_candidates"]),
        num_refused={"lower_bound": int(record["num_bounded"])},
        is_calibrated=bool(record["is_calibrated"]),
    )
