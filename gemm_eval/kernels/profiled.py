"""`w4a16_gemm(config="profile")`: the fastest of the model's first choices, timed once and remembered."""

from __future__ import annotations

import logging
from functools import cache

from gemm_eval.arch import gpu_slug
from gemm_eval.device import runtime
from gemm_eval.kernels.choice import rank, spec_of_device
from gemm_eval.kernels.config_cache import ConfigKey, lookup, new_record, present_versions, remember
from gemm_eval.kernels.families import Operands, Sizes
from gemm_eval.kernels.tune import tune
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.mapping import KernelConfig

__all__ = ["PROFILED_CONFIGS", "forget_profiled", "profiled_config"]

PROFILED_CONFIGS = 10
"""So many of the model's first choices are timed."""

_log = logging.getLogger(__name__)


def profiled_config(sizes: Sizes, packed: PackedW4, operands: Operands, device: int, stream: int) -> KernelConfig:
    """Return the config that is fastest for a GEMM by timings, which are taken now if none are known.

    Known are those of this process, of the user's file, and those that came with the library for this GPU
    (`gemm_eval.kernels.config_cache`). Arguments and errors as of `tune`.
    """
    key = ConfigKey.of(_gpu(device), sizes, packed.activation, packed.mode, packed.group_size or None)
    known = _known.get((key, device))
    if known is not None:
        return known
    limits = runtime.limits_of_device(device)
    record = lookup(key, limits, present_versions())
    if record is not None and record.is_measured:
        config = record.config
    else:
        candidates = rank(
            sizes, packed.activation, packed.mode, packed.group_size, spec_of_device(device), PROFILED_CONFIGS
        )
        tuning = tune(candidates, sizes, packed, operands, device, stream)
        best = tuning.timed[0]
        _log.info("%s: %.2f us with %s, the best of %d", sizes, best.latency_us, best.config, len(tuning.timed))
        remember(new_record(key, best.config, best.latency_us, "top_k", len(tuning.timed), limits))
        config = best.config
    return _known.setdefault((key, device), config)


_known: dict[tuple[ConfigKey, int], KernelConfig] = {}


def forget_profiled() -> None:
    """Look into the files again for every GEMM."""
    _known.clear()


@cache
def _gpu(device: int) -> str:
    return gpu_slug(runtime.name_of_device(device))
