"""The files of this machine: its spec as a multi-core chip that `load_arch` reads, its timings, bandwidths and facts.

`gemm-eval calibrate multicore` fits the coefficients that the spec names on the timings; `fitted` puts them in their
places. Nothing else turns a `HostMeasurement` into a spec, so a new field of the spec is a line here.

The sizes at which OpenBLAS takes other code are constants of its own (0.3.31: interface/gemm.c, driver/level3 and the
kernels for cores with AVX-512); other code of another BLAS is not known here. Rates are first guesses.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gemm_eval.arch import ProvenanceKind
from gemm_eval.measure.host.campaign import HostMeasurement, stream_gb_per_s
from gemm_eval.measure.host.cpu import Fact
from gemm_eval.measure.host.timing import HOST_DTYPES
from gemm_eval.storage import write_text
from gemm_eval.version import __version__

Entry = dict[str, Any]


def value(number: float, kind: str, source: str) -> Entry:
    """Return a number with its kind, of `ProvenanceKind`, and its source."""
    return {"value": number, "kind": str(ProvenanceKind(kind)), "source": source}


def place_fitted(body: dict[str, Any], fitted: Mapping[str, float], source: str) -> None:
    """Put fitted numbers in their places, such as ``rules.changes.pack_gb_per_s``; all places are there."""
    for path, number in fitted.items():
        *tables, name = path.split(".")
        table = body
        for key in tables:
            table = table[key]
        table[name] = value(number, ProvenanceKind.FITTED, source)


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
    """Return the content of `rules` in a spec, for a core with so many vector units that multiply and add."""
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
    coefficients = [f"load_clock_frac.{measurement.dtype}", "rules.changes.pack_gb_per_s"]
    if measurement.facts.num_cores.value > 1:
        coefficients.append("sync_us")
    coefficients += [f"rules.paths.{name}.changes.dram_gb_per_s" for name in ("vector_near", "vector") if name in paths]
    if "small" in paths:
        coefficients.append(f"rules.paths.small.changes.load_clock_frac.{measurement.dtype}")
    return coefficients


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
    """Return changes of rules for a GEMM that packs nothing and streams its weights once, without a barrier."""
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


_BITS = {"fp32": 32, "fp64": 64}
_UNITS_PER_CORE = (1, 2, 4, 8, 16, 32, 64)  # more than 4: a matrix unit behind the same BLAS
_NEARLY = 0.95  # of a peak: a GEMM that seems faster than that has another unit
_ROWS_OF_KERNEL = 4
_CLOCK_FRAC = 0.97
_SYNC_US = 5.0
_DEFAULT_SRAM_BYTES = 256 << 10
_NO_SPEC = {"fp64"}


def can_be_spec(dtype: str) -> bool:
    """Return whether the model has the type of the timings: it has no type of 64 bits."""
    return dtype in HOST_DTYPES and dtype not in _NO_SPEC


def chip_name(measurement: HostMeasurement) -> str:
    """Return a name for the chip: the maker's, in plain letters, and the cores that were used."""
    words = re.sub(r"\(r\)|\(tm\)|\bcpu\b|@.*", " ", measurement.facts.title.lower())
    slug = re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "host"
    return f"{slug[:50].strip('-')}-{measurement.facts.num_cores.value}c"


def host_spec_text(measurement: HostMeasurement, date: str, fitted: Mapping[str, float] | None = None) -> str:
    """Return a spec of the machine, `type: multicore`, for what was measured.

    A core's matrix unit is its vector units: a step is four rows by one vector of columns, as BLAS kernels have it at
    least. SRAM is the last cache that a core has for itself; what lies behind, at the size of the largest weights that
    were timed, is the memory that operands come from.

    Args:
        measurement: of a type that the model has (`can_be_spec`).
        date: of the measurement, YYYY-MM-DD.
        fitted: coefficients by path, as a calibration has them. None: first guesses stay.
    """
    facts = measurement.facts
    timed = f"{measurement.blas}, {facts.num_cores.value} threads, {date}"
    head = {
        "name": chip_name(measurement),
        "type": "multicore",
        "title": f"{facts.title}, {facts.num_cores.value} cores, with numpy's BLAS",
        "notes": (
            "A CPU is no chip with SRAM that programs manage: a core's own cache stands for it, and the vector units "
            f"for a matrix unit. {facts.system}, {facts.machine}"
            + (", a virtual machine, whose outer caches others may use as well." if facts.is_virtual else ".")
        ),
        "is_coarse": True,
        "sources": {"host": "gemm-eval measure host, on the machine itself", "timings": timed},
    }
    body = dict(_fields(measurement))
    note = "Rates that only timings tell are first guesses: calibrate multicore fits them."
    if fitted:
        head["calibration"] = f"{len(measurement.timings)} GEMMs of {timed}"
        place_fitted(body, fitted, f"least squares over {len(measurement.timings)} GEMMs, {date}")
        note = "Its fitted numbers come from the timings beside it."
    comment = textwrap.fill(
        f"Written by gemm-eval measure host: {facts.title}, {date}. {note}",
        width=100,
        initial_indent="# ",
        subsequent_indent="# ",
    )
    parts = [yaml.safe_dump(part, sort_keys=False, width=110, allow_unicode=True) for part in (head, body)]
    return f"{comment}\n" + "\n".join(parts)


def _fields(measurement: HostMeasurement) -> Iterator[tuple[str, Any]]:
    facts, dtype = measurement.facts, measurement.dtype
    lanes = facts.simd_bits.value // _BITS[dtype]
    units, units_source = _num_units(measurement, lanes)
    yield "num_cores", _entry(facts.num_cores)
    yield "frequency_ghz", _entry(facts.clock_ghz, digits=3)
    yield "cube_m", value(_ROWS_OF_KERNEL, "assumed", "rows that kernels of BLAS compute at once, at least")
    yield "cube_k", value(1, "derived", "a vector instruction multiplies and adds once")
    yield "cube_n", value(lanes, "derived", f"{facts.simd_bits.source}: {facts.simd_bits.value} bits / {_BITS[dtype]}")
    yield (
        "cube_steps_per_cycle",
        {dtype: value(units / _ROWS_OF_KERNEL, "derived", f"{units_source} / {_ROWS_OF_KERNEL} rows")},
    )
    yield "default_dtype", dtype
    yield "sram_bytes", _sram(measurement)
    yield "input_buffers", value(2, "assumed", "caches are filled ahead")
    yield "output_buffers", value(1, "assumed", "C is updated where it lies")
    yield from _memory(measurement)
    yield "load_sharing", "private"
    yield "reduction", "none"
    yield "dequant", "none"
    yield "timing", "overlap"
    yield "launch_us", value(round(measurement.launch.latency_us, 3), "measured", "host: a GEMM of 1 x 1 x 1")
    yield "load_clock_frac", {dtype: value(_CLOCK_FRAC, "assumed", "a first guess: kernels reach nearly the peak")}
    yield "sync_us", value(_SYNC_US if facts.num_cores.value > 1 else 0.0, "assumed", "a first guess")
    rules = blas_rules(measurement, units)
    yield "coefficients", blas_coefficients(measurement, rules)
    yield "rules", rules


def _memory(measurement: HostMeasurement) -> Iterator[tuple[str, Any]]:
    points, num_cores, largest = (
        measurement.bandwidth, measurement.facts.num_cores.value, measurement.largest_weight_bytes
    )  # fmt: skip
    whole = stream_gb_per_s(points, num_cores, largest)
    where = f"host: a working set of {whole.working_set_bytes / 2**20:.4g} MiB, read by"
    yield "dram_gb_per_s", value(round(whole.gb_per_s, 2), "measured", f"{where} {num_cores} threads")
    yield "dram_sharing", "fair"
    one = stream_gb_per_s(points, 1, largest)
    limit = min(one.gb_per_s, whole.gb_per_s)  # a core alone has no more than all of them
    yield "dram_core_limit_gb_per_s", value(round(limit, 2), "measured", f"{where} one thread")


def _sram(measurement: HostMeasurement) -> Entry:
    cache = measurement.facts.last_private_cache
    if cache is None:
        return value(_DEFAULT_SRAM_BYTES, "assumed", "no cache is told of that a core has for itself")
    return value(cache.size_bytes, "spec", f"host: L{cache.level}, by {measurement.facts.caches_source}")


def _num_units(measurement: HostMeasurement, lanes: int) -> tuple[int, str]:
    """Return the least number of vector units of a core that can have computed the fastest GEMM, and its source."""
    facts = measurement.facts
    per_us = max((timing.shape.num_macs / timing.latency_us for timing in measurement.timings), default=0.0)
    per_cycle = per_us / 1e3 / facts.clock_ghz.value / facts.num_cores.value / lanes
    units = next((units for units in _UNITS_PER_CORE if _NEARLY * per_cycle <= units), _UNITS_PER_CORE[-1])
    return units, f"{units} vectors a cycle: the fastest GEMM needs {per_cycle:.2f}"


def _entry(fact: Fact[Any], digits: int | None = None) -> Entry:
    value = fact.value if digits is None else round(fact.value, digits)
    return {"value": value, "kind": str(fact.kind), "source": f"host: {fact.source}"}


_COLUMNS = (
    "chip", "dtype", "M", "K", "N", "latency_us", "min_us", "spread_frac", "num_samples", "calls_per_sample",
    "num_disturbed",
)  # fmt: skip


class HostFiles(NamedTuple):
    """The files of a measurement.

    Attributes:
        spec: for `load_arch`; None: the model has no type like that of the timings.
        timings: a table as `gemm-eval calibrate multicore` reads them.
        meta: what stands beside it.
        bandwidth: table of streams.
        facts: all that is known of the CPU and BLAS.
    """

    spec: Path | None
    timings: Path
    meta: Path
    bandwidth: Path
    facts: Path


def write_host_files(
    folder: Path, measurement: HostMeasurement, date: str, fitted: Mapping[str, float] | None = None
) -> HostFiles:
    """Write a measurement of this machine into a folder; no file is ever half-written.

    Args:
        folder: is made if it is missing.
        measurement: what was measured.
        date: of it, YYYY-MM-DD.
        fitted: coefficients of the spec that were fitted on the timings; None: none were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chip = chip_name(measurement)
    files = HostFiles(
        spec=folder / f"{chip}.yaml" if can_be_spec(measurement.dtype) else None,
        timings=folder / f"{chip}-{measurement.dtype}.csv",
        meta=folder / f"{chip}-{measurement.dtype}.meta.yaml",
        bandwidth=folder / f"{chip}-bandwidth.csv",
        facts=folder / f"{chip}-facts.yaml",
    )
    rows = (
        (
            chip, measurement.dtype, *timing.shape, f"{timing.latency_us:.3f}", f"{timing.min_us:.3f}",
         f"{timing.spread_frac:.4f}", timing.num_samples, timing.calls_per_sample, timing.num_disturbed)
        for timing in measurement.timings
    )  # fmt: skip
    write_text(files.timings, _table(_COLUMNS, rows))
    write_text(files.meta, _yaml(_meta_of(measurement, date)))
    streams = (
        (point.kind, point.num_threads, point.working_set_bytes, f"{point.gb_per_s:.3f}", f"{point.spread_frac:.4f}")
        for point in measurement.bandwidth
    )
    write_text(
        files.bandwidth, _table(("kind", "num_threads", "working_set_bytes", "gb_per_s", "spread_frac"), streams)
    )
    write_text(files.facts, _yaml(_plain_facts(measurement, date)))
    if files.spec is not None:
        write_text(files.spec, host_spec_text(measurement, date, fitted))
    return files


def _meta_of(measurement: HostMeasurement, date: str) -> dict[str, Any]:
    facts = measurement.facts
    pinned = f"on cores {', '.join(map(str, facts.cpus))}" if facts.cpus else "not pinned"
    return {
        "source": f"gemm-eval {__version__} measure host on {facts.title}, {date}",
        "licence": "of who measured",
        "what": f"{measurement.blas}, {facts.num_cores.value} threads {pinned}; operands warm; medians of samples from "
        "several passes in shuffled order",
    }


def _plain_facts(measurement: HostMeasurement, date: str) -> dict[str, Any]:
    facts = measurement.facts

    def known(fact: Any) -> Any:
        return None if fact is None else {"value": fact.value, "kind": str(fact.kind), "source": fact.source}

    return {
        "date": date,
        "gemm_eval": __version__,
        "title": facts.title,
        "machine": facts.machine,
        "system": facts.system,
        "is_virtual": facts.is_virtual,
        "memory_bytes": facts.memory_bytes,
        "num_cores": known(facts.num_cores),
        "cpus": list(facts.cpus),
        "simd_bits": known(facts.simd_bits),
        "nominal_ghz": known(facts.nominal_ghz),
        "clock_ghz": known(facts.clock_ghz),
        "caches": [cache._asdict() for cache in facts.caches],
        "caches_source": facts.caches_source,
        "blas": measurement.blas._asdict(),
        "launch_us": measurement.launch.latency_us,
        "num_timings": len(measurement.timings),
    }


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
