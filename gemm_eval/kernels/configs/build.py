"""From timings of many configs to the best config of each GEMM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemm_eval.arch import DeviceLimits
from gemm_eval.errors import GemmEvalError, InvalidProblemError
from gemm_eval.kernels.configs.record import ConfigKey, ConfigRecord, config_from_json, kernel_hash_of
from gemm_eval.kernels.configs.store import ConfigCache
from gemm_eval.kernels.families import Sizes
from gemm_eval.kernels.registry import legal_configs, make_variant
from gemm_eval.mapping import KernelConfig

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["build_from_timings"]

_GEMM = ("M", "K", "N", "input_dtype", "mode", "group_size", "l2")
_PER_COLUMN = -1  # what data sets call one scale a column
_DIGITS = 3  # nanoseconds, for readers; replays differ by more


def build_from_timings(table: pd.DataFrame, meta: Mapping[str, Any], gpu: str) -> ConfigCache:
    """Return the fastest config of each GEMM that was timed, of those that kernels of today have.

    Args:
        table: a row for each GEMM and config, with the columns of data sets in arch/measured/<gpu>/w4a16 and times in
            us.
        meta: what the .meta.yaml beside it says: versions of driver and compiler, and when it was measured.
        gpu: preset of the GPU.

    Raises:
        InvalidProblemError: the table lacks columns, or `meta` a version or a time.
        ArchError: there is no such preset.
    """
    from gemm_eval.kernels.plan import limits_of

    missing = {*_GEMM, *KernelConfig._fields, "latency_us"} - set(table.columns)
    if missing:
        raise InvalidProblemError(f"timings of kernels must have the columns {', '.join(sorted(missing))}")
    facts = _facts_of(meta)
    limits = limits_of(gpu)
    groups: dict[ConfigKey, dict[KernelConfig, float]] = {}
    for row in table[[*_GEMM, *KernelConfig._fields, "latency_us"]].to_dict("records"):
        values = {str(name): value for name, value in row.items()}
        latency_us = float(values["latency_us"])
        if math.isfinite(latency_us) and latency_us > 0:
            of_gemm = groups.setdefault(_key_of(values, gpu), {})
            config = config_from_json({name: _plain(values[name]) for name in KernelConfig._fields})
            of_gemm[config] = min(latency_us, of_gemm.get(config, latency_us))
    found = ConfigCache()
    for key, times in groups.items():
        record = _best(key, times, limits, facts)
        if record is not None:
            found.put(record)
    return found


def _facts_of(meta: Mapping[str, Any]) -> dict[str, str]:
    try:
        return {
            "driver": str(meta["gpu"]["driver_version"]),
            "compiler": str(meta["runner"]["compiler"]),
            "date": max(str(state["time"]) for state in meta["gpu_states"])[: len("2026-11-21")],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidProblemError(
            f"the meta file of timings must say gpu.driver_version, runner.compiler and gpu_states: {error!r}"
        ) from None


def _key_of(row: Mapping[str, Any], gpu: str) -> ConfigKey:
    group_size = int(row["group_size"])
    return ConfigKey.of(
        gpu, Sizes(int(row["M"]), int(row["K"]), int(row["N"])), str(row["input_dtype"]), str(row["mode"]),
        None if group_size == _PER_COLUMN else group_size, str(row["l2"]),
    )  # fmt: skip


def _plain(value: Any) -> Any:
    """A number of numpy as Python's."""
    return value if isinstance(value, str) else int(value)


def _best(
    key: ConfigKey, times: Mapping[KernelConfig, float], limits: DeviceLimits, facts: Mapping[str, str]
) -> ConfigRecord | None:
    """The record of a GEMM; None: none of the configs exists any more."""
    try:
        legal = set(legal_configs(key.sizes, limits, key.activation, key.mode, key.group_size or None))
    except GemmEvalError as error:
        raise InvalidProblemError(f"{key}: {error}") from error
    known = {config: latency_us for config, latency_us in times.items() if config in legal}
    if not known:
        return None
    config = min(known, key=lambda config: (known[config], config))
    return ConfigRecord(
        key=key,
        config=config,
        latency_us=max(round(known[config], _DIGITS), 10.0**-_DIGITS),
        found_by="all" if len(known) == len(legal) else "top_k",
        num_timed=len(known),
        kernel_hash=kernel_hash_of(make_variant(config, key.activation, key.mode, key.group_size or None), limits),
        **facts,
    )
