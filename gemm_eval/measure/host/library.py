"""What numpy's BLAS does with a GEMM, as rules of a spec: which code it takes at which size, what it packs.

The sizes at which OpenBLAS takes other code are constants of its own (0.3.31: interface/gemm.c, driver/level3 and the
kernels for cores with AVX-512); what another BLAS does below its main path is not known here. Rates are first guesses:
`gemm-eval calibrate multicore` fits them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gemm_eval.measure.host.bandwidth import stream_gb_per_s
from gemm_eval.measure.host.campaign import HostMeasurement
from gemm_eval.measure.host.entries import Entry, value

__all__ = ["blas_coefficients", "blas_rules"]

_OPENBLAS = "openblas"
_AVX512_KERNELS = {"skylakex", "cooperlake", "sapphirerapids"}
_SMALL_MACS = 1_000_000  # up to this M*K*N those kernels pack nothing and run on one core
_ONE_CORE_MACS = 262_144  # up to this M*K*N the others run on one core
_NARROW_COLUMNS = 127  # up to this N those kernels cut M over cores instead
_PACK_GB_PER_S = 10.0
_SMALL_CLOCK_FRAC = 0.8
_TILES = ("tile_m", "tile_n", "tile_k")
_LARGEST_TILE = 128  # rows, columns and depth of a block of packed operands
_COPIES = 5  # of a tile in SRAM: two of A, two of B, one of C
_NEAR_CACHES = 2  # of the cache that a core has for itself: what one packs beyond misses it, and its pages


def blas_rules(measurement: HostMeasurement, num_units: int) -> dict[str, Any]:
    """Return the content of `rules` in a spec, each number with its kind and source.

    Args:
        measurement: of which BLAS, and how fast memories are.
        num_units: vector units of a core that multiply and add.
    """
    facts, dtype = measurement.facts, measurement.dtype
    cache = facts.last_private_cache
    changes: dict[str, Any] = {
        "packs": {"A": "private", "B": "private"},  # a core fetches what others packed of A: that takes as long
        "pack_gb_per_s": value(_PACK_GB_PER_S, "assumed", "a first guess"),
        "dram_gb_per_s": _near_gb_per_s(measurement, facts.num_cores.value),
        "dram_core_limit_gb_per_s": _near_gb_per_s(measurement, 1),
    }
    if cache is not None:
        changes["pack_near_bytes"] = value(
            _NEAR_CACHES * cache.size_bytes, "assumed", f"{_NEAR_CACHES} times what a core has for itself"
        )
    paths: dict[str, Any] = {}
    if cache is not None:
        near_bytes = cache.size_bytes * facts.num_cores.value
        paths["vector_near"] = {
            **_any_tile(),
            "max_rows": 1,
            "max_bytes": value(near_bytes, "derived", f"L{cache.level} of all cores"),
            "changes": _stream(measurement, near_bytes, num_units),
        }
    paths["vector"] = {
        **_any_tile(),
        "max_rows": 1,
        "changes": _stream(measurement, measurement.largest_weight_bytes, num_units),
    }
    paths |= dict(_openblas_paths(measurement, dtype))
    tiles = {name: [_tile_size(measurement)] for name in _TILES}
    title = f"{measurement.blas.name} {measurement.blas.version}"
    return {"title": title, **tiles, "changes": changes, "paths": paths}


def blas_coefficients(measurement: HostMeasurement, rules: Mapping[str, Any]) -> list[str]:
    """Return the paths of the numbers in a spec with these rules that its timings are to tell."""
    paths = rules["paths"]
    found = [f"load_clock_frac.{measurement.dtype}", "rules.changes.pack_gb_per_s"]
    if measurement.facts.num_cores.value > 1:
        found.append("sync_us")
    found += [f"rules.paths.{name}.changes.dram_gb_per_s" for name in ("vector_near", "vector") if name in paths]
    if "small" in paths:
        found.append(f"rules.paths.small.changes.load_clock_frac.{measurement.dtype}")
    return found


def _tile_size(measurement: HostMeasurement) -> int:
    """Return a power of two whose tiles fit in half of what a core has for itself."""
    cache = measurement.facts.last_private_cache
    size = _LARGEST_TILE
    while cache is not None and size > 16 and 2 * _COPIES * 4 * size * size > cache.size_bytes:
        size //= 2
    return size


def _near_gb_per_s(measurement: HostMeasurement, num_cores: int) -> Entry:
    """Return what caches near so many cores give them: a vector a cycle each."""
    facts = measurement.facts
    rate = facts.simd_bits.value / 8 * facts.clock_ghz.value * num_cores
    return value(round(rate, 1), "assumed", "copies lie in a cache of the core, which gives it a vector a cycle")


def _any_tile() -> dict[str, Any]:
    return {name: [] for name in _TILES}


def _nothing_packed() -> dict[str, Any]:
    return {"packs": {}, "pack_gb_per_s": None, "pack_near_bytes": None}


def _stream(measurement: HostMeasurement, num_bytes: int, num_units: int) -> dict[str, Any]:
    """Nothing packed: weights are streamed once, by cores that wait for each other no more than a call takes."""
    num_cores = measurement.facts.num_cores.value
    point = stream_gb_per_s(measurement.bandwidth, num_cores, num_bytes)
    where = f"host: {point.working_set_bytes / 2**20:.4g} MiB, read by {num_cores} threads"
    rate = value(round(point.gb_per_s, 2), "measured", where)
    own = {"dram_sharing": "static", "dram_core_limit_gb_per_s": None}  # each thread has its part of the weights
    one_row = {"cube_m": 1, "cube_steps_per_cycle": {measurement.dtype: float(num_units)}}
    return {**_nothing_packed(), **one_row, "dram_gb_per_s": rate, **own, "sync_us": 0.0}


def _openblas_paths(measurement: HostMeasurement, dtype: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if measurement.blas.name != _OPENBLAS:
        return
    if measurement.blas.kernels.lower() not in _AVX512_KERNELS:
        yield "one_core", {"max_macs": _ONE_CORE_MACS, "splits": []}
        return
    guess = value(_SMALL_CLOCK_FRAC, "assumed", "a first guess: rows and columns that are not packed")
    yield (
        "small",
        {
            **_any_tile(),
            "max_macs": _SMALL_MACS,
            "splits": [],
            "changes": {**_nothing_packed(), "load_clock_frac": {dtype: guess}},
        },
    )
    if measurement.facts.num_cores.value > 1:
        yield "narrow", {"max_columns": _NARROW_COLUMNS, "splits": ["M"], "changes": {"sync_us": 0.0}}
