"""What the tests of config caches share: a GPU, its configs, and records of them."""

from __future__ import annotations

from typing import Any

from gemm_eval.arch import load_arch
from gemm_eval.kernels import Sizes, limits_of_spec
from gemm_eval.kernels.config_cache import Versions
from gemm_eval.kernels.config_records import ConfigKey, ConfigRecord, kernel_hash_of
from gemm_eval.kernels.registry import legal_configs
from gemm_eval.mapping import Decomposition, KernelConfig

GPU = "h200-sxm"
LIMITS = limits_of_spec(load_arch(GPU))  # type: ignore[arg-type]
SIZES = Sizes(16, 1024, 512)
KEY = ConfigKey.of(GPU, SIZES)
CONFIGS = list(legal_configs(SIZES, LIMITS))
OTHER_KERNEL = next(c for c in CONFIGS if c.family != CONFIGS[0].family)
SPLIT = next(c for c in CONFIGS if c.decomposition is Decomposition.SPLIT_K)
HERE = Versions("580.159.04", "13.0 13.0.88")


def hash_of(config: KernelConfig, key: ConfigKey = KEY) -> str:
    return kernel_hash_of(key.variant_of(config), LIMITS)


def record(latency_us: float = 5.0, config: KernelConfig = CONFIGS[0], key: ConfigKey = KEY, **more: Any) -> Any:
    fields = {
        "found_by": "top_k", "num_timed": 8, "driver": HERE.driver, "compiler": HERE.compiler,
        "kernel_hash": hash_of(config), "date": "2026-11-21",
    }  # fmt: skip
    return ConfigRecord(key, config, latency_us, **(fields | more))
