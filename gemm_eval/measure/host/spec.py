"""The files of this machine: its spec as a multi-core chip that `load_arch` reads, its timings, bandwidths and facts.

`gemm-eval calibrate multicore` fits the coefficients that the spec names on the timings. The sizes at which OpenBLAS
takes other code are constants of its own (0.3.31: interface/gemm.c, driver/level3 and the kernels for cores with
AVX-512); other code of another BLAS is not known here. Rates are first guesses.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gemm_eval.arch import ProvenanceKind
from gemm_eval.measure.host.cpu import Fact
from gemm_eval.measure.host.timing import HostMeasurement, stream_gb_per_s
from gemm_eval.storage import write_text
from gemm_eval.version import __version__

Entry = dict[str, Any]

_BITS = {"fp32": 32}  # types of timings that the model has
_UNITS_PER_CORE = (1, 2, 4, 8, 16, 32, 64)  # more than 4: a matrix unit behind the same BLAS
_NEARLY = 0.95  # of a peak: a GEMM that seems faster than that has another unit
_ROWS_OF_KERNEL = 4
_CLOCK_FRAC = 0.97
_SYNC_US = 5.0
_DEFAULT_SRAM_BYTES = 256 << 10
_OPENBLAS = "openblas"
_AVX512_KERNELS = {"skylakex", "cooperlake", "sapphirerapids"}
_SMALL_MACS = 1_000_000  # up to this M*K*N those kernels pack nothing and run on one core
_ONE_CORE_MACS = 262_144  # up to this M*K*N the others run on one core
_NARROW_COLUMNS = 127  # up to this N those kernels cut M over cores instead
_PACK_GB_PER_S = 10.0
_SMALL_CLOCK_FRAC = 0.8
_LARGEST_TILE = 128  # rows, columns and depth of a block of packed operands
_COPIES = 5  # of a tile in SRAM: two of A, two of B, one of C
_NEAR_CACHES = 2  # of the cache that a core has for itself: what one packs beyond misses it, and its pages
_ANY_TILE: dict[str, Any] = {"tile_m": [], "tile_n": [], "tile_k": []}
_NOTHING_PACKED: dict[str, Any] = {"packs": {}, "pack_gb_per_s": None, "pack_near_bytes": None}


def can_be_spec(dtype: str) -> bool:
    """Return whether the model has the type of the timings: it has no type of 64 bits."""
    return dtype in _BITS


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
        fitted: coefficients by path, such as ``rules.changes.pack_gb_per_s``. None: first guesses stay.
    """
    facts, num_gemms = measurement.facts, len(measurement.timings)
    timed = f"{measurement.blas}, {facts.num_cores.value} threads, {date}"
    shares = ", a virtual machine, whose outer caches others may use as well." if facts.is_virtual else "."
    head = {
        "name": chip_name(measurement),
        "type": "multicore",
        "title": f"{facts.title}, {facts.num_cores.value} cores, with numpy's BLAS",
        "notes": "A CPU is no chip with SRAM that programs manage: a core's own cache stands for it, and the vector "
        f"units for a matrix unit. {facts.system}, {facts.machine}{shares}",
        "is_coarse": True,
        "sources": {"host": "gemm-eval measure host, on the machine itself", "timings": timed},
    }
    body = dict(_fields(measurement))
    note = "Rates that only timings tell are first guesses: calibrate multicore fits them."
    if fitted:
        head["calibration"] = f"{num_gemms} GEMMs of {timed}"
        note = "Its fitted numbers come from the timings beside it."
        for path, number in fitted.items():
            *tables, name = path.split(".")
            table = body
            for key in tables:
                table = table[key]
            table[name] = _entry(number, "fitted", f"least squares over {num_gemms} GEMMs, {date}")
    comment = textwrap.fill(
        f"Written by gemm-eval measure host: {facts.title}, {date}. {note}", 100, initial_indent="# ",
        subsequent_indent="# ",
    )  # fmt: skip
    return "\n".join([comment, f"{_yaml(head)}\n{_yaml(body)}"])


def _entry(number: float, kind: str, source: str) -> Entry:
    return {"value": number, "kind": str(ProvenanceKind(kind)), "source": source}


def _of_fact(fact: Fact[Any], digits: int | None = None) -> Entry:
    return _entry(fact.value if digits is None else round(fact.value, digits), fact.kind, f"host: {fact.source}")


def _fields(measurement: HostMeasurement) -> Iterator[tuple[str, Any]]:
    facts, dtype = measurement.facts, measurement.dtype
    num_cores, simd = facts.num_cores.value, facts.simd_bits
    lanes = simd.value // _BITS[dtype]
    units, units_source = _num_units(measurement, lanes)
    rate = _entry(units / _ROWS_OF_KERNEL, "derived", f"{units_source} / {_ROWS_OF_KERNEL} rows")
    yield "num_cores", _of_fact(facts.num_cores)
    yield "frequency_ghz", _of_fact(facts.clock_ghz, digits=3)
    yield "cube_m", _entry(_ROWS_OF_KERNEL, "assumed", "rows that kernels of BLAS compute at once, at least")
    yield "cube_k", _entry(1, "derived", "a vector instruction multiplies and adds once")
    yield "cube_n", _entry(lanes, "derived", f"{simd.source}: {simd.value} bits / {_BITS[dtype]}")
    yield "cube_steps_per_cycle", {dtype: rate}
    yield "default_dtype", dtype
    if (cache := facts.last_private_cache) is None:
        yield "sram_bytes", _entry(_DEFAULT_SRAM_BYTES, "assumed", "no cache is told of that a core has for itself")
    else:
        yield "sram_bytes", _entry(cache.size_bytes, "spec", f"host: L{cache.level}, by {facts.caches_source}")
    yield "input_buffers", _entry(2, "assumed", "caches are filled ahead")
    yield "output_buffers", _entry(1, "assumed", "C is updated where it lies")
    whole, one = (
        stream_gb_per_s(measurement.bandwidth, threads, measurement.largest_weight_bytes) for threads in (num_cores, 1)
    )
    where = f"host: a working set of {whole.working_set_bytes / 2**20:.4g} MiB, read by"
    yield "dram_gb_per_s", _entry(round(whole.gb_per_s, 2), "measured", f"{where} {num_cores} threads")
    yield "dram_sharing", "fair"
    limit = min(one.gb_per_s, whole.gb_per_s)  # a core alone has no more than all of them
    yield "dram_core_limit_gb_per_s", _entry(round(limit, 2), "measured", f"{where} one thread")
    yield from {"load_sharing": "private", "reduction": "none", "dequant": "none", "timing": "overlap"}.items()
    yield "launch_us", _entry(round(measurement.launch.latency_us, 3), "measured", "host: a GEMM of 1 x 1 x 1")
    yield "load_clock_frac", {dtype: _entry(_CLOCK_FRAC, "assumed", "a first guess: kernels reach nearly the peak")}
    yield "sync_us", _entry(_SYNC_US if num_cores > 1 else 0.0, "assumed", "a first guess")
    rules = _rules(measurement, units)
    paths = rules["paths"]
    coefficients = [f"load_clock_frac.{dtype}", "rules.changes.pack_gb_per_s", *["sync_us"] * (num_cores > 1)]
    coefficients += [f"rules.paths.{name}.changes.dram_gb_per_s" for name in ("vector_near", "vector") if name in paths]
    coefficients += [f"rules.paths.small.changes.load_clock_frac.{dtype}"] * ("small" in paths)
    yield "coefficients", coefficients
    yield "rules", rules


def _num_units(measurement: HostMeasurement, lanes: int) -> tuple[int, str]:
    """Return the least number of vector units of a core that can have computed the fastest GEMM, and its source."""
    facts = measurement.facts
    per_us = max((timing.shape.num_macs / timing.latency_us for timing in measurement.timings), default=0.0)
    per_cycle = per_us / 1e3 / facts.clock_ghz.value / facts.num_cores.value / lanes
    units = next((units for units in _UNITS_PER_CORE if _NEARLY * per_cycle <= units), _UNITS_PER_CORE[-1])
    return units, f"{units} vectors a cycle: the fastest GEMM needs {per_cycle:.2f}"


def _rules(measurement: HostMeasurement, num_units: int) -> dict[str, Any]:
    """Return what a BLAS does, as rules of a chip whose cores have so many vector units that multiply and add."""
    facts, blas = measurement.facts, measurement.blas
    cache, num_cores = facts.last_private_cache, facts.num_cores.value
    tile = _LARGEST_TILE  # a power of two whose tiles fit in half of what a core has for itself
    while cache is not None and tile > 16 and 2 * _COPIES * 4 * tile * tile > cache.size_bytes:
        tile //= 2
    changes: dict[str, Any] = {
        "packs": {"A": "private", "B": "private"},  # a core fetches what others packed of A: that takes as long
        "pack_gb_per_s": _entry(_PACK_GB_PER_S, "assumed", "a first guess"),
        "dram_gb_per_s": _near_gb_per_s(measurement, num_cores),
        "dram_core_limit_gb_per_s": _near_gb_per_s(measurement, 1),
    }
    paths: dict[str, Any] = {}
    if cache is not None:
        times = f"{_NEAR_CACHES} times what a core has for itself"
        changes["pack_near_bytes"] = _entry(_NEAR_CACHES * cache.size_bytes, "assumed", times)
        near_bytes = cache.size_bytes * num_cores
        paths["vector_near"] = {
            **_ANY_TILE, "max_rows": 1, "max_bytes": _entry(near_bytes, "derived", f"L{cache.level} of all cores"),
            "changes": _stream(measurement, near_bytes, num_units),
        }  # fmt: skip
    largest = _stream(measurement, measurement.largest_weight_bytes, num_units)
    paths["vector"] = {**_ANY_TILE, "max_rows": 1, "changes": largest}
    if blas.name == _OPENBLAS and blas.kernels.lower() not in _AVX512_KERNELS:
        paths["one_core"] = {"max_macs": _ONE_CORE_MACS, "splits": []}
    elif blas.name == _OPENBLAS:
        guess = _entry(_SMALL_CLOCK_FRAC, "assumed", "a first guess: rows and columns that are not packed")
        unpacked = {**_NOTHING_PACKED, "load_clock_frac": {measurement.dtype: guess}}
        paths["small"] = {**_ANY_TILE, "max_macs": _SMALL_MACS, "splits": [], "changes": unpacked}
        if num_cores > 1:
            paths["narrow"] = {"max_columns": _NARROW_COLUMNS, "splits": ["M"], "changes": {"sync_us": 0.0}}
    tiles = {name: [tile] for name in _ANY_TILE}
    return {"title": f"{blas.name} {blas.version}", **tiles, "changes": changes, "paths": paths}


def _near_gb_per_s(measurement: HostMeasurement, num_cores: int) -> Entry:
    """Return what caches near so many cores give them: a vector a cycle each."""
    rate = measurement.facts.simd_bits.value / 8 * measurement.facts.clock_ghz.value * num_cores
    return _entry(round(rate, 1), "assumed", "copies lie in a cache of the core, which gives it a vector a cycle")


def _stream(measurement: HostMeasurement, num_bytes: int, num_units: int) -> dict[str, Any]:
    """Return changes of rules for a GEMM that packs nothing and streams its weights once, without a barrier."""
    num_cores = measurement.facts.num_cores.value
    point = stream_gb_per_s(measurement.bandwidth, num_cores, num_bytes)
    where = f"host: {point.working_set_bytes / 2**20:.4g} MiB, read by {num_cores} threads"
    one_row = {"cube_m": 1, "cube_steps_per_cycle": {measurement.dtype: float(num_units)}}
    own = {"dram_sharing": "static", "dram_core_limit_gb_per_s": None}  # each thread has its part of the weights
    rate = _entry(round(point.gb_per_s, 2), "measured", where)
    return {**_NOTHING_PACKED, **one_row, "dram_gb_per_s": rate, **own, "sync_us": 0.0}


class HostFiles(NamedTuple):
    """The files of a measurement: spec (None: the model has no such type), timings and their meta, bandwidths, facts.

    `load_arch` reads the spec, `gemm-eval calibrate multicore` the timings.
    """

    spec: Path | None
    timings: Path
    meta: Path
    bandwidth: Path
    facts: Path


def write_host_files(
    folder: Path, measurement: HostMeasurement, date: str, fitted: Mapping[str, float] | None = None
) -> HostFiles:
    """Write a measurement of this machine, of `date` (YYYY-MM-DD), into a folder; no file is ever half-written.

    `fitted` are coefficients of the spec that were fitted on the timings; None: none were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chip, dtype, facts = chip_name(measurement), measurement.dtype, measurement.facts
    files = HostFiles(
        spec=folder / f"{chip}.yaml" if can_be_spec(dtype) else None,
        timings=folder / f"{chip}-{dtype}.csv",
        meta=folder / f"{chip}-{dtype}.meta.yaml",
        bandwidth=folder / f"{chip}-bandwidth.csv",
        facts=folder / f"{chip}-facts.yaml",
    )
    head = {"chip": chip, "dtype": dtype}
    rows = [{**head, **timing.shape._asdict(), **timing._asdict()} for timing in measurement.timings]
    pinned = f"on cores {', '.join(map(str, facts.cpus))}" if facts.cpus else "not pinned"
    meta = {
        "source": f"gemm-eval {__version__} measure host on {facts.title}, {date}",
        "licence": "of who measured",
        "what": f"{measurement.blas}, {facts.num_cores.value} threads {pinned}; operands warm; medians of samples from "
        "several passes in shuffled order",
    }
    write_text(files.timings, _csv(rows))
    write_text(files.meta, _yaml(meta))
    write_text(files.bandwidth, _csv([point._asdict() for point in measurement.bandwidth]))
    write_text(files.facts, _yaml(_plain_facts(measurement, date)))
    if files.spec is not None:
        write_text(files.spec, host_spec_text(measurement, date, fitted))
    return files


_DIGITS = {"latency_us": 3, "min_us": 3, "gb_per_s": 3, "spread_frac": 4}


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table as CSV, rates and times with a few digits; numbers and plain names need no quotes."""
    names = [name for name in rows[0] if name != "shape"] if rows else []
    lines = [names]
    lines += [
        [f"{row[name]:.{_DIGITS[name]}f}" if name in _DIGITS else str(row[name]) for name in names] for row in rows
    ]
    return "".join(f"{','.join(line)}\n" for line in lines)


def _plain_facts(measurement: HostMeasurement, date: str) -> dict[str, Any]:
    facts = asdict(measurement.facts)
    for fact in facts.values():
        if isinstance(fact, dict):
            fact["kind"] = str(fact["kind"])
    names = ("title", "machine", "system", "is_virtual", "memory_bytes", "num_cores", "cpus", "simd_bits",
             "nominal_ghz", "clock_ghz", "caches", "caches_source")  # fmt: skip
    facts |= {"cpus": list(facts["cpus"]), "caches": [cache._asdict() for cache in measurement.facts.caches]}
    return {
        "date": date, "gemm_eval": __version__, **{name: facts[name] for name in names},
        "blas": measurement.blas._asdict(), "launch_us": measurement.launch.latency_us,
        "num_timings": len(measurement.timings),
    }  # fmt: skip


class _Dumper(yaml.SafeDumper):
    """Writes each value where it stands, and no references."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
