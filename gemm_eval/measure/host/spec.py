"""The spec of this machine as a multi-core chip: what was found out, as a YAML file that `load_arch` reads.

`gemm-eval calibrate multicore` fits the coefficients that it names on the timings; `fitted` puts them in their places.
Nothing else turns a `HostMeasurement` into text, so a new field of the spec is a line here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gemm_eval.measure.host.bandwidth import stream_gb_per_s
from gemm_eval.measure.host.campaign import HostMeasurement
from gemm_eval.measure.host.entries import Entry, place_fitted, value
from gemm_eval.measure.host.facts import Fact
from gemm_eval.measure.host.library import blas_coefficients, blas_rules
from gemm_eval.measure.host.timing import HOST_DTYPES

__all__ = ["can_be_spec", "chip_name", "host_spec_text"]

_BITS = {"fp32": 32, "fp64": 64}
_UNITS_PER_CORE = (1, 2, 4, 8, 16, 32, 64)  # more than 4: a matrix unit behind the same BLAS
_NEARLY = 0.95  # of a peak: a GEMM that seems faster than that has another unit
_ROWS_OF_KERNEL = 4
_CLOCK_FRAC = 0.97
_SYNC_US = 5.0
_DEFAULT_SRAM_BYTES = 256 << 10
_NO_SPEC = {"fp64"}


def can_be_spec(dtype: str) -> bool:
    """Whether the model has the type of the timings: it has none of 64 bits."""
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
    said = "Rates that only timings tell are first guesses: calibrate multicore fits them."
    if fitted:
        head["calibration"] = f"{len(measurement.timings)} GEMMs of {timed}"
        place_fitted(body, fitted, f"least squares over {len(measurement.timings)} GEMMs, {date}")
        said = "Its fitted numbers come from the timings beside it."
    comment = textwrap.fill(
        f"Written by gemm-eval measure host: {facts.title}, {date}. {said}",
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
    """Vector units of a core that multiply and add: as few as the fastest GEMM can have been computed by."""
    facts = measurement.facts
    per_us = max((timing.shape.num_macs / timing.latency_us for timing in measurement.timings), default=0.0)
    per_cycle = per_us / 1e3 / facts.clock_ghz.value / facts.num_cores.value / lanes
    units = next((units for units in _UNITS_PER_CORE if _NEARLY * per_cycle <= units), _UNITS_PER_CORE[-1])
    return units, f"{units} vectors a cycle: the fastest GEMM needs {per_cycle:.2f}"


def _entry(fact: Fact[Any], digits: int | None = None) -> Entry:
    value = fact.value if digits is None else round(fact.value, digits)
    return {"value": value, "kind": str(fact.kind), "source": f"host: {fact.source}"}
