"""Best configs of GEMMs: a record, records in memory, their file, and records from timings.

`gemm_eval.kernels.config_cache` is what users see of it: which files there are, and what is looked up in them.
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.kernels.configs.build import build_from_timings
    from gemm_eval.kernels.configs.record import FOUND_BY, L2_STATES, ConfigKey, ConfigRecord, kernel_hash_of, why_void
    from gemm_eval.kernels.configs.store import (
        ANY_VERSIONS,
        ConfigCache,
        ConfigVersionWarning,
        Versions,
        change_file,
        limits_of_preset,
    )

__all__ = [
    "ANY_VERSIONS",
    "FOUND_BY",
    "L2_STATES",
    "ConfigCache",
    "ConfigKey",
    "ConfigRecord",
    "ConfigVersionWarning",
    "Versions",
    "build_from_timings",
    "change_file",
    "kernel_hash_of",
    "limits_of_preset",
    "why_void",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".build": ("build_from_timings",),
        ".record": (
            "FOUND_BY",
            "L2_STATES",
            "ConfigKey",
            "ConfigRecord",
            "kernel_hash_of",
            "why_void",
        ),
        ".store": (
            "ANY_VERSIONS",
            "ConfigCache",
            "ConfigVersionWarning",
            "Versions",
            "change_file",
            "limits_of_preset",
        ),
    },
)
