"""A stand-in for the GPU model and its search, with their interface: a roofline over a handful of configs."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.errors import InfeasibleError, InvalidMappingError, InvalidOptionError, UnsupportedError
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder

LIBRARIES = ("cublas", "gemm-eval", "trtllm")
FAMILIES = ("sm90_wgmma", "sm90_w4a16")
BOUNDS = ("compute", "smem", "l2", "dram", "latency", "dequant", "reduction", "launch")
_CONFIG = KernelConfig._fields[1:]
GPU_COST_DTYPE = np.dtype(
    [(name, np.int64) for name in ("family", *_CONFIG, "bound", "dram_bytes", "a_bytes", "b_bytes", "c_bytes")]
    + [(name, np.int64) for name in ("smem_bytes", "active_sms", "ctas_per_sm", "num_waves", "num_candidates")]
    + [(name, np.int64) for name in ("is_calibrated",)]
    + [(name, np.float64) for name in ("latency_us", "compute_us", "dram_us", "launch_us", "hidden_us")]
)


@dataclass(frozen=True)
class GpuOptions:
    library: str | None = None
    l2: str = "cold"
    clock: str = "burst"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("library", (None, *LIBRARIES)),
            ("l2", ("cold", "warm")),
            ("clock", ("burst", "sustained")),
        ):
            if getattr(self, name) not in allowed:
                words = ", ".join(str(word) for word in allowed if word)
                raise InvalidOptionError(f"{name} must be one of {words}, got {getattr(self, name)!r}")


class GpuCost(NamedTuple):
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
    num_waves: int
    num_candidates: int
    num_refused: dict[str, int]
    is_calibrated: bool


def unpack_gpu_cost(record: Any) -> GpuCost:
    r = {name: record[name].item() for name in GPU_COST_DTYPE.names or ()}
    numbers = {name: r[name] for name in _CONFIG}
    numbers |= {"decomposition": Decomposition(r["decomposition"]), "raster_order": RasterOrder(r["raster_order"])}
    return GpuCost(
        KernelConfig(FAMILIES[r["family"]], **numbers), r["latency_us"], r["compute_us"], r["dram_us"],
        r["dram_bytes"], BOUNDS[r["bound"]],
        {name: r[name] for name in ("launch_us", "compute_us", "dram_us", "hidden_us")},
        {name: r[name] for name in ("a_bytes", "b_bytes", "c_bytes")}, r["smem_bytes"], r["active_sms"],
        r["ctas_per_sm"], r["num_waves"], r["num_candidates"], {"smem": 1}, bool(r["is_calibrated"]),
    )  # fmt: skip


def gpu_params(arch: Any, problem: Any, options: GpuOptions) -> Any:
    if problem.input_dtype not in arch.tensor_flop_per_cycle:
        raise UnsupportedError(f"{arch.name} cannot multiply {problem.input_dtype}")
    if problem.is_weight_quantized != (options.library != "cublas"):
        raise UnsupportedError(f"{options.library} has no kernel for {problem.weight_dtype} weights")
    out = np.zeros(1, [(n, float) for n in ("a", "b", "c", "flop_us", "dram", "launch", "q", "sms", "warm", "smem")])
    clock = arch.tensor_clock_ghz(problem.input_dtype, options.clock)
    out[0] = (
        problem.input_dtype.bits, problem.weight_dtype.bits, problem.output_dtype.bits,
        arch.tensor_flop_per_cycle[problem.input_dtype] * clock * 1e3, arch.dram_achievable_gb_per_s * 1e3,
        arch.launch_us, problem.is_weight_quantized, arch.num_sms, options.l2 == "warm", arch.smem_per_cta_bytes,
    )  # fmt: skip
    return out


def _cost(p: Any, G: int, M: int, K: int, N: int, config: KernelConfig) -> np.ndarray:
    out = np.zeros(1, GPU_COST_DTYPE)
    r = out[0]
    tiles = G * -(-M // config.cta_m) * -(-N // config.cta_n) * config.split_k
    sms = int(p["sms"])
    r["family"] = FAMILIES.index(config.family)
    for name in _CONFIG:
        r[name] = getattr(config, name)
    waves = -(-tiles // sms)
    r["compute_us"] = waves * 2 * config.cta_m * config.cta_n * (K / config.split_k) / p["flop_us"]
    r["a_bytes"], r["b_bytes"], r["c_bytes"] = (
        G * M * K * p["a"] // 8 + 1,
        G * K * N * p["b"] * 1.1 // 8 + 1,
        G * M * N * p["c"] // 8 + 1,
    )
    r["dram_bytes"] = r["a_bytes"] + r["b_bytes"] + r["c_bytes"]
    r["dram_us"] = r["dram_bytes"] / p["dram"] * (0.5 if p["warm"] else 1.0)
    r["launch_us"] = p["launch"]
    r["hidden_us"] = -min(r["compute_us"], r["dram_us"])
    r["latency_us"] = r["launch_us"] + r["compute_us"] + r["dram_us"] + r["hidden_us"]
    r["bound"] = 0 if r["compute_us"] > r["dram_us"] else 3
    r["smem_bytes"] = (config.cta_m + config.cta_n) * config.cta_k * 2 * config.num_stages
    r["active_sms"], r["ctas_per_sm"], r["num_waves"], r["num_candidates"] = min(tiles, sms), 1, waves, 12
    return out


def _configs(p: Any) -> list[KernelConfig]:
    return [
        KernelConfig(FAMILIES[int(p["q"])], m, n, 64, 2, 1, 8, 4,
                     Decomposition.SPLIT_K if s > 1 else Decomposition.DATA_PARALLEL, s, RasterOrder.ALONG_N, 8)
        for m, n, s in product((64, 128), (64, 128, 256), (1, 2))
    ]  # fmt: skip


def find_top_configs(arch: Any, problem: Any, params: Any, k: int) -> Any:
    if problem.K > 1 << 30:
        raise InfeasibleError(
            f"{problem} does not fit", resource="k", demand=problem.K, limit=1 << 30, unit="elements", levers=()
        )
    costs = [_cost(params[0], *problem.sizes, config) for config in _configs(params[0])]
    costs.sort(key=lambda cost: cost["latency_us"][0])
    return np.concatenate(costs[:k])


def find_best_config(arch: Any, problem: Any, params: Any) -> Any:
    return find_top_configs(arch, problem, params, 1)


def find_best_config_many(arch: Any, params: Any, type_of: Any, sizes: Any, on_progress: Any = None) -> Any:
    out = np.zeros(len(sizes), GPU_COST_DTYPE)
    for row, (kind, size) in enumerate(zip(type_of.tolist(), sizes.tolist(), strict=True)):
        if size[2] <= 1 << 30:
            costs = [_cost(params[kind], *size, config) for config in _configs(params[kind])]
            out[row] = min(costs, key=lambda cost: cost["latency_us"][0])[0]
        if on_progress is not None:
            on_progress(1)
    return out


def evaluate_config(arch: Any, problem: Any, params: Any, config: KernelConfig) -> Any:
    if config.family not in FAMILIES:
        raise InvalidMappingError(f"no such family: {config.family}", rule="family")
    return _cost(params[0], *problem.sizes, config)


def install() -> None:
    """Put the stand-ins where the library imports them from."""
    me = sys.modules[__name__]
    for name in ("gemm_eval.models.gpu", "gemm_eval.search.gpu"):
        module = types.ModuleType(name)
        for word in dir(me):
            if not word.startswith("_"):
                setattr(module, word, getattr(me, word))
        module.GPU_MODEL_VERSION = "gpu-1"  # type: ignore[attr-defined]
        module.calibration_stamp = lambda arch: "none"  # type: ignore[attr-defined]
        sys.modules[name] = module
